"""Parameters with constraints: exact laws in the user's scale, evidence, files, errors."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import constraints
from scipy import special, stats

import accord
from accord.engines.fingerprint import fingerprint
from accord.samplers import GTBAOAB, ChEES, Importance

RING = accord.Network.ring(4)
COUNTS = np.random.default_rng(0).poisson(2.0, (4, 6)).astype(float)
LABELS = np.random.default_rng(1).choice(3, (4, 10), p=[0.2, 0.3, 0.5])


def rate_and_shares(**options):
    """A Poisson rate with a gamma prior, and a multinomial's shares with a Dirichlet prior, with known posteriors."""

    def likelihood(p, rows):
        counts, labels = rows["count"], rows["label"]
        rate = counts * jnp.log(p["rate"]) - p["rate"] - jax.scipy.special.gammaln(counts + 1.0)
        return rows["counted"] * rate + jnp.log(p["shares"])[labels] * (1.0 - rows["counted"])

    def prior(p):
        # gamma(2, 1) and Dirichlet(1, 1, 1), normalised
        return jnp.log(p["rate"]) - p["rate"] + jnp.log(2.0)

    shards = []
    for counts, labels in zip(COUNTS, LABELS, strict=True):
        rows = {"count": np.r_[counts, np.zeros(10)], "label": np.r_[np.zeros(6, int), labels]}
        shards.append({**rows, "counted": np.r_[np.ones(6), np.zeros(10)]})
    init = {"rate": 1.0, "shares": np.full(3, 1.0 / 3.0)}
    given = {"rate": "positive", "shares": constraints.simplex}
    return accord.Posterior(likelihood, prior, shards, init, constraints=given, **options)


def exact():
    """Means, sds and log evidence."""
    a, b = 2.0 + COUNTS.sum(), 1.0 + COUNTS.size
    counts = 1.0 + np.bincount(LABELS.ravel(), minlength=3)
    gamma, dirichlet = stats.gamma(a, scale=1.0 / b), stats.dirichlet(counts)
    rate = special.gammaln(a) - a * np.log(b) - special.gammaln(COUNTS + 1.0).sum()
    shares = np.sum(special.gammaln(counts)) - special.gammaln(counts.sum()) + np.log(2.0)
    mean, sd = np.r_[gamma.mean(), dirichlet.mean()], np.sqrt(np.r_[gamma.var(), dirichlet.var()])
    return mean, sd, rate + shares


@pytest.mark.long
def test_draws_are_in_the_users_scale_and_follow_the_exact_law(tmp_path):
    post = rate_and_shares()
    assert post.dim == 3 and post.names == ("rate", "shares[0]", "shares[1]", "shares[2]")
    assert post.unconstrained_names == ("rate", "shares[0]", "shares[1]")
    run = accord.sample(post, RING, Importance(), draws=2000)
    mean, sd, evidence = exact()
    assert run.draws.shape == (4, 2000, 4, 4) and (run.draws > 0).all()
    np.testing.assert_allclose(run.draws[..., 1:].sum(axis=-1), 1.0)
    error = 4.0 * sd / np.sqrt(run.points.effective)
    np.testing.assert_array_less(np.abs(run.points.mean - mean), error)
    np.testing.assert_allclose(run.points.sd, sd, rtol=0.06)
    assert abs(run.log_evidence[0] - evidence) < 4.0 * run.log_evidence[1]
    tree = run.to_datatree()
    assert tree["posterior"]["shares"].dims == ("chain", "draw", "shares_dim_0")
    assert tree["unconstrained_posterior"]["average"].shape == (4, 2000, 3)
    assert list(run.summary().index) == list(post.names)
    run.save(tmp_path / "run.nc")
    read = accord.Run.load(tmp_path / "run.nc")
    np.testing.assert_array_equal(read.draws, run.draws)
    np.testing.assert_array_equal(read.points.mean, run.points.mean)
    np.testing.assert_array_equal(read.unconstrained.kept, run.unconstrained.kept)
    assert read.unconstrained.names == run.unconstrained.names
    assert read.summary().equals(run.summary())


@pytest.mark.long
def test_computations_after_a_run_respect_constraints(tmp_path):
    post = rate_and_shares()
    run = accord.sample(post, RING, Importance(), draws=500)
    left, new = accord.leave_out(run, post, RING, 0), {0: rate_and_shares().shards[1]}
    counts, a = COUNTS[1:], 2.0 + COUNTS[1:].sum()
    assert abs(left.mean[0] - a / (1.0 + counts.size)) < 0.05
    more = accord.update(run, post, RING, new)
    expected = (2.0 + COUNTS.sum() + COUNTS[1].sum()) / (1.0 + COUNTS.size + 6)
    assert abs(more.draws[..., 0].mean() - expected) < 0.05
    np.testing.assert_allclose(more.draws[..., 1:].sum(axis=-1), 1.0)
    assert more.unconstrained.average.shape == (4, 500, 3)
    assert accord.loo(run, post, RING).elpd < 0
    run.save(tmp_path / "run.nc")
    loaded = accord.Run.load(tmp_path / "run.nc")
    np.testing.assert_allclose(accord.leave_out(loaded, post, RING, 0).mean, left.mean, rtol=1e-12)
    alone, again = (accord.alone(one, post, RING)[1].points for one in (run, loaded))
    np.testing.assert_allclose(again.mean, alone.mean, rtol=1e-9)
    np.testing.assert_allclose(alone.values[:, 1:].sum(axis=-1), 1.0)


@pytest.mark.parametrize("method", [ChEES(lockstep=64), pytest.param(GTBAOAB(), marks=pytest.mark.slow)])
@pytest.mark.long
def test_mcmc_methods_sample_unconstrained_numbers(method):
    run = accord.sample(rate_and_shares(), RING, method, draws=500, seed=1)
    mean, sd, _ = exact()
    np.testing.assert_array_less(np.abs(run.average.mean(axis=(0, 1)) - mean), 0.25 * sd)
    assert run.average.shape == (4, 500, 4) and (run.draws > 0).all()


@pytest.mark.long
def test_positions_map_to_parameters_and_fingerprints_differ():
    post = pickle.loads(pickle.dumps(rate_and_shares().potential.parameters))
    x = rate_and_shares().init
    assert post(x)["rate"] == 1.0
    np.testing.assert_allclose(rate_and_shares().unravel(x)["shares"], 1.0 / 3.0, rtol=1e-6)
    assert rate_and_shares().laplace().dim == 3
    other = accord.Posterior(
        lambda p, r: -0.5 * (r - p["a"]) ** 2,
        lambda p: 0.0 * p["a"],
        [np.ones(2)],
        {"a": 1.0},
        constraints={"a": "positive"},
    )
    free = accord.Posterior(lambda p, r: -0.5 * (r - p["a"]) ** 2, lambda p: 0.0 * p["a"], [np.ones(2)], {"a": 0.0})
    alone = accord.Network.empty(1)
    assert fingerprint(other, alone, None) != fingerprint(free, alone, None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"constraints": {"rat": "positive"}}, "unknown variable in constraints 'rat', did you mean 'rate'"),
        ({"constraints": {"rate": "positiv"}}, "unknown constraint of rate: 'positiv', did you mean 'positive'"),
        ({"constraints": {"rate": "interval"}}, "constraint of rate must be one of numpyro.* 'interval'"),
        ({"constraints": {"rate": constraints.positive_integer}}, "no continuous transform"),
        ({"constraints": {"rate": "simplex"}}, "init of rate .* which is not simplex"),
        ({"constraints": {"rate": constraints.interval(2.0, 3.0)}}, "init of rate is 1., which is not Interval"),
        ({"constraints": {"rate": constraints.interval(1.0, 3.0)}}, "on the boundary of Interval"),
        ({"constraints": {"rate": "positive"}, "quadratic": True}, "cannot have constraints"),
        ({"names": ["a", "b"]}, "names must be 1 different strings"),
    ],
)
def test_bad_constraints_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        accord.Posterior(
            lambda p, r: r * p["rate"], lambda p: -(p["rate"] ** 2), [np.ones(2)], {"rate": 1.0}, **options
        )
