"""What functions have from outside, and arrays as they lie there: a posterior is of what they were, or refused."""

import importlib
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial
from tables import walk

import accord
from accord.base.traced import digest
from accord.engines.build import build_problem
from accord.posterior.reference import nuts
from accord.storage.fingerprint import method_code

NET = accord.Network.ring(3)
ROWS = [np.random.default_rng(agent).standard_normal(6) for agent in range(3)]
METHODS = {"default": {}, "rounds": {"sampler": accord.samplers.DADMMS(10.0)}}
# what the functions below have from their module
VARIANCE = 1.0
SCALES = np.ones(2)


def log_likelihood(x, rows):
    return -0.5 * jnp.square(rows - x)


def far_away(x):
    """A prior that any change of its numbers moves by far."""
    return -0.5 * 1e4 * jnp.square(x - 1.0)


def by_module(x):
    return far_away(x) / VARIANCE


def by_array(x):
    return far_away(x) * SCALES[1]


# JAX keeps what it traced of these by themselves
@jax.jit
def jitted(x):
    return by_module(x)


def step(x, _):
    return x, by_module(x)


@jax.checkpoint
def saved(x):
    return by_module(x)


def by_parts(x):
    """A prior that has its number in the body of a loop, a branch and a part that is made again for its gradient."""
    looped = jax.lax.scan(step, jnp.asarray(x), length=1)[1][0]
    branched = jax.lax.cond(x < jnp.inf, by_module, jnp.negative, x)
    return (looped + branched + saved(x)) / 3.0


@dataclass
class Prior:
    """A function with an array, which Python cannot compare as one thing."""

    scales: Any

    def __call__(self, x):
        return far_away(x) * self.scales[1]

    def method(self, x):
        return self(x)


class Changes:
    """By name: a prior, and what makes its precision next to none."""

    def __init__(self, monkeypatch):
        self.patch = monkeypatch
        self.scale, self.object = 1.0, Prior(np.ones(2))

    def module(self):
        return by_module, lambda: self.patch.setattr(sys.modules[__name__], "VARIANCE", 1e6)

    def jitted(self):
        return jitted, self.module()[1]

    def within(self):
        return lambda x: 0.5 * jitted(x) + 0.5 * by_parts(x), self.module()[1]

    def array(self):
        # in place, by a patch that is undone
        self.patch.setattr(sys.modules[__name__], "SCALES", np.ones(2))
        return by_array, lambda: np.multiply(SCALES, 1e-6, out=SCALES)

    def closure(self):
        scale = 1.0

        def prior(x):
            return far_away(x) * scale

        def change():
            nonlocal scale
            scale = 1e-6

        return prior, change

    def attribute(self):
        return self.object, lambda: setattr(self.object, "scales", np.full(2, 1e-6))

    def method(self):
        return self.object.method, lambda: setattr(self.object, "scales", np.full(2, 1e-6))

    def partial(self):
        scales = np.ones(2)
        return partial(lambda scales, x: far_away(x) * scales[1], scales), lambda: np.multiply(scales, 1e-6, out=scales)


KINDS = ["module", "jitted", "within", "array", "closure", "attribute", "method", "partial"]


def mean(post, **options):
    return walk(post, NET, draws=200, seed=0, progress=False, **options).draws.mean()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.long_from(1)
def test_a_new_posterior_has_the_numbers_of_now(kind, method, monkeypatch):
    prior, change = getattr(Changes(monkeypatch), kind)()
    options = METHODS[method]
    assert abs(mean(accord.Posterior(log_likelihood, prior, ROWS, 0.0), **options) - 1.0) < 0.01
    change()
    # .005 of the prior is left, beside 18 rows
    expected = (np.sum(ROWS) + 0.01) / 18.01
    assert abs(mean(accord.Posterior(log_likelihood, prior, ROWS, 0.0), **options) - expected) < 0.1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.long_from(4)
def test_a_posterior_that_was_used_is_refused(kind, monkeypatch):
    prior, change = getattr(Changes(monkeypatch), kind)()
    post = accord.Posterior(log_likelihood, prior, ROWS, 0.0)
    # the next run of the same is none
    assert mean(post) == mean(post)
    change()
    for ask in (accord.sample, accord.plan):
        with pytest.raises(ValueError, match="log_prior is not what it was when this posterior was first used"):
            ask(post, NET)


def test_the_log_likelihood_and_latents_have_the_numbers_of_now():
    offset, spread = [0.0], [1.0]

    def shifted(x, rows):
        return log_likelihood(x + offset[0], rows)

    def with_latents(x, latents, rows):
        return log_likelihood(x + latents, rows)

    def log_prior(x, latent, row):
        return -0.5 * (latent / spread[0]) ** 2 - jnp.log(spread[0])

    def flat(x):
        return -0.5 * (x / 10.0) ** 2

    local = accord.Local(log_prior, init=0.0)
    cases = {
        "log_likelihood": (lambda: accord.Posterior(shifted, flat, ROWS, 0.0), offset),
        "log_prior of local": (lambda: accord.Posterior(with_latents, flat, ROWS, 0.0, local=local), spread),
    }
    for name, (made, number) in cases.items():
        post = made()
        before = post.logdensity(jnp.ones(1))
        number[0] += 2.0
        with pytest.raises(ValueError, match=f"{name} is not what it was"):
            post.require_unchanged()
        after = made()
        after.require_unchanged()
        assert abs(after.logdensity(jnp.ones(1)) - before) > 0.1


def test_arrays_that_change_in_place_are_found():
    def post(shards):
        found = accord.Posterior(lambda x, rows: log_likelihood(x, rows[0][:, 0] + rows[1]), far_away, shards, 0.0)
        found.require_unchanged()
        return found

    def shards():
        wide = np.random.default_rng(0).standard_normal((6, 8))
        # in either order of memory, and in none
        return [(np.asarray(wide[:, ::2], order=order), rows.copy()) for order, rows in zip("CFA", ROWS, strict=True)]

    for agent in range(3):
        for part in range(2):
            given = shards()
            found = post(given)
            given[agent][part][3] += 1e-9
            with pytest.raises(ValueError, match=f"shard of agent {agent} was changed in place"):
                accord.sample(found, NET)
            post(given)
            # and what is said of one agent alone, as it was read before
            own = found.alone(agent)
            own.gradients(np.zeros(1))
            with pytest.raises(ValueError, match="was changed in place"):
                own.require_unchanged()
            other = found.alone((agent + 1) % 3)
            other.gradients(np.zeros(1))
            other.require_unchanged()


def test_arrays_of_a_view():
    whole = np.arange(12.0)
    post = accord.Posterior(log_likelihood, far_away, [whole[::2], whole[1::2]], 0.0)
    whole[11] = 5.0
    with pytest.raises(ValueError, match="shard of agent 1 was changed"):
        post.require_unchanged()


def test_files_that_are_written_are_found(tmp_path):
    np.save(tmp_path / "rows.npy", np.arange(6.0))
    np.savez(tmp_path / "rows.npz", rows=np.arange(6.0))

    def log_likelihood_of(x, rows):
        return log_likelihood(x, rows["rows"])

    def mapped():
        return {"rows": np.load(tmp_path / "rows.npy", mmap_mode="r")}

    def write_in_place():
        rows = np.load(tmp_path / "rows.npy", mmap_mode="r+")
        rows[0] += 1.0
        rows.flush()

    writes = [write_in_place, lambda: np.savez(tmp_path / "rows.npz", rows=np.arange(1.0, 7.0)), lambda: None]
    for write, refused in zip(writes, (0, 1, None), strict=True):
        post = accord.Posterior(log_likelihood_of, far_away, [mapped(), tmp_path / "rows.npz"], 0.0)
        assert post.mode().shape == (1,)
        # clocks of files may go in steps of some milliseconds
        time.sleep(0.05)
        write()
        if refused is None:
            post.require_unchanged()
        else:
            with pytest.raises(
                ValueError, match=f"the shard of agent {refused} was changed .* or its file was written"
            ):
                post.mode()
    (tmp_path / "rows.npz").unlink()
    with pytest.raises(ValueError, match="the shard of agent 1 was changed"):
        post.require_unchanged()


def test_whoever_asks_is_refused():
    offset = [0.0]

    def shifted(x, rows):
        return log_likelihood(x + offset[0], rows)

    post = accord.Posterior(shifted, lambda x: -0.5 * x**2, ROWS, 0.0)
    run = accord.sample(post, NET, draws=200, seed=0)
    left_out = accord.loo(run, post, NET).elpd
    offset[0] = 1.0
    asks = {
        "mode": post.mode,
        "laplace": post.laplace,
        "leave_out": lambda: accord.leave_out(run, post, NET, 1),
        "loo": lambda: accord.loo(run, post, NET),
        "consensus": lambda: accord.samplers.combine.consensus(post, draws=20, warmup=20),
        "bfi": lambda: accord.samplers.combine.bfi(post, draws=20),
        "nuts": lambda: nuts(post, draws=20, warmup=20),
    }
    for ask in asks.values():
        with pytest.raises(ValueError, match="log_likelihood is not what it was"):
            ask()
    offset[0] = 0.0
    assert accord.loo(run, post, NET).elpd == left_out


def test_looking_reads_no_data():
    reads = []

    def rows(agent):
        reads.append(agent)
        return ROWS[agent]

    post = accord.Posterior(log_likelihood, far_away, [partial(rows, agent) for agent in range(3)], 0.0)
    post.alone(1).gradients(np.zeros(1))
    post.require_unchanged()
    assert reads == [1]
    mean(post)
    post.require_unchanged()
    assert sorted(reads) == [0, 1, 1, 2]


def test_other_rows_are_of_the_same_functions():
    first = accord.Posterior(log_likelihood, far_away, ROWS, 0.0)
    other = accord.Posterior(log_likelihood, far_away, [np.arange(9.0), np.arange(1.0), np.arange(4.0)], 0.0)
    assert first.digests() == other.digests()
    assert jax.tree.structure(first.potential) == jax.tree.structure(other.potential)
    bound = [accord.Posterior(log_likelihood, Partial(_scaled, scale), ROWS, 0.0) for scale in (1.0, 2.0)]
    assert bound[0].digests() == bound[1].digests()


def _scaled(scale, x):
    return far_away(x) * scale


def test_groups_are_those_of_now():
    split = [2]

    def group(rows):
        return (np.arange(len(rows)) >= split[0]).astype(int)

    def made():
        local = accord.Local(lambda x, latent, row: -0.5 * latent**2, init=0.0, group=group)
        return accord.Posterior(
            lambda x, latent, rows: log_likelihood(x + latent, rows), far_away, ROWS, 0.0, local=local
        )

    post = made()
    before = post.logdensity(jnp.zeros(1))
    post.require_unchanged()
    split[0] = 4
    with pytest.raises(ValueError, match="group of local numbers the rows of agent 0 otherwise"):
        accord.sample(post, NET)
    assert abs(made().logdensity(jnp.zeros(1)) - before) > 0.01


def test_every_digit_counts():
    def offset(by):
        return Partial(lambda x: jnp.sum(x - by))

    x = np.zeros(2)
    # in single precision these are one number
    for one, other in [(1.6e9, 1.6e9 + 1.0), (np.full(2, 1.0), np.full(2, 1.0 + 1e-12)), (np.zeros(3), np.zeros(4))]:
        found = [digest(Partial(jnp.add), x, 1.0), digest(offset(0.0), x)]
        if np.shape(one) in ((), (2,)):
            found += [digest(offset(one), x), digest(offset(other), x)]
        else:
            found += [digest(Partial(lambda x, a=a: jnp.sum(x) + a.sum()), x) for a in (one, other + 1.0)]
        assert len(set(found)) == 4
    # deep inside of what is traced
    inner = [
        digest(Partial(lambda x, a=a: jax.lax.scan(lambda c, _: (c + a @ x, None), 0.0, length=3)[0]), x)
        for a in (np.arange(2.0), np.arange(2.0) + 1e-12)
    ]
    assert inner[0] != inner[1]


@pytest.mark.long
def test_functions_of_one_float_width_are_traced_in_it():
    def single(x):
        return jax.lax.fori_loop(0, 3, lambda i, c: c + x, jnp.float32(0.0))

    with pytest.raises(TypeError, match="carry"), jax.enable_x64(True):
        jax.make_jaxpr(single)(np.zeros(()))
    assert digest(Partial(single), np.zeros(())) == digest(Partial(single), np.ones(()))


@pytest.mark.long
def test_schedules_of_steps_and_of_links_have_the_numbers_of_now():
    step, up = [0.05], [True]

    def schedule(k):
        return step[0] + 0.0 * k

    def links(k):
        return jnp.full(3, up[0])

    def spread(method, net):
        return accord.sample(
            posterior, net, accord.Rounds(method, burn_in=5, thin=1, whiten=False), draws=20, seed=0
        ).draws.std()

    posterior = accord.Posterior(log_likelihood, lambda x: -0.5 * x**2, ROWS, 0.0)
    method = accord.samplers.DESGLD(schedule)
    wide = spread(method, NET)
    step[0] = 1e-6
    for ask in (accord.sample, accord.plan):
        with pytest.raises(ValueError, match="step_size of DESGLD is not what it was when it was given"):
            ask(posterior, NET, method if ask is accord.sample else [method])
    assert spread(accord.samplers.DESGLD(schedule), NET) < 0.1 * wide
    step[0] = 0.05
    assert spread(method, NET) == wide
    joined = NET.links(schedule=links)
    apart = spread(method, joined)
    up[0] = False
    with pytest.raises(ValueError, match="the schedule of the links is not what it was"):
        spread(method, joined)
    # not one round has an edge then, which is refused for its own sake
    with pytest.raises(ValueError, match="not connected|joined|never"):
        spread(method, NET.links(schedule=links))
    up[0] = True
    assert spread(method, NET.links(schedule=links)) == apart


METHOD = """
import jax.numpy as jnp
from accord.samplers import DESGLD
from accord.samplers.protocol import pytree
HEAT = {heat}

def helper(x):
    return {times} * x

@pytree
class Heated(DESGLD):
    FACTORS = ({factor}, 2.0)

    def update(self, agent, state, inbox, noise):
        \"\"\"{text}\"\"\"
        new = super().update(agent, state, inbox, noise)
        return new._replace(position=HEAT * self.FACTORS[0] * helper(new.position))
"""


def made(heat=1.0, times=1.0, factor=1.0, text="Step."):
    """The class of a module of such text, as where its file was edited."""
    content = {"__name__": "heated"}
    exec(compile(METHOD.format(heat=heat, times=times, factor=factor, text=text), "heated.py", "exec"), content)
    return content["Heated"]


# a number of the module, of a function of it, and of the class
EDITED = ({"heat": 1.5}, {"times": 1.5}, {"factor": 1.5})


def test_edited_methods_are_others():
    codes = [method_code(made(**changes)(0.05)) for changes in ({}, *EDITED, {}, {"text": "A step."})]
    assert codes[0] == codes[-2] == codes[-1] and len(set(codes)) == 1 + len(EDITED)
    assert method_code(accord.samplers.DESGLD(0.05)) == method_code(accord.samplers.DADMMS(1.0)) == ""
    # in one process, of one class
    method = made()
    options = dict(draws=20, burn_in=5, thin=1, seed=0, whiten=False)
    post = accord.Posterior(log_likelihood, lambda x: -0.5 * x**2, ROWS, 0.0)
    before = walk(post, NET, method(0.05), **options)
    method.update.__globals__["HEAT"] = 0.0
    assert walk(post, NET, method(0.05), **options).draws.std() == 0.0
    method.update.__globals__["HEAT"] = 1.0
    np.testing.assert_array_equal(walk(post, NET, method(0.05), **options).draws, before.draws)


HELPERS = """
import jax
class Settings:
    factor = {factor}
    def times(self, x):
        return self.factor * x
class Offered(Settings):
    pass
class Slotted:
    __slots__ = ("factor",)
    def __call__(self, x):
        return self.factor * x
FACTOR = {factor}
@jax.jit
def times(x):
    return FACTOR * x
@jax.jit
def hidden(x):
    return globals()["FACTOR"] * x
"""
# how a method reaches the number, and whether by calling what is there
REACHED = {
    "helpers.FACTOR": "helpers.FACTOR * x",
    "a function of a module": "helpers.times(x)",
    "a class": "helpers.Settings.factor * x",
    "a class' base": "helpers.Offered.factor * x",
    "an object": "helpers.Settings().times(x)",
    "an object of its module": "SETTINGS.times(x)",
    "a namespace": "SPACE.inner.factor * x",
    "a dictionary of functions": "FUNCTIONS['times'](x)",
    "an object with slots": "SLOTTED(x)",
    "a queue": "QUEUE[0] * x",
    "a text in what is jitted": "helpers.hidden(x)",
    "a text": "globals()['NUMBER'] * x",
}


def reaching(how, factor, path, monkeypatch):
    """A method whose position is times a number that it reaches so, of a module of its own beside it."""
    (path / "helpers.py").write_text(HELPERS.format(factor=factor))
    monkeypatch.syspath_prepend(path)
    monkeypatch.delitem(sys.modules, "helpers", raising=False)
    importlib.invalidate_caches()
    text = METHOD.format(heat=1.0, times=1.0, factor=1.0, text="Step.").replace(
        "return 1.0 * x", f"return {REACHED[how]}"
    )
    begin = f"""
import helpers
from collections import deque
from types import SimpleNamespace
SETTINGS = helpers.Settings()
SPACE = SimpleNamespace(inner=SimpleNamespace(factor={factor}), own=None)
SPACE.own = SPACE
FUNCTIONS = {{"times": helpers.times}}
SLOTTED = helpers.Slotted()
SLOTTED.factor = NUMBER = {factor}
QUEUE = deque([NUMBER])
"""
    content = {"__name__": "heated"}
    exec(compile(begin + text, str(path / "heated.py"), "exec"), content)
    return content["Heated"], content


@pytest.mark.parametrize("how", REACHED)
@pytest.mark.long_from(1)
def test_methods_are_others_by_what_they_reach_through_modules_classes_and_objects(how, tmp_path, monkeypatch):
    # files of one length, written within a second, would be taken for the same
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    gaussian = accord.models.gaussian(np.zeros(3), np.ones(3))

    def code(method):
        return build_problem(gaussian, NET, method.bind(gaussian, NET), 0).code

    (one, _), (two, _), (again, content) = (reaching(how, f, tmp_path, monkeypatch) for f in (1.0, 0.0, 1.0))
    assert code(one(0.05)) == code(again(0.05)) != code(two(0.05))
    # in one process, of one class
    options = dict(draws=20, burn_in=5, thin=1, seed=0, whiten=False)
    post = accord.Posterior(log_likelihood, lambda x: -0.5 * x**2, ROWS, 0.0)
    before = walk(post, NET, again(0.05), **options).draws
    law = accord.law(gaussian, NET, again(0.05)).stationary().average.sd
    helpers = content["helpers"]
    helpers.FACTOR = helpers.Settings.factor = content["SPACE"].inner.factor = content["SLOTTED"].factor = 0.0
    content["QUEUE"][0] = content["NUMBER"] = 0.0
    assert before.std() > 0.0 == walk(post, NET, again(0.05), **options).draws.std()
    assert law > 0.0 == accord.law(gaussian, NET, again(0.05)).stationary().average.sd


def test_a_run_is_not_taken_up_by_an_edited_method(tmp_path):
    post = accord.Posterior(log_likelihood, lambda x: -0.5 * x**2, ROWS, 0.0)

    def run(draws, **changes):
        options = dict(burn_in=5, thin=1, seed=0, whiten=False, checkpoint=tmp_path)
        return walk(post, NET, made(**changes)(0.05), draws=draws, **options)

    before = run(10)
    for changes in EDITED:
        with pytest.raises(ValueError, match=r"another run \(this one and that: method Heated"):
            run(20, **changes)
    np.testing.assert_array_equal(run(20).draws[:, :10], before.draws)


@pytest.mark.parametrize("how", ["helpers.FACTOR", "an object with slots"])
@pytest.mark.long_from(1)
def test_a_run_is_not_taken_up_by_a_method_that_reaches_another_number(how, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    post = accord.Posterior(log_likelihood, lambda x: -0.5 * x**2, ROWS, 0.0)

    def run(draws, factor):
        method, _ = reaching(how, factor, tmp_path, monkeypatch)
        options = dict(burn_in=5, thin=1, seed=0, whiten=False, checkpoint=tmp_path / "kept")
        return walk(post, NET, method(0.05), draws=draws, **options)

    before = run(10, 1.0)
    with pytest.raises(ValueError, match=r"another run|the method, or a number that it has from outside, is not what"):
        run(20, 0.5)
    np.testing.assert_array_equal(run(20, 1.0).draws[:, :10], before.draws)


SCRIPT = """
import jax, numpy as np
from test_traced import *
from accord.storage.fingerprint import fingerprint
class Holder:
    def prior(self, x):
        return -jax.nn.softplus(x).sum() + jax.nn.relu(x).sum() + jax.random.uniform(KEY)
KEY = jax.random.key(3)
post = accord.Posterior(log_likelihood, Holder().prior, ROWS, 0.0)
print(sorted(post.digests().items()), method_code(made()(0.05)))
print(fingerprint(post, NET, made()(lambda k: 0.1 / (1 + k))))
"""


@pytest.mark.long
def test_digests_are_the_same_in_every_process():
    found = set()
    for seed in "01":
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.path.dirname(__file__)}
        # addresses are others where other things are in memory
        script = f"kept = [object() for _ in range({seed} * 10_000)]\n{SCRIPT}"
        found.add(subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, check=True).stdout)
    assert len(found) == 1 and found.pop().startswith(b"[('log_likelihood'")


CHANGES = {
    "rows": ({"shards": [*ROWS[:2], ROWS[2] + 1e-9]}, "the data of some of 3 agents is not what it was"),
    "likelihood": ({"offset": 1e-9}, "a function of the posterior, or a number"),
    "prior": ({"scale": 1.0 + 1e-12}, "belongs to another run .*log prior .*log_prior"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.long
def test_a_run_is_not_taken_up_with_others(change, tmp_path):
    def run(draws, shards=ROWS, offset=0.0, scale=1.0):
        def shifted(x, rows):
            return log_likelihood(x + offset, rows)

        def log_prior(x):
            return scale * far_away(x)

        post = accord.Posterior(shifted, log_prior, shards, 0.0)
        options = dict(burn_in=20, thin=1, seed=0, checkpoint=tmp_path)
        return walk(post, NET, accord.samplers.DADMMS(10.0), draws=draws, **options)

    before = run(10)
    changed, told = CHANGES[change]
    with pytest.raises(ValueError, match=told):
        run(20, **changed)
    np.testing.assert_array_equal(run(20).draws[:, :10], before.draws)
