"""`accord.sample`: draws, memory, options and errors."""

import signal
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tables import AGENTS, METHODS, MIXING_METHODS, NETWORKS, among, unequal_curvature, unequal_shards, walk

import accord
from accord.engines import local
from accord.samplers import (
    DADMMS,
    DESGHMC,
    DESGLD,
    DGLMC,
    DULA,
    EXTRASGLD,
    FALD,
    GCMC,
    GTBAOAB,
    GTDULA,
    DIGingSGLD,
    Gibbs,
    SplitGTBAOAB,
    StaleSGLD,
)
from accord.samplers.schedules import Polynomial
from accord.sampling.recorder import Recorder

RING = NETWORKS["ring"]


def logistic(agents=AGENTS, dim=3, seed=0, rows=12):
    rng = np.random.default_rng(seed)
    shards = []
    for agent in range(agents):
        X = rng.standard_normal((rows + 2 * agent, dim))
        shards.append((X, (X[:, 0] + 0.5 * rng.standard_normal(len(X)) > 0).astype(float)))
    return accord.models.logistic_regression(shards)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.long_from(3)
def test_draw_t_is_the_state_after_burn_in_and_thinning(method):
    post, sampler = unequal_shards(2), METHODS[method]()
    every = accord.sample(post, RING, accord.Rounds(sampler, burn_in=0), draws=20, chains=2, seed=3)
    some = accord.sample(post, RING, accord.Rounds(sampler, burn_in=5, thin=3), draws=4, chains=2, seed=3)
    np.testing.assert_array_equal(some.draws, every.draws[:, 7:17:3])
    np.testing.assert_allclose(every.average, every.draws.mean(axis=2), rtol=1e-5, atol=1e-6)


def test_draws_do_not_depend_on_chunks(monkeypatch):
    post = logistic()
    whole = accord.sample(post, RING, accord.Rounds(DESGLD(0.05, batch_size=3), burn_in=9), draws=50, chains=2, seed=1)
    monkeypatch.setattr(local.LocalEngine, "buffer_bytes", 1)
    pieces = accord.sample(post, RING, accord.Rounds(DESGLD(0.05, batch_size=3), burn_in=9), draws=50, chains=2, seed=1)
    np.testing.assert_array_equal(whole.draws, pieces.draws)


def test_more_chains_or_draws_leave_the_first_ones_alone():
    post = unequal_shards(2)
    few = accord.sample(post, RING, accord.Rounds(DESGLD(0.05), burn_in=2), draws=5, chains=2, seed=1)
    many = accord.sample(post, RING, accord.Rounds(DESGLD(0.05), burn_in=2), draws=9, chains=5, seed=1)
    np.testing.assert_allclose(few.draws, many.draws[:2, :5], rtol=1e-5, atol=1e-6)


def test_seeds_and_chains_differ():
    post = unequal_shards(2)
    runs = [
        accord.sample(post, RING, accord.Rounds(DESGLD(0.05), burn_in=0), draws=3, chains=2, seed=s)
        for s in (0, 1, 2**40)
    ]
    values = np.stack([run.draws[c] for run in runs for c in range(2)])
    assert len(np.unique(values[:, 0, 0, 0])) == 6


def test_keep_saves_memory_and_changes_nothing():
    post = unequal_shards(2)
    options = dict(draws=6, burn_in=1, chains=2, seed=4)
    everything = walk(post, RING, DESGLD(0.05), **options)
    some = walk(post, RING, DESGLD(0.05), keep=[4, 1], **options)
    none = walk(post, RING, DESGLD(0.05), keep="average", **options)
    np.testing.assert_array_equal(some.draws, everything.draws[:, :, [4, 1]])
    np.testing.assert_array_equal(none.average, everything.average)
    assert none.kept.size == 0
    with pytest.raises(AttributeError, match="kept only the average"):
        none.draws  # noqa: B018


@pytest.mark.parametrize("method", among(METHODS, "DESGHMC", "GTBAOAB", "DADMMS", "Gibbs", "DGLMC"))
@pytest.mark.long_from(3)
def test_one_compilation_serves_other_numbers(method):
    # no recompilation for another step, seed or number of draws
    post = unequal_shards(2)
    make = {
        "DESGLD": lambda s: DESGLD(0.01 * s),
        "DESGHMC": lambda s: DESGHMC(0.01 * s, 1.0),
        "DULA": lambda s: DULA(0.001 * s, 0.1),
        "GTDULA": lambda s: GTDULA(0.001 * s, 0.1, 0.1),
        "GTBAOAB": lambda s: GTBAOAB(0.01 * s, 1.0, mix_rounds=1),
        "SplitGTBAOAB": lambda s: SplitGTBAOAB(0.01 * s, 1.0, mix_rounds=1),
        "EXTRASGLD": lambda s: EXTRASGLD(0.01 * s, 0.1 * s),
        "DIGingSGLD": lambda s: DIGingSGLD(0.01 * s),
        "DADMMS": lambda s: DADMMS(float(s)),
        "Gibbs": lambda s: Gibbs(0.1 * s),
        "DGLMC": lambda s: DGLMC(0.1 * s, 0.01 * s, 2),
        "GCMC": lambda s: GCMC(0.1 * s, conditional="exact"),
        "StaleSGLD": lambda s: StaleSGLD(0.01 * s, 2),
        "FALD": lambda s: FALD(0.01 * s, 2),
    }[method]
    accord.sample(post, RING, accord.Rounds(make(1), burn_in=3), draws=5, chains=2, seed=0)
    before = local._record.of(2)._cache_size()
    accord.sample(post, RING, accord.Rounds(make(2), burn_in=8, thin=2), draws=11, chains=2, seed=7)
    assert local._record.of(2)._cache_size() == before


@pytest.mark.parametrize("method", among(METHODS, "DESGLD", "DADMMS"))
@pytest.mark.long_from(1)
def test_pytrees_are_flattened_in_the_order_of_names(method):
    # the same regression with its parameters as a vector and as a pytree
    rng = np.random.default_rng(0)
    shards = [(rng.standard_normal((4 + i, 3)), rng.standard_normal(4 + i)) for i in range(AGENTS)]

    def likelihood(params, rows):
        X, y = rows
        return -((y - params["intercept"] - X @ params["slopes"]["b"]) ** 2) / 2.0

    def prior(params):
        return -(params["intercept"] ** 2 + jnp.sum(params["slopes"]["b"] ** 2)) / 2.0

    tree = accord.Posterior(likelihood, prior, shards, {"slopes": {"b": np.zeros(3)}, "intercept": 0.0}, quadratic=True)
    assert tree.names == ("intercept", "slopes.b[0]", "slopes.b[1]", "slopes.b[2]")
    flat = accord.models.linear_regression([(np.c_[np.ones(len(y)), X], y) for X, y in shards], noise_scale=1.0)
    options = dict(draws=5, burn_in=3, chains=2, seed=1)
    sampler = _slow(METHODS[method]()) if method in MIXING_METHODS else METHODS[method]()
    np.testing.assert_allclose(
        walk(tree, RING, sampler, **options).draws,
        walk(flat, RING, sampler, **options).draws,
        rtol=2e-4,
        atol=1e-4,
    )


def _slow(sampler):
    import dataclasses

    return dataclasses.replace(sampler, step_size=sampler.step_size / 20)


@pytest.mark.parametrize("method", MIXING_METHODS)
@pytest.mark.long_from(2)
def test_minibatches_are_unbiased_and_scaled(method):
    # one round from one point: its mean over chains is the full gradient's round, its extra variance n_i^2 / b Var
    post, net = unequal_shards(1), accord.Network.empty(AGENTS)
    sampler = {
        "DESGLD": DESGLD(0.1, batch_size=2, temperature=0.0),
        "DESGHMC": DESGHMC(0.3, 0.5, batch_size=2, temperature=0.0),
        "DULA": DULA(0.1 / AGENTS, 0.1, batch_size=2, temperature=0.0),
        "GTDULA": GTDULA(0.1 / AGENTS, 0.1, 0.1, batch_size=2, temperature=0.0),
        "GTBAOAB": GTBAOAB(0.3, 1e-9, batch_size=2, temperature=0.0, mix_rounds=1),
        "EXTRASGLD": EXTRASGLD(0.1, batch_size=2, temperature=0.0),
        "DIGingSGLD": DIGingSGLD(0.1, batch_size=2, temperature=0.0),
    }[method]
    point = np.array([0.7])
    run = accord.sample(post, net, accord.Rounds(sampler, burn_in=0, init=point), draws=1, chains=40_000, seed=0)
    # two half steps of the position after a kick of N times the gradient
    step = {"DESGHMC": 0.3**2, "GTBAOAB": 0.3**2 * AGENTS}.get(method, 0.1)
    for i, (X, y) in enumerate(post.shards):
        n = len(y)
        per_row = -X[:, 0] * (y - X[:, 0] * point[0]) / 2.0**2
        gradient = per_row.sum() + point[0] / (10.0 * AGENTS)
        moved = (point[0] - run.draws[:, 0, i, 0].astype(np.float64)) / step
        variance = n**2 / 2 * per_row.var()
        assert abs(moved.mean() - gradient) < 5 * np.sqrt(variance / len(moved)) + 1e-4
        # the spread of a sample variance, from its fourth moment
        spread = np.sqrt(((moved - moved.mean()) ** 2).var() / len(moved))
        assert abs(moved.var() - variance) < 5 * spread + 1e-3


def test_a_divergence_error_has_agent_round_bound_and_draws():
    post = logistic()
    # a step far above the bound of the linearised problem, on a posterior that is not checked beforehand
    poisson = accord.models.poisson_regression([(X, np.round(np.abs(X[:, 0]) * 3)) for X, _ in post.shards])
    with pytest.raises(accord.DivergenceError, match=r"agent \d became non-finite in round \d+; DESGLD is stable") as e:
        accord.sample(
            poisson, RING, accord.Rounds(DESGLD(0.05, temperature=400.0), burn_in=0), draws=3000, chains=2, seed=0
        )
    error = e.value
    assert f"agent {error.agent} " in str(error)
    # the draws before the divergence equal the draws of a shorter run
    assert error.run.draws.shape[1] == error.round
    assert np.isfinite(error.run.draws).all()
    whole = accord.sample(
        poisson, RING, accord.Rounds(DESGLD(0.05, temperature=400.0), burn_in=0), draws=error.round, chains=2, seed=0
    )
    np.testing.assert_array_equal(whole.draws, error.run.draws)
    # no bound to exceed: the step is below it
    with pytest.raises(accord.DivergenceError, match="larger elsewhere.*a smaller step or more mix_rounds"):
        accord.sample(
            poisson, RING, accord.Rounds(DESGLD(0.005, temperature=4000.0), burn_in=0), draws=3000, chains=2, seed=0
        )


def test_a_divergence_error_without_a_bound_has_draws():
    # no curvature at init, so no bound of the step
    post = accord.models.power(np.zeros((4, 2)), 4.0)
    with pytest.raises(accord.DivergenceError, match=r"became non-finite in round \d+; \d+ draws before it") as e:
        accord.sample(
            post, accord.Network.ring(4), accord.Rounds(DESGLD(0.5, temperature=9.0), burn_in=0), draws=500, chains=1
        )
    assert e.value.run.draws.shape[1] == e.value.round


@pytest.mark.long
def test_a_divergence_of_a_chosen_step_names_other_methods():
    # the curvature across a parabola grows with the squared distance
    post = accord.Posterior(
        lambda p, y: -0.5 * (y - p["b"] - p["a"] ** 2) ** 2,
        lambda p: -0.5 * (p["a"] / 2.0) ** 2 - 0.5 * (p["b"] / 5.0) ** 2,
        [np.array([4.0, 3.0]), np.array([5.0, 3.5]), np.array([4.2, 4.1])],
        {"a": 0.5, "b": 0.0},
    )
    with pytest.raises(accord.DivergenceError, match=r"accord chose the step.*Importance\(\), ChEES\(\) or Repli"):
        accord.sample(post, accord.Network.ring(3), accord.Rounds(whiten=True), seed=2)


@pytest.mark.parametrize("thin", [1, 20, 33])
def test_chunks_grow_at_any_thinning(monkeypatch, thin):
    calls = []
    record = local.LocalEngine.record
    monkeypatch.setattr(local.LocalEngine, "record", lambda *arguments: calls.append(1) or record(*arguments))
    accord.sample(unequal_shards(1), RING, accord.Rounds(DESGLD(0.01), burn_in=0, thin=thin), draws=600, chains=1)
    assert len(calls) < 60


def test_a_custom_matrix_stays_sparse_and_has_a_short_repr():
    net = accord.Network.ring(100_000)
    sampler = DESGLD(0.1, mixing=net.weights("lazy"))
    assert len(repr(sampler)) < 300
    assert sampler == DESGLD(0.1, mixing=net.weights("lazy"))
    assert sampler != DESGLD(0.1, mixing=net.weights("metropolis"))
    assert abs(sampler.weights(net) - net.weights("lazy")).max() < 1e-12


def test_ctrl_c_keeps_the_draws(monkeypatch):
    post = unequal_shards(2)
    interrupt = threading.Timer(0.2, lambda: signal.raise_signal(signal.SIGINT))
    append = Recorder.append

    def appended(recorder, records, count):
        append(recorder, records, count)
        # wait for the first draw
        if interrupt.ident is None:
            interrupt.start()

    monkeypatch.setattr(Recorder, "append", appended)
    start = time.monotonic()
    with pytest.warns(UserWarning, match=r"interrupted: the run keeps the \d+ of 100000000 draws"):
        run = accord.sample(
            post, RING, accord.Rounds(DESGLD(0.05), burn_in=0), draws=100_000_000, chains=1, keep="average"
        )
    assert time.monotonic() - start < 60
    assert 0 < run.average.shape[1] < 100_000_000
    assert run.traffic.rounds == run.average.shape[1]


def test_traffic_counts_messages():
    post, net = unequal_shards(3), NETWORKS["star"]
    options = dict(draws=4, burn_in=2, thin=3, chains=2, seed=0)
    one = walk(post, net, DESGLD(0.01), **options).traffic
    assert (one.rounds, one.exchanges) == (14, 14)
    np.testing.assert_array_equal(one.bytes_sent, 14 * 3 * 4 * net.degrees)
    tracked = walk(post, net, GTDULA(0.001, 0.1, 0.1, mix_rounds=2), **options).traffic
    assert (tracked.rounds, tracked.exchanges) == (14, 28)
    np.testing.assert_array_equal(tracked.bytes_sent, 28 * 6 * 4 * net.degrees)


@pytest.mark.long
def test_a_ring_of_100_000_agents_is_built_and_runs():
    n = 100_000
    net = accord.Network.ring(n)
    post = accord.models.gaussian(np.zeros((n, 2)), np.broadcast_to(np.eye(2), (n, 2, 2)))
    run = accord.sample(post, net, accord.Rounds(DESGLD(0.1), burn_in=1), draws=2, chains=1, seed=0, keep=[0, n - 1])
    assert run.draws.shape == (1, 2, 2, 2)
    # mixed noise of three rounds: every agent has moved, but not far
    assert 0 < np.abs(run.draws).max() < 5


def test_double_precision_runs_and_agrees():
    post = unequal_shards(2)
    single = accord.sample(post, RING, accord.Rounds(METHODS["GTDULA"](), burn_in=0), draws=20, chains=2, seed=0)
    with jax.enable_x64(True):
        double = accord.sample(post, RING, accord.Rounds(METHODS["GTDULA"](), burn_in=0), draws=20, chains=2, seed=0)
    assert (single.draws.dtype, double.draws.dtype) == (np.float32, np.float64)
    np.testing.assert_allclose(single.draws, double.draws, rtol=1e-4, atol=1e-4)


def test_starts():
    post = unequal_curvature(2)
    options = dict(draws=1, burn_in=0, chains=3, seed=0)
    still = DESGLD(1e-12, temperature=0.0)
    net = accord.Network.empty(AGENTS)
    per_agent = np.arange(2.0 * AGENTS).reshape(AGENTS, 2)
    per_chain = np.arange(6.0 * AGENTS).reshape(3, AGENTS, 2)
    for init, expected in ((None, np.zeros(2)), (np.array([1.0, 2.0]), np.array([1.0, 2.0])), (per_agent, per_agent)):
        draws = walk(post, net, accord.Rounds(still, init=init), **options).draws[:, 0]
        np.testing.assert_allclose(draws, np.broadcast_to(expected, draws.shape), atol=1e-5)
    np.testing.assert_allclose(
        walk(post, net, accord.Rounds(still, init=per_chain), **options).draws[:, 0], per_chain, atol=1e-5
    )


class Undecorated(DESGLD):
    pass


def fit_errors():
    post, scalar = unequal_shards(2), unequal_curvature(2)
    apart = accord.Network.from_edges(AGENTS, [(0, 1), (2, 3), (3, 4), (4, 5)])
    ok = DESGLD(0.01)
    return [
        (post, accord.Network.ring(5), ok, {}, "network has 5 agents but the posterior has 6 shards"),
        (post, apart, ok, {}, "2 components"),
        (RING, post, ok, {}, "must be an accord.Posterior and the second .*, found Network and Posterior"),
        (post, RING, ok, {"checkpoint": ""}, "checkpoint is empty: name a folder, or omit it"),
        (post, RING, "DESGLD", {}, "method must be one from accord.samplers"),
        (post, RING, Undecorated(0.01), {}, "Undecorated must be decorated with @pytree"),
        (post, RING, ok, {"draws": 0}, "draws must be a whole number >= 1, found 0"),
        (post, RING, ok, {"draws": -3}, "draws must be a whole number >= 1, found -3"),
        (post, RING, ok, {"burn_in": -1}, "burn_in must be a whole number >= 0, found -1"),
        (post, RING, ok, {"thin": 0.5}, "thin must be a whole number >= 1, found 0.5"),
        (post, RING, ok, {"chains": 0}, "chains must be a whole number >= 1"),
        (post, RING, ok, {"seed": -1}, "seed must be a whole number from 0"),
        (post, RING, ok, {"engine": "locl"}, "did you mean 'local'"),
        (post, RING, ok, {"keep": "averag"}, "did you mean 'average'"),
        (post, RING, ok, {"keep": [0, 6]}, "agent numbers from 0 to 5"),
        (post, RING, ok, {"keep": [1, 1]}, "different agent numbers"),
        (post, RING, ok, {"keep": []}, "list of agent numbers"),
        (post, RING, ok, {"init": np.zeros(3)}, r"init must have shape \(dim,\) = \(2,\)"),
        (post, RING, ok, {"init": np.full(2, np.nan)}, "init must be finite"),
        (post, RING, ok, {"init": accord.Gaussian(np.zeros(3), np.eye(3))}, r"one Gaussian on R\^2"),
        (post, RING, ok, {"init": np.zeros((3, AGENTS, 2))}, r"must be \(4, 6, 2\)"),
        (post, RING, DESGLD(0.01, batch_size=3), {}, "smallest shard, 2 rows of agent 0; found 3"),
        (scalar, RING, DESGLD(0.01, batch_size=1), {}, "batch_size needs a log_likelihood that returns one number"),
        (post, RING, DESGLD(50.0), {}, "step_size 50 is not below .* the stability bound of DESGLD"),
        (post, RING, GTDULA(50.0, 0.1, 0.1), {}, "the stability bound of GTDULA"),
        (post, RING, DULA(0.001, 0.9), {}, r"consensus_step must be below 2 / lambda_max\(L\) = 0.5"),
        (post, RING, GTDULA(0.001, 0.1, 0.9), {}, r"tracking_step must be below 2 / lambda_max\(L\) = 0.5"),
        (post, RING, DESGLD(0.01, mixing="metroplis"), {}, "did you mean 'metropolis'"),
        (post, RING, DESGLD(0.01, mixing=np.ones((6, 6)) / 5), {}, "rows"),
        (post, RING, DESGLD(0.01, mixing=np.ones((6, 6)) / 6), {}, "must be zero between agents without an edge"),
        (post, RING, GTDULA(1e-4, 0.1, 0.4, mix_rounds=4), {}, "tracking_step must be below 0.1.* with mix_rounds=4"),
        (post, RING, ok, {"init": np.full(2, 1e39)}, "init is too large for the float width"),
        (post, RING, ok, {"draws": 10.0}, "draws must be a whole number >= 1, found 10.0"),
        (post, accord.Network.empty(AGENTS), DADMMS(1.0), {}, "needs a neighbour for every agent"),
    ]


@pytest.mark.parametrize("number", range(len(fit_errors())))
def test_bad_input_gets_one_clear_error(number):
    post, net, sampler, options, message = fit_errors()[number]
    with pytest.raises((ValueError, TypeError), match=message):
        walk(post, net, sampler, **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DESGLD(0.0), "step_size must be a finite number > 0, found 0"),
        (lambda: DESGLD(-1.0), "step_size must be a finite number > 0, found -1"),
        (lambda: DESGLD(float("nan")), "step_size must be a finite number > 0, found nan"),
        (lambda: DESGLD("small"), "step_size must be a number or a function of the round, found 'small'"),
        (lambda: DESGLD(lambda k: -1.0), "step_size at round 0 must be a finite number > 0"),
        (lambda: DESGLD(0.1, temperature=-1.0), "temperature must be a finite number >= 0, found -1"),
        (lambda: DESGLD(0.1, noise="comon"), "noise must be .* found 'comon'"),
        (lambda: DESGLD(0.1, batch_size=0), "batch_size must be a whole number >= 1, found 0"),
        (lambda: DESGLD(0.1, mix_rounds=1.5), "mix_rounds must be a whole number >= 1, found 1.5"),
        (lambda: DESGHMC(0.1, -1.0), "friction must be a finite number > 0"),
        (lambda: DESGHMC(0.5, 4.0), "step_size \\* friction must be < 2, found 2"),
        (lambda: DULA(0.1, 0.0), "consensus_step must be a finite number > 0"),
        (lambda: GTDULA(0.1, 0.1, -0.1), "tracking_step must be a finite number > 0"),
        (lambda: DADMMS(0.0), "rho must be a finite number > 0"),
        (lambda: DADMMS(1.0, calibration="right"), "calibration must be .* found 'right'"),
        (lambda: DADMMS(1.0, tolerance=0.0), "tolerance must be a finite number > 0"),
        (lambda: Polynomial(0.0, 1.0, 1.0), "a must be a finite number > 0"),
        (lambda: Polynomial(1.0, 0.0, 1.0), "b must be a finite number > 0"),
        (lambda: Polynomial(1.0, 1.0, -1.0), "chi must be a finite number >= 0"),
    ],
)
def test_bad_numbers_get_one_clear_error(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()
