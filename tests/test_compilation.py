"""Programs are compiled once: other numbers reuse compiled programs."""

import contextlib
import re

import jax
import jax.monitoring
import numpy as np
import pytest
from tables import NETWORKS, among, unequal_shards, walk

import accord
from accord.base.compiler import _VERSION, Program
from accord.engines.local import LocalEngine
from accord.samplers import DADMMS, DESGLD, DGLMC, DULA, GTDULA, Gibbs, HubSGLD, Replicated
from accord.samplers.schedules import Polynomial
from accord.sampling import chunks
from accord.tuning.impulse_response import respond

_compiled = []


def _listen(event, duration, fun_name="", **_):
    # event of every program, compiled or read from the cache on disk
    if event == "/jax/core/compile/backend_compile_duration":
        _compiled.append(fun_name)


jax.monitoring.register_event_duration_secs_listener(_listen)


@contextlib.contextmanager
def compiled():
    """The names of the programs that are compiled inside."""
    names, before = [], len(_compiled)
    yield names
    names += _compiled[before:]


@pytest.fixture(autouse=True, scope="module")
def fresh():
    # other tests of the same process may have left the very programs that are to be compiled here; these tests do not
    jax.clear_caches()


# for every form of inbox a method, of a step; several exchanges, whose polynomial depends on the consensus step
METHODS = {
    "mix": lambda h: GTDULA(h / 10, 1.5 * h, h, mix_rounds=3, batch_size=2),
    "mix by schedule": lambda h: DULA(Polynomial(h, 10.0, 0.6), Polynomial(2 * h, 2.0, 0.3)),
    "neighbour_sum": lambda h: DADMMS(1.0 / h, noise="common"),
    "mix by colour": lambda h: Gibbs(h, "mala"),
    "total": lambda h: DGLMC(4 * h, h / 3, (1, 3, 2, 4, 1, 2)),
    "visitor": lambda h: HubSGLD(h / 10, (1, 2, 1, 2, 1, 2), batch_size=2),
    "ask": lambda h: Replicated("mala", step_size=h, warmup=0),
}
STEP, OTHER = 0.1, 0.11


@pytest.mark.long
@pytest.mark.parametrize("inbox", among(METHODS, "mix", "neighbour_sum", "mix by colour", "total"))
def test_a_second_run_compiles_nothing(inbox, monkeypatch):
    net, start = NETWORKS["irregular"], accord.Gaussian([1.0, -1.0], np.eye(2))

    def run(step=STEP, data=0, **changes):
        options = dict(draws=12, burn_in=5, thin=1, chains=3, seed=0, init=start)
        with compiled() as names:
            walk(unequal_shards(2, seed=data), net, METHODS[inbox](step), **{**options, **changes})
        return names

    assert {"jit(start)", "jit(record)"} <= set(run())
    assert run(seed=2**40 + 1) == []
    assert run(step=OTHER) == []
    assert run(data=1) == []
    assert run(draws=40, burn_in=31, thin=3) == []
    assert run(init=accord.Gaussian([0.0, 2.0], 2.0 * np.eye(2))) == []
    # chunks of one round, and ever longer ones
    for seconds in (0.0, 1e9):
        monkeypatch.setattr(chunks, "_CHUNK_SECONDS", seconds)
        assert run(draws=200, burn_in=100) == []
    if inbox == "neighbour_sum":
        assert {"jit(start)", "jit(record)"} <= set(run(chains=4))


EXACT = {**METHODS, "mix by colour": lambda h: Gibbs(h)}


@pytest.mark.parametrize("inbox", ["mix", "neighbour_sum", "mix by colour", "total"])
@pytest.mark.long
def test_a_second_law_compiles_nothing(inbox):
    net = NETWORKS["irregular"]

    def look(step=STEP, data=0, dim=2):
        init = accord.Gaussian(np.ones(dim), (1.0 + data) * np.eye(dim))
        with compiled() as names:
            accord.law(unequal_shards(dim, seed=data), net, EXACT[inbox](step), init=init).at(20)
        return names

    assert "jit(_expansion)" in look()
    assert look(step=OTHER) == []
    assert look(data=1) == []
    if inbox == "mix":
        assert "jit(_expansion)" in look(dim=3)


def test_a_second_response_compiles_nothing():
    net = NETWORKS["irregular"]

    def look(step=STEP, data=0, rounds=2):
        sampler = GTDULA(step / 10, 1.5 * step, step, mix_rounds=rounds)
        with compiled() as names:
            respond(unequal_shards(2, seed=data), net, sampler)
        return names

    assert {"jit(_begin)", "jit(_go_on)"} <= set(look())
    assert look(step=OTHER) == []
    assert look(data=1) == []
    assert look(rounds=3) == []


MODELS = {
    "poisson": ("falls ~ age", "poisson"),
    "weibull": ("surv(time, event) ~ age", "weibull"),
    "effects of sites": ("falls ~ age + (1 | site)", "poisson"),
    "effects that are parameters": ("falls ~ age + (1 | site)", "poisson"),
}


@pytest.mark.parametrize("name", among(MODELS, "poisson", "effects of sites"))
def test_a_second_model_of_the_same_form_compiles_nothing(name):
    formula, family = MODELS[name]
    options = {"effects": "parameters"} if name == "effects that are parameters" else {}

    def draw(seed):
        rng, sites = np.random.default_rng(seed), {}
        for site in "abc":
            age, event = rng.normal(50.0, 9.0, 40), rng.integers(0, 2, 40)
            falls = rng.poisson(np.exp((age - 50.0) / 20.0))
            sites[site] = {"age": age, "falls": falls, "time": rng.exponential(size=40), "event": event}
        # other means, so that priors have other numbers too
        post = accord.models.glm(sites, formula, family, **options)
        return post.priors, accord.sample(post, accord.Network.ring(3), draws=50)

    priors, _ = draw(0)
    with compiled() as names:
        others, _ = draw(1)
    assert names == [] and repr(others) != repr(priors)


def numpyro_model(x, y):
    import numpyro
    from numpyro import distributions as dist

    slope, noise = numpyro.sample("slope", dist.Normal(0.0, 5.0)), numpyro.sample("noise", dist.HalfNormal(2.0))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("days", dist.Normal(slope * x, noise), obs=y)


def of_pymc(shards):
    import pymc as pm

    with pm.Model() as model:
        x, y = (pm.Data(name, np.zeros(1), dims="rows") for name in ("x", "y"))
        pm.Normal("days", pm.Normal("slope", 0.0, 5.0) * x, pm.HalfNormal("noise", 2.0), observed=y, dims="rows")
    return accord.from_pymc(model, shards)


BRIDGES = {"numpyro": lambda shards: accord.from_numpyro(numpyro_model, shards), "pymc": of_pymc}


@pytest.mark.long
@pytest.mark.parametrize("bridge", BRIDGES)
def test_a_model_of_another_library_compiles_nothing_for_other_rows(bridge):
    def draw(seed):
        rng = np.random.default_rng(seed)
        shards = [{"x": x, "y": 2.0 * x + rng.standard_normal(30)} for x in rng.standard_normal((3, 30))]
        return accord.sample(BRIDGES[bridge](shards), accord.Network.ring(3), draws=50).average

    first = draw(0)
    with compiled() as names:
        second = draw(1)
    assert names == [] and not np.array_equal(first, second)


def test_a_round_holds_its_noise_once():
    n = 2000
    post, net = accord.models.gaussian(np.zeros((n, 10)), np.tile(np.eye(10), (n, 1, 1))), accord.Network.ring(n)
    bound = DESGLD(1e-3).bind(post, net)
    engine = LocalEngine(post, net, bound, chains=1, seed=0, keep=np.arange(1))
    carry = engine.start(np.zeros((n, 10)), None)
    numbers = np.int32(1), np.int32(1), engine.keep
    program = engine.programs.record.lower(engine.problem, carry, *numbers, chains=1, capacity=1).compile()
    # that which is given, to its place in the loop, and none in the loop
    assert len(re.findall(rf"= c64\[1,{n * 5}\]\S* copy\(", program.as_text())) == 1
    # states before they take the place of those before, and the indices of neighbours and of numbers; jaxlib 0.12 holds
    # both twice
    most = (2 if _VERSION >= (0, 12) else 1) * sum(leaf.nbytes for leaf in jax.tree.leaves(carry))
    assert program.memory_analysis().temp_size_in_bytes < most


def test_wide_vectors_are_for_several_chains_on_processors(monkeypatch):
    program = Program(lambda x, times: times * x, static=("times",))
    alone, abreast = program.of(1), program.of(2)
    assert alone is not abreast and program.of(100) is abreast
    np.testing.assert_array_equal(abreast(np.arange(3.0), times=2), alone(np.arange(3.0), times=2))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert program.of(2) is alone
