"""Local latents: integrals and draws against closed forms, checks, refused input."""

import pickle
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray
from scipy import stats

import accord
from accord.engines.silo.latents import keep, prepare
from accord.examine.latents import LocalDraws
from accord.posterior.latents import Latents
from accord.posterior.local_draws import latents_of
from accord.posterior.potential import Potential
from accord.samplers import GTBAOAB, Importance

# rows of each agent, and their groups
GROUPS = [np.array([0, 0, 1, 2, 2, 2]), np.array([1, 0, 0, 1]), np.array([0])]
RNG = np.random.default_rng(0)
SHARDS = [(RNG.normal(1.0, 1.5, len(g)), RNG.normal(size=(len(g), 3)), g.astype(float)) for g in GROUPS]
NOISE = 0.7


def group(rows):
    return rows[2]


def linear(width, *, shards=SHARDS, group=group, noise=NOISE):
    """Normal rows with normal group effects along the first columns, with a known marginal likelihood."""

    def likelihood(p, latents, rows):
        y, X, _ = rows
        mean = p["mean"] + jnp.sum(latents["effect"] * X[:, :width], axis=1)
        return -0.5 * ((y - mean) / noise) ** 2 - jnp.log(noise * jnp.sqrt(2.0 * jnp.pi))

    def effects(p, latents, row):
        z = latents["effect"] / p["scale"]
        return -0.5 * jnp.sum(z**2) - width * jnp.log(p["scale"] * jnp.sqrt(2.0 * jnp.pi))

    local = accord.Local(effects, {"effect": np.zeros(width)}, group)
    init = {"mean": 0.0, "scale": 1.0}
    constraints = {"scale": "positive"}
    return accord.Posterior(likelihood, normal_prior, shards, init, constraints=constraints, local=local)


def normal_prior(p):
    return -0.5 * p["mean"] ** 2 - 0.5 * p["scale"] ** 2


def marginal(shard, mean, scale, width):
    """The distribution of an agent's responses."""
    _, X, g = shard
    same = g[:, None] == g
    cov = NOISE**2 * np.eye(len(g)) + same * scale**2 * (X[:, :width] @ X[:, :width].T)
    return stats.multivariate_normal(np.full(len(g), mean), cov)


def potential_at(post, mean, scale):
    x = np.array([mean, np.log(scale)])
    prior = float(normal_prior({"mean": mean, "scale": scale})) + np.log(scale)
    values = post.each(lambda potential, shard, x: -potential.value(shard, x), x)
    return values - prior / post.num_agents


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.long_from(1)
def test_quadrature_integrates_the_effects_out(width):
    post = linear(width)
    for mean, scale in [(0.0, 1.0), (1.3, 0.05), (-4.0, 3.0)]:
        exact = [marginal(shard, mean, scale, width).logpdf(shard[0]) for shard in SHARDS]
        np.testing.assert_allclose(potential_at(post, mean, scale), exact, rtol=1e-8)
    # padded to the longest shard, or alone
    alone = post.alone(1).each(lambda potential, shard, x: -potential.value(shard, x), np.array([0.3, 0.1]))
    whole = post.each(lambda potential, shard, x: -potential.value(shard, x), np.array([0.3, 0.1]))
    np.testing.assert_allclose(alone[0], whole[1], rtol=1e-9)


@pytest.mark.long
def test_derivatives_match_the_exact_integral():
    post, x = linear(1), np.array([0.4, 0.2])

    def exact(x):
        mean, scale = x[0], jnp.exp(x[1])
        found = normal_prior({"mean": mean, "scale": scale}) + x[1]
        for y, X, g in SHARDS:
            cov = NOISE**2 * np.eye(len(g)) + (g[:, None] == g) * scale**2 * np.outer(X[:, 0], X[:, 0])
            found += jax.scipy.stats.multivariate_normal.logpdf(y, jnp.full(len(g), mean), cov)
        return -found

    with jax.enable_x64(True):
        gradient, hessian = jax.grad(exact)(x), jax.hessian(exact)(x)
    np.testing.assert_allclose(post.gradients(x).sum(axis=0), gradient, rtol=1e-7)
    np.testing.assert_allclose(post.hessians(x).sum(axis=0), hessian, rtol=1e-6)


@pytest.mark.long
def test_importance_sampling_of_many_effects_is_unbiased_and_independent_across_positions():
    post = linear(3)
    scales = 1.0 + 1e-9 * np.arange(400)
    found = np.stack([potential_at(post, 0.5, scale) for scale in scales[:1]])
    x = np.stack([np.full(400, 0.5), np.log(scales)], axis=1)
    values = post.each(lambda potential, shard, x: jax.vmap(lambda x: potential.shard_log_likelihood(shard, x))(x), x)
    exact = np.array([marginal(shard, 0.5, 1.0, 3).logpdf(shard[0]) for shard in SHARDS])
    np.testing.assert_allclose(values[:, 0], found[0], rtol=1e-9)
    ratio = np.exp(values - exact[:, None])
    assert (ratio.std(axis=1) > 1e-3).all() and np.abs(np.corrcoef(ratio) - np.eye(3)).max() < 0.2
    error = ratio.std(axis=1) / np.sqrt(400)
    np.testing.assert_array_less(np.abs(ratio.mean(axis=1) - 1.0), 4.0 * error)


@pytest.mark.long
@pytest.mark.parametrize("width", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_effects_are_drawn_from_their_conditional_distribution(width):
    post = linear(width)
    positions = np.tile([0.5, np.log(1.2)], (4000, 1))
    for agent, (y, X, g) in enumerate(SHARDS):
        drawn = latents_of(post.alone(agent), positions[None], seed=1)["effect"][0]
        assert drawn.shape == (4000, g.max() + 1, width)
        for k in range(int(g.max()) + 1):
            own = X[g == k, :width]
            cov = np.linalg.inv(own.T @ own / NOISE**2 + np.eye(width) / 1.2**2)
            mean = cov @ own.T @ (y[g == k] - 0.5) / NOISE**2
            sd = np.sqrt(np.diag(cov))
            np.testing.assert_array_less(np.abs(drawn[:, k].mean(axis=0) - mean), 5.0 * sd / np.sqrt(4000))
            np.testing.assert_allclose(drawn[:, k].std(axis=0), sd, rtol=0.06)


def eight_schools():
    """Eight schools, each an agent with one centred effect. With effects as parameters it would be a funnel."""
    y, error = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
    local = accord.Local(
        lambda p, z, row: -0.5 * ((z["theta"] - p["mu"]) / p["tau"]) ** 2 - jnp.log(p["tau"]), {"theta": 0.0}
    )
    return accord.Posterior(
        lambda p, z, rows: -0.5 * ((rows[0] - z["theta"]) / rows[1]) ** 2,
        lambda p: -0.5 * (p["mu"] / 5.0) ** 2 - jnp.log1p((p["tau"] / 5.0) ** 2),
        [(y[i : i + 1], error[i : i + 1]) for i in range(8)],
        {"mu": 0.0, "tau": 1.0},
        constraints={"tau": "positive"},
        local=local,
    )


SCHOOLS, EIGHT = eight_schools(), accord.Network.ring(8)


@pytest.fixture(scope="module")
def schools():
    return accord.sample(SCHOOLS, EIGHT, Importance(), draws=1000)


@pytest.fixture(scope="module")
def local(schools):
    return accord.latents(schools, SCHOOLS, EIGHT)


@pytest.mark.long
def test_eight_schools_match_reference_draws(schools, local):
    # means and sds of posteriordb's reference draws
    reference = {"mu": (4.41, 3.31), "tau": (3.60, 3.20)}
    effects = [
        (6.15, 5.62),
        (4.94, 4.65),
        (3.91, 5.28),
        (4.80, 4.77),
        (3.61, 4.61),
        (4.05, 4.80),
        (6.32, 5.00),
        (4.88, 5.32),
    ]
    assert schools.certificate.holds and schools.certificate.checks[-1].name == "integration"
    for name, (mean, sd) in reference.items():
        own = schools.average[..., schools.names.index(name)]
        assert abs(own.mean() - mean) < 0.06 * sd and abs(own.std() / sd - 1.0) < 0.06
    assert len(local) == 8 and "theta" not in repr(local)
    for agent, (mean, sd) in enumerate(effects):
        theta = local[agent]["theta"]
        assert theta.shape == (4, 1000)
        assert abs(theta.mean() - mean) < 0.08 * sd and abs(theta.std() / sd - 1.0) < 0.06
    # effects belong to their draws: with a small tau, an effect is near the mean
    near = schools.average[..., 1] < 0.5
    assert np.abs(local[0]["theta"] - schools.average[..., 0])[near].mean() < 0.6


@pytest.mark.slow
def test_a_round_based_method_samples_the_marginal_posterior():
    post = linear(1)
    run = accord.sample(post, accord.Network.ring(3), GTBAOAB(), draws=500, seed=0)
    exact = accord.sample(post, accord.Network.ring(3), Importance(), draws=1000)
    assert abs(run.average[..., 0].mean() - exact.average[..., 0].mean()) < 0.2 * exact.average[..., 0].std()
    assert accord.latents(run, post, accord.Network.ring(3))[2]["effect"].shape == (4, 500, 1, 1)


@pytest.mark.long
def test_files_and_pickles_of_a_run_hold_no_latents(schools, local, tmp_path):
    drawn = [local[agent]["theta"] for agent in range(8)]
    schools.save(tmp_path / "run.nc")
    kept = [(tmp_path / "run.nc").read_bytes(), pickle.dumps(schools)]
    shown = f"{schools!r} {local!r} {schools.settings} {schools.to_datatree()}"

    def held(values):
        return [any(value.tobytes() in one for value in values.ravel()[:20]) for one in kept]

    # the search finds draws that are stored
    assert held(schools.average[..., 0]) == [True, True]
    for values in drawn:
        assert held(values) == [False, False]
        assert not any(f"{value:.6g}" in shown for value in values.ravel()[:20])
    assert "theta" not in shown
    # loaded runs draw the same latents again
    for run in (accord.Run.load(tmp_path / "run.nc"), pickle.loads(kept[1])):
        np.testing.assert_array_equal(accord.latents(run, SCHOOLS, EIGHT)[3]["theta"], drawn[3])


@pytest.mark.long
def test_more_draws_do_not_change_earlier_latents():
    post = linear(1).alone(1)
    positions = np.random.default_rng(0).standard_normal((2, 9, 2)) * 0.1
    for seed in (3, 2**64 - 1):
        more, fewer = (latents_of(post, own, seed)["effect"] for own in (positions, positions[:, :4]))
        np.testing.assert_allclose(more[:, :4], fewer, rtol=1e-12)
    # equal positions get different latents
    assert len(np.unique(latents_of(post, np.zeros((2, 9, 2)), 3)["effect"])) == 2 * 9 * 2


def test_each_process_has_the_latents_of_its_own_agents():
    found = LocalDraws(np.array([0, 2, 3]), range(2, 5), lambda agent: {"effect": np.full(1, agent)})
    assert list(found) == [2, 3] and len(found) == 2 and 0 not in found and found[3]["effect"] == 3
    with pytest.raises(KeyError, match=r"agent 0 are drawn in the process that has its data: this process .* \[2, 3\]"):
        found[0]
    with pytest.raises(KeyError, match=r"no draws of agent 4: the run kept agents \[0, 2, 3\]"):
        found[4]


@pytest.mark.long
def test_latents_files_are_readable_by_their_user_only(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    post, positions = linear(2).alone(1), np.full((2, 3, 2), 0.1)
    prepare("~/latents")
    keep(post, positions, 5, "~/latents", "one")
    path = tmp_path / "latents" / "one-agent-1" / "latents.nc"
    assert [one.stat().st_mode & 0o777 for one in (path, path.parent, path.parent.parent)] == [0o600, 0o700, 0o700]
    with xarray.open_datatree(path, engine="h5netcdf") as tree:
        assert tree["posterior"]["effect"].dims == ("chain", "draw", "effect_group", "effect_dim_0")
        np.testing.assert_array_equal(tree["posterior"]["effect"], latents_of(post, positions, 5)["effect"])
    # files are not overwritten, and another run has another file
    before = path.read_bytes()
    keep(post, positions + 1.0, 5, "~/latents", "one")
    keep(post, positions + 1.0, 5, "~/latents", "two")
    assert path.read_bytes() == before and len(list(path.parent.parent.iterdir())) == 2
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        prepare(str(tmp_path / "file"))
    with pytest.raises(ValueError, match="latents must be a folder that starts with / or ~, found 'here'"):
        accord.Silo(latents="here")


@pytest.mark.long
def test_latents_at_their_sites_raise_with_the_path(schools, tmp_path):
    there = replace(schools, settings={**schools.settings, "local": "~/a/r-agent-*/latents.nc"})
    there.save(tmp_path / "run.nc")
    for run in (there, accord.Run.load(tmp_path / "run.nc"), pickle.loads(pickle.dumps(there))):
        with pytest.raises(
            ValueError, match=r"in a file at its site, ~/a/r-agent-\*/latents\.nc, and never sends them"
        ):
            accord.latents(run, SCHOOLS, EIGHT)
    # updated draws have no latents files
    assert "local" not in accord.update(there, SCHOOLS, EIGHT, {}).settings


@pytest.mark.parametrize("name", ["chain", "a/b"])
def test_reserved_names_of_latents_are_refused(name):
    with pytest.raises(ValueError, match=f"the name '{name}' in init cannot be used"):
        Latents.of(accord.Local(lambda p, z, row: 0.0, {name: 0.0}))


@pytest.mark.long
@pytest.mark.parametrize("half", [3.0, 9.0])
def test_a_quadrature_error_warns(half):
    # a bimodal effect: if the modes are far apart, one lies beyond the last node
    def effects(p, latents, row):
        return jnp.logaddexp(-0.5 * (latents["z"] - half) ** 2, -0.5 * (latents["z"] + half + p["a"]) ** 2)

    post = accord.Posterior(
        lambda p, latents, rows: -0.5 * (rows - p["a"]) ** 2 + 0.0 * latents["z"],
        lambda p: -0.5 * p["a"] ** 2,
        [np.ones(3), np.ones(2)],
        {"a": 0.0},
        local=accord.Local(effects, {"z": 1.0}),
    )
    remedy = r"integrals over latents are off by .* post\.finely\(nodes=63\) or make them parameters"
    with pytest.warns(UserWarning, match=remedy):
        run = accord.sample(post, accord.Network.complete(2), Importance(), draws=100)
    assert not run.certificate.holds


def refused(**changes):
    given = {
        "log_likelihood": lambda p, latents, rows: -0.5 * (rows[0] - latents["z"]) ** 2,
        "log_prior": lambda p: -0.5 * p["a"] ** 2,
        "local_prior": lambda p, latents, row: -0.5 * latents["z"] ** 2,
        "group": lambda rows: rows[1],
        "groups": np.array([0, 1, 1]),
        **changes,
    }
    local = accord.Local(given["local_prior"], {"z": 0.0}, given["group"], given.get("constraints", {}))
    shards = [(np.arange(3.0), given["groups"])]
    return accord.Posterior(given["log_likelihood"], given["log_prior"], shards, {"a": 0.0}, local=local)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"groups": np.array([0, 2, 2])}, "without a gap: no row is in group 1, and some rows are in group 2"),
        ({"groups": np.array([0.0, 0.5, 1.0])}, "whole numbers from 0 on"),
        ({"groups": np.array([-1, 0, 1])}, "whole numbers from 0 on"),
        ({"group": lambda rows: 0.0}, r"one number per row, shape \(3,\)"),
        ({"local_prior": lambda p, z, row: jnp.zeros(2)}, r"log_prior of local must return one number.*\(2,\)"),
        (
            {"log_likelihood": lambda p, z, rows: jnp.sum(z["z"])},
            "with local, log_likelihood must return one number per row",
        ),
        ({"constraints": {"y": "positive"}}, "unknown variable in constraints 'y'"),
        ({"constraints": {"z": "positive"}}, "init of local of z is 0., on the boundary|which is not positive"),
    ],
)
def test_bad_local_declarations_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        refused(**changes)


def test_nodes_need_one_or_two_latents():
    assert linear(2).finely(nodes=20).latents.nodes == 20
    for post in (linear(3), accord.models.gaussian(np.zeros(3), np.ones(3))):
        with pytest.raises(ValueError, match="nodes needs a posterior with one or two latents per group"):
            post.finely(nodes=20)


def test_unsupported_uses_of_latents_are_refused(schools, local):
    post = linear(1)
    with pytest.raises(ValueError, match="batch_size needs a log_likelihood"):
        accord.sample(
            post, accord.Network.ring(3), accord.Rounds(accord.samplers.DESGLD(0.01, batch_size=1), burn_in=0), draws=5
        )
    with pytest.raises(ValueError, match="needs rows without shared latents"):
        accord.loo(schools, SCHOOLS, EIGHT)
    with pytest.raises(KeyError, match="no draws of agent 9"):
        local[9]
    post, ring = accord.models.gaussian(np.zeros(3), np.ones(3)), accord.Network.ring(3)
    run = accord.sample(post, ring, Importance(), draws=50)
    with pytest.raises(ValueError, match="made without local"):
        accord.latents(run, post, ring)
    none = replace(schools, agents=schools.agents[:0], kept=schools.kept[:, :, :0])
    with pytest.raises(ValueError, match="latents need draws of agents"):
        accord.latents(none, SCHOOLS, EIGHT)


STANDARD = accord.Local(lambda p, z, row: -0.5 * z["z"] ** 2, {"z": 0.0})


def rare(size, events, local=STANDARD):
    """Two sites with many rows and few events each, which carry as little information as few rows."""
    rows = [(np.r_[np.ones(events), np.zeros(size - events)],) for _ in range(2)]
    return accord.Posterior(
        lambda p, z, rows: rows[0] * (p["a"] + 3.0 * z["z"]) - jax.nn.softplus(p["a"] + 3.0 * z["z"]),
        lambda p: -0.5 * (p["a"] + 4.0) ** 2,
        rows,
        {"a": 0.0},
        local=local,
    )


def test_the_quadrature_error_is_the_difference_to_a_finer_quadrature():
    post, x = rare(300, 0), np.array([-1.0])
    found = post.each(Potential.quadrature_error, x)
    coarse, fine = (own.each(Potential.shard_log_likelihood, x) for own in (post, post.finely(60)))
    np.testing.assert_allclose(found, np.abs(coarse - fine), rtol=0.1)


@pytest.mark.slow
def test_large_groups_use_fewer_nodes_until_a_check_fails(tmp_path):
    assert [rare(size, 0).latents.nodes for size in (5, 20, 300)] == [15, 9, 7]
    assert rare(300, 0).finely().latents.nodes == 15 and rare(300, 0).is_coarse
    assert linear(2).latents.nodes == 9 and linear(3).latents.nodes == 0
    network = accord.Network.complete(2)
    run = accord.sample(rare(300, 0), network, Importance(), draws=200)
    fine = accord.sample(rare(300, 0).finely(), network, Importance(), draws=200)
    # seven nodes fail without events: the run repeats with more nodes, and counts both
    assert run.certificate.holds and run.traffic.sums > fine.traffic.sums
    np.testing.assert_array_equal(run.draws, fine.draws)
    assert run.settings["nodes"] == 15 and "nodes" not in fine.settings
    # later computations use the final number of nodes, also after loading
    run.save(tmp_path / "run.nc")
    for one in (run, accord.Run.load(tmp_path / "run.nc")):
        left = accord.leave_each_out(one, rare(300, 0), network)
        for own, expected in zip(left, accord.leave_each_out(fine, rare(300, 0).finely(), network), strict=True):
            assert own == expected if isinstance(own, str) else np.array_equal(own.weights, expected.weights)
    with pytest.raises(ValueError, match="the posterior is not the run's posterior: its log density"):
        accord.leave_each_out(fine, rare(300, 0), network)


@pytest.mark.long
def test_latents_in_units_far_apart_are_integrated_out():
    def effects(p, z, row):
        return -0.5 * ((z["a"] - 240.0) / 15.0) ** 2 - 0.5 * ((z["b"] - 6.0) / p["s"]) ** 2 - jnp.log(p["s"])

    post = accord.Posterior(
        lambda p, z, rows: -0.5 * (rows[1] - z["a"] - z["b"] * rows[0]) ** 2,
        lambda p: 0.0 * p["s"],
        [(np.arange(5.0) - 2.0, np.array([230.0, 238.0, 240.0, 250.0, 251.0]))],
        {"s": 1.0},
        constraints={"s": "positive"},
        local=accord.Local(effects, {"a": 0.0, "b": 0.0}),
    )
    x, y = post.shards[0]
    for log_s in (0.0, -9.0, -18.0):
        cov = np.eye(5) + 15.0**2 + np.exp(2.0 * log_s) * np.outer(x, x)
        exact = stats.multivariate_normal(240.0 + 6.0 * x, cov).logpdf(y)
        # constants that the functions omit
        exact += 2.5 * np.log(2.0 * np.pi) + np.log(15.0) + np.log(2.0 * np.pi)
        found = post.each(Potential.shard_log_likelihood, np.array([log_s]))
        np.testing.assert_allclose(found, exact, atol=1e-5)
        assert float(post.each(Potential.quadrature_error, np.array([log_s]))[0]) < 1e-5


def test_new_rows_of_a_site_with_latents_are_refused(schools):
    # new rows would count as another site
    with pytest.raises(ValueError, match="sum over rows, without latents of a site"):
        accord.update(schools, SCHOOLS, EIGHT, {0: (np.ones(2), np.ones(2))})
