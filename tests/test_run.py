"""Runs: the tree, saving, the summary."""

import dataclasses

import arviz_stats
import numpy as np
import pytest
import xarray as xr
from tables import NETWORKS, unequal_shards

import accord
from accord.results.certificate import Certificate, Check
from accord.samplers import DADMMS, DESGLD


@pytest.fixture(scope="module")
def run():
    post = accord.models.linear_regression(unequal_shards(2).shards, 2.0, 10.0, names=["age", "dose"])
    return accord.sample(
        post, NETWORKS["ring"], accord.Rounds(DESGLD(0.1), burn_in=50, thin=5), draws=400, chains=3, seed=0
    )


def test_tree_has_the_dimensions_of_arviz(run):
    tree = run.to_datatree()
    for place, name in enumerate(("age", "dose")):
        assert tree["posterior"][name].dims == ("chain", "draw", "agent")
        np.testing.assert_array_equal(tree["posterior"][name].values, run.draws[..., place])
        np.testing.assert_array_equal(tree["average"][name].values, run.average[..., place])
    assert tree["sample_stats"]["consensus_error"].shape == (3, 400)
    # ArviZ computes on it as it is
    table = arviz_stats.summary(tree)
    assert len(table) == 12
    expected = run.draws.astype(float).mean(axis=(0, 1)).T.ravel()
    np.testing.assert_allclose(table["mean"].astype(float), expected, atol=0.05)


def test_pytrees_keep_their_shapes_in_the_tree():
    rng = np.random.default_rng(0)
    post = accord.Posterior(
        lambda p, rows: -((rows["y"] - p["a"] - rows["X"] @ p["M"].sum(axis=0)) ** 2),
        lambda p: -(p["a"] ** 2) - (p["M"] ** 2).sum(),
        [{"X": rng.standard_normal((3, 2)), "y": np.ones(3)}] * 6,
        {"a": 0.0, "M": np.zeros((3, 2))},
    )
    run = accord.sample(post, NETWORKS["ring"], accord.Rounds(DESGLD(0.001), burn_in=0), draws=4, chains=2, seed=0)
    tree = run.to_datatree()
    assert tree["posterior"]["M"].shape == (2, 4, 6, 3, 2)
    assert tree["posterior"]["a"].shape == (2, 4, 6)
    np.testing.assert_array_equal(tree["posterior"]["a"].values, run.draws[..., post.names.index("a")])
    np.testing.assert_array_equal(tree["posterior"]["M"].values[..., 2, 1], run.draws[..., post.names.index("M[2, 1]")])


@pytest.mark.parametrize("keep", ["agents", "average", [3]])
@pytest.mark.long
def test_saved_runs_load_unchanged(tmp_path, keep):
    run = accord.sample(
        unequal_shards(2), NETWORKS["ring"], accord.Rounds(DADMMS(1.0), burn_in=1), draws=5, chains=2, seed=0, keep=keep
    )
    path = tmp_path / "run.nc"
    run.save(path)
    loaded = accord.Run.load(path)
    np.testing.assert_array_equal(loaded.kept, run.kept)
    np.testing.assert_array_equal(loaded.average, run.average)
    np.testing.assert_array_equal(loaded.agents, run.agents)
    assert (loaded.names, loaded.variables, loaded.seconds) == (run.names, run.variables, run.seconds)
    assert loaded.settings == run.settings and isinstance(loaded.settings["burn_in"], int)
    np.testing.assert_array_equal(loaded.traffic.bytes_sent, run.traffic.bytes_sent)
    for name, values in run.statistics.items():
        np.testing.assert_array_equal(loaded.statistics[name], values)
    assert not list(tmp_path.glob("*.partial"))


def test_settings_keep_their_types_in_a_file(run, tmp_path):
    settings = {
        "seed": 2**64 - 1,
        "burn_in": np.int64(50),
        "share": 0.1 + 0.2,
        "width": np.float32(0.5),
        "whiten": True,
        "flag": np.bool_(False),
        "method": "DESGLD(step_size=0.1)",
        "text of a number": "12",
        "letters": "Zürich, \u03b3",
        "long": "agents " * 30_000,
        "limit": float("inf"),
        "network": accord.Network.ring(3),
    }
    dataclasses.replace(run, settings=settings, examine=None).save(tmp_path / "run.nc")
    found = accord.Run.load(tmp_path / "run.nc").settings
    # equal and of the same type: 1 == True == 1.0 would pass otherwise
    plain = {"burn_in": 50, "width": 0.5, "flag": False, "network": "<Network.ring(3): 3 agents, 3 edges>"}
    expected = {**settings, **plain}
    assert found == expected and list(found) == list(settings)
    assert [type(value) for value in found.values()] == [type(value) for value in expected.values()]
    dataclasses.replace(run, settings={}, examine=None).save(tmp_path / "bare.nc")
    assert accord.Run.load(tmp_path / "bare.nc").settings == {}


def test_a_file_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "other.nc"
    xr.DataTree.from_dict({"posterior": xr.Dataset({"x": ("draw", np.zeros(3))})}).to_netcdf(path, engine="h5netcdf")
    with pytest.raises(ValueError, match="not a run written by accord"):
        accord.Run.load(path)


@pytest.mark.filterwarnings("ignore:by the method's exact law", "ignore:the agents disagree", "ignore:ESS is")
def test_summary_puts_average_and_worst_agent_side_by_side(run):
    table = run.summary()
    assert list(table.index) == ["age", "dose"]
    flat = run.average.reshape(-1, 2).astype(float)
    np.testing.assert_allclose(table["average"]["mean"], flat.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(table["average"]["5%"], np.quantile(flat, 0.05, axis=0), rtol=1e-6)
    # brute force: distances of Gaussian marginals
    for d in range(2):
        own = accord.Gaussian(flat[:, d].mean(), flat[:, d].var())
        distance = [
            accord.metrics.wasserstein2(accord.Gaussian(x.mean(), x.var()), own)
            for x in (run.draws[:, :, i, d].ravel().astype(float) for i in range(6))
        ]
        assert table["worst agent"]["agent"].iloc[d] == np.argmax(distance)
    assert (table["average"]["ess"] > 10).all()
    assert (table["worst agent"]["rhat"] < 1.2).all()


def test_summary_of_an_optimisers_run_has_no_diagnostics_either():
    still = accord.sample(
        unequal_shards(2),
        NETWORKS["ring"],
        accord.Rounds(DADMMS(1.0, temperature=0.0), burn_in=2000),
        draws=8,
        chains=2,
    )
    table = still.summary()
    assert np.isfinite(table["average"]["mean"]).all()


def test_summary_of_tiny_runs_has_no_diagnostics():
    run = accord.sample(
        unequal_shards(1), NETWORKS["ring"], accord.Rounds(DESGLD(0.05), burn_in=0), draws=2, chains=1, keep="average"
    )
    with pytest.warns(UserWarning, match="2 draws per chain are too few"):
        table = run.summary()
    assert np.isnan(table["average"]["ess"]).all()
    assert np.isnan(table["average"]["rhat"]).all()
    assert "worst agent" not in table


def test_draws_are_written_before_the_findings_are_computed(run, tmp_path):
    class StoppedError(Exception):
        pass

    def interrupted(average):
        raise StoppedError

    run = dataclasses.replace(run, examine=interrupted)
    with pytest.raises(StoppedError):
        run.save(tmp_path / "run.nc")
    np.testing.assert_array_equal(accord.Run.load(tmp_path / "run.nc").draws, run.draws)


def test_a_table_shows_all_its_columns_in_eighty(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    run = accord.sample(accord.models.gaussian([-1.0, 0.0, 1.0], [1.0] * 3), accord.Network.ring(3), draws=200)
    table = run.table()
    # agents with the same draws are printed once, and the table has both groups
    assert repr(table).count("mean") == 1 and "all agents" in repr(table) and "worst agent" in table
    assert table._repr_html_().count("mean") == table.to_string().count("mean") == 1
    table.loc[:, ("worst agent", "mean")] += 1.0
    text = repr(table)
    assert all(len(line) <= 80 for line in text.splitlines()) and "..." not in text.replace("....", "")
    assert all(text.count(str(name)) >= 1 for _, name in table.columns)
    assert text.count("mean") == 2 and repr(table[["average"]]).count("mean") == 1
    numbers = table.to_csv().splitlines()[-1].split(",")[1:]
    assert all(len(number.strip("-").replace(".", "")) <= 12 for number in numbers)


def test_a_table_has_the_names_of_sites_if_they_are_known(run):
    sites = tuple(f"site {agent}" for agent in range(6))
    named = dataclasses.replace(run, info=dataclasses.replace(run.info, sites=sites))
    assert list(named.table()["worst agent", "agent"]) == [f"site {n}" for n in run.table()["worst agent", "agent"]]
    assert any("site " in text for text in named.warnings()) and not any("site " in text for text in run.warnings())


def test_a_certificate_prints_its_checks_with_limits():
    checks = (
        Check("effective draws", 4298.0, 3600.0, True, "many"),
        Check("weights", 0.62, 0.5, False, "a heavy tail"),
        Check("other modes", 0.0, np.inf, True, "none"),
    )
    assert repr(Certificate(checks)).splitlines() == [
        "Not certified: 2 of 3 checks passed",
        "  passed  effective draws  4,298  at least 3,600",
        "  failed  weights           0.62  at most 0.5",
        "  passed  other modes          0",
    ]
    assert str(Certificate(checks)).splitlines()[2] == "  failed  weights: a heavy tail"


@pytest.mark.long
def test_a_summary_without_findings_computes_none(recwarn):
    post, found = accord.models.gaussian([-1.0, 0.0, 1.0], [1.0] * 3), []
    run = accord.sample(post, accord.Network.ring(3), accord.samplers.DESGLD(0.5), draws=200)
    law = run.examine
    object.__setattr__(run, "examine", lambda average: found.append(1) or law(average))
    run.summary(findings=False)
    quiet = [str(one.message) for one in recwarn.list]
    assert not found and not any("predicts" in text for text in quiet)
    run.summary()
    assert found == [1] and len(recwarn.list) > 2 * len(quiet)
    # findings that are known are used in any case
    texts = run.warnings(findings=False)
    assert found == [1] and texts == run.warnings()
