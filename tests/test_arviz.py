"""ArviZ reads runs: names, coordinates, log likelihoods."""

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


def test_names_are_those_of_the_model_and_agents_are_one_where_they_agree(run, tmp_path):
    tree = run.to_datatree()
    # a stroke would part groups of the tree
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


def test_a_name_with_a_stroke_is_written_and_read(tmp_path):
    post = accord.models.glm(study(), "stay ~ I(age / 10)", "normal")
    run = accord.sample(post, accord.Network.ring(3), draws=100)
    assert "I(age \u2215 10)" in run.to_datatree()["posterior"]
    run.save(tmp_path / "run.nc")
    assert accord.Run.load(tmp_path / "run.nc").names == ("Intercept", "I(age / 10)", "sigma")


def test_log_likelihoods_are_those_of_the_rows(run):
    tree = run.to_datatree(log_likelihood=True)
    rows = tree["log_likelihood"]["rows"]
    assert rows.shape == (4, 500, 240)
    assert rows["agent"].values.tolist() == [site for site in SITES for _ in range(80)]
    draw, frames = run.average[2, 7], study()
    stay = np.concatenate([frames[site]["stay"] for site in SITES])
    age, pain = (np.concatenate([frames[site][name] for site in SITES]) for name in ("age", "pain"))
    mean = draw[0] + draw[1] * age + draw[2] * (pain == "none") + draw[3] * (pain == "some")
    expected = -(((stay - mean) / draw[4]) ** 2) / 2.0 - np.log(draw[4]) - np.log(2.0 * np.pi) / 2.0
    np.testing.assert_allclose(rows[2, 7], expected, rtol=1e-10)
    found, own = arviz_stats.loo(tree), run.loo()
    np.testing.assert_allclose([found.elpd, found.p], [own.elpd, own.p], rtol=1e-6)
    # ArviZ 1 takes the variance of rows as that of a sample
    np.testing.assert_allclose(found.se, own.se, rtol=3e-3)


@pytest.mark.long
def test_log_likelihoods_that_there_are_not_are_refused(run, tmp_path):
    run.save(tmp_path / "run.nc")
    with pytest.raises(AttributeError, match="log_likelihood asks the agents, and this run knows none"):
        accord.Run.load(tmp_path / "run.nc").to_datatree(log_likelihood=True)
    post = accord.models.glm(study(), "stay ~ age + (1 | site)", "normal")
    mixed = accord.sample(post, accord.Network.ring(3), draws=50)
    with pytest.raises(ValueError, match="rows have no log likelihoods of their own: rows share latents"):
        mixed.to_datatree(log_likelihood=True)
    masked = accord.sample(
        accord.models.glm(study(), "stay ~ age", "normal"),
        accord.Network.ring(3),
        draws=50,
        engine=accord.engines.Local(masks=True),
    )
    with pytest.raises(AttributeError, match="masked"):
        masked.to_datatree(log_likelihood=True)
