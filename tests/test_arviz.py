"""Runs in ArviZ: names, coordinates, log likelihoods."""

import arviz_stats
import numpy as np
import pytest

import accord

SITES = ("north", "south", "west")


def study():
    rng = np.random.default_rng(0)
    sites = {}
    for site in SITES:
        age, pain = rng.normal(50.0, 9.0, 80), rng.choice(["none", "some", "a/lot"], 80)
        sites[site] = {"age": age, "pain": pain, "stay": 2.0 + age / 10.0 + rng.standard_normal(80)}
    return sites


@pytest.fixture(scope="module")
def run():
    post = accord.models.glm(study(), "stay ~ age + C(pain)", "normal")
    return accord.sample(post, accord.Network.ring(3), draws=500)


def test_names_are_the_models_and_equal_agents_have_no_axis(run, tmp_path):
    tree = run.to_datatree()
    # a slash would separate groups of the tree
    names = ["Intercept", "age", "C(pain)[none]", "C(pain)[some]", "sigma"]
    assert list(tree["posterior"].data_vars) == names and tree["posterior"]["age"].dims == ("chain", "draw")
    table = arviz_stats.summary(tree)
    assert list(table.index) == names
    np.testing.assert_allclose(table["mean"].astype(float), run.average.mean(axis=(0, 1)), rtol=0.02, atol=0.02)
    run.save(tmp_path / "run.nc")
    read = accord.Run.load(tmp_path / "run.nc")
    np.testing.assert_array_equal(read.draws, run.draws)
    np.testing.assert_array_equal(read.unconstrained.kept, run.unconstrained.kept)
    assert (read.names, read.variables) == (run.names, run.variables)
    assert read.to_datatree().identical(tree)


@pytest.mark.long
def test_sites_are_the_coordinates_of_agents(tmp_path):
    post = accord.models.glm(study(), "stay ~ age", "student", priors={"sigma": accord.models.priors.HalfNormal(2.0)})
    net, method = accord.Network.ring(3), accord.samplers.DESGLD(1e-4)
    run = accord.sample(post, net, accord.Rounds(method, burn_in=5, whiten=True), draws=20, chains=2, keep=[0, 2])
    run.save(tmp_path / "run.nc")
    for one in (run, accord.Run.load(tmp_path / "run.nc")):
        age = one.to_datatree()["posterior"]["age"]
        assert age.dims == ("chain", "draw", "agent") and age["agent"].values.tolist() == ["north", "west"]
        np.testing.assert_array_equal(age, run.draws[..., 1])
        np.testing.assert_array_equal(one.agents, [0, 2])


def test_a_name_with_a_slash_is_written_and_read(tmp_path):
    post = accord.models.glm(study(), "stay ~ I(age / 10)", "normal")
    run = accord.sample(post, accord.Network.ring(3), draws=100)
    assert "I(age \u2215 10)" in run.to_datatree()["posterior"]
    run.save(tmp_path / "run.nc")
    assert accord.Run.load(tmp_path / "run.nc").names == ("Intercept", "I(age / 10)", "sigma")


def test_log_likelihoods_equal_the_closed_form(run):
    tree, post, net = (
        run.to_datatree(),
        accord.models.glm(study(), "stay ~ age + C(pain)", "normal"),
        accord.Network.ring(3),
    )
    tree["log_likelihood"] = accord.log_likelihood(run, post, net)
    rows = tree["log_likelihood"]["rows"]
    assert rows.shape == (4, 500, 240)
    assert rows["agent"].values.tolist() == [site for site in SITES for _ in range(80)]
    draw, frames = run.average[2, 7], study()
    stay = np.concatenate([frames[site]["stay"] for site in SITES])
    age, pain = (np.concatenate([frames[site][name] for site in SITES]) for name in ("age", "pain"))
    mean = draw[0] + draw[1] * age + draw[2] * (pain == "none") + draw[3] * (pain == "some")
    expected = -(((stay - mean) / draw[4]) ** 2) / 2.0 - np.log(draw[4]) - np.log(2.0 * np.pi) / 2.0
    np.testing.assert_allclose(rows[2, 7], expected, rtol=1e-10)
    found, own = arviz_stats.loo(tree), accord.loo(run, post, net)
    np.testing.assert_allclose([found.elpd, found.p], [own.elpd, own.p], rtol=1e-6)
    # ArviZ 1 uses the unbiased variance
    np.testing.assert_allclose(found.se, own.se, rtol=3e-3)


@pytest.mark.long
def test_a_run_from_a_file_has_the_same_log_likelihoods(run, tmp_path):
    post, net = accord.models.glm(study(), "stay ~ age + C(pain)", "normal"), accord.Network.ring(3)
    run.save(tmp_path / "run.nc")
    found = accord.log_likelihood(accord.Run.load(tmp_path / "run.nc"), post, net)
    assert found.identical(accord.log_likelihood(run, post, net))


@pytest.mark.long
def test_rows_without_separate_log_likelihoods_are_refused():
    net = accord.Network.ring(3)
    post = accord.models.glm(study(), "stay ~ age + (1 | site)", "normal")
    mixed = accord.sample(post, net, draws=50)
    with pytest.raises(ValueError, match="rows have no separate log likelihoods: they share latents"):
        accord.log_likelihood(mixed, post, net)
    post = accord.models.gaussian(np.zeros((3, 1)), np.ones((3, 1, 1)))
    with pytest.raises(ValueError, match="no separate log likelihoods: log_likelihood returns one number per shard"):
        accord.log_likelihood(accord.sample(post, net, draws=50), post, net)
    post = accord.models.glm(study(), "stay ~ age", "normal")
    masked = accord.sample(post, net, draws=50, engine=accord.engines.Local(masks=True))
    with pytest.raises(ValueError, match="masked"):
        accord.log_likelihood(masked, post, net)
