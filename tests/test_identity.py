"""What a posterior, a method and a checkpoint are recognised by: the values of functions and rows, never their code."""

import json
import sys
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial
from tables import walk
from test_compilation import compiled

import accord
from accord.base.errors import DataError
from accord.engines import behaviour
from accord.engines.behaviour import require_same_posterior
from accord.posterior.reference import nuts
from accord.samplers import DESGLD

NET = accord.Network.ring(3)
ROWS = [np.random.default_rng(agent).standard_normal(6) for agent in range(3)]
METHODS = {"default": {}, "rounds": {"method": accord.samplers.DADMMS(10.0)}}
# a module's variables, which functions below read
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
        self.object = Prior(np.ones(2))

    def module(self):
        return by_module, lambda: self.patch.setattr(sys.modules[__name__], "VARIANCE", 1e6)

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


KINDS = ["module", "array", "closure", "attribute", "method", "partial"]


def mean(post, **options):
    return walk(post, NET, draws=200, seed=0, progress=False, **options).draws.mean()


# --- in a process ---


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
    cases = (
        (lambda: accord.Posterior(shifted, flat, ROWS, 0.0), offset),
        (lambda: accord.Posterior(with_latents, flat, ROWS, 0.0, local=local), spread),
    )
    for made, number in cases:
        before = made().logdensity(jnp.ones(1))
        number[0] += 2.0
        assert abs(made().logdensity(jnp.ones(1)) - before) > 0.1


def test_posteriors_made_of_one_posterior_share_its_programs():
    def look(post):
        with compiled() as names:
            post.gradients(np.zeros(1))
        return names

    post = accord.Posterior(log_likelihood, far_away, ROWS, 0.0)
    assert look(post) != []
    place = accord.posterior.coordinates.Coordinates(np.ones(1), np.eye(1))
    others = [
        post.with_shards([rows + 1.0 for rows in ROWS]),
        post.reading(ROWS),
        post.transformed(place).in_parameters(),
    ]
    assert [look(other) for other in others] == [[], [], []]
    # functions that are given anew may have other numbers, bound numbers are arguments
    assert look(accord.Posterior(log_likelihood, far_away, ROWS, 0.0)) != []
    bound = [accord.Posterior(Partial(log_likelihood), Partial(_scaled, scale), ROWS, 0.0) for scale in (1.0, 2.0)]
    assert look(bound[0]) != [] and look(bound[1]) == []


def _scaled(scale, x):
    return far_away(x) * scale


def test_a_method_and_links_have_the_numbers_of_now():
    step, turn = [0.05], [0]

    def schedule(k):
        return step[0] + 0.0 * k

    def links(k):
        return (k + turn[0]) % 3 != jnp.arange(3)

    def draws(net=NET, step_size=0.05):
        return walk(post, net, DESGLD(step_size), burn_in=5, thin=1, whiten=False, draws=20, seed=0).draws

    post = accord.Posterior(log_likelihood, lambda x: -0.5 * x**2, ROWS, 0.0)
    wide, joined = draws(step_size=schedule).std(), draws(NET.links(schedule=links))
    turn[0] = 1
    assert np.abs(draws(NET.links(schedule=links)) - joined).max() > 1e-3
    step[0] = 1e-6
    assert draws(step_size=schedule).std() < 0.1 * wide


def test_arrays_that_functions_close_over_are_right_in_both_float_widths():
    center, steps = np.array([0.25, 0.5]), np.array([0.01, 0.02])
    post = accord.Posterior(log_likelihood, lambda x: -0.5 * jnp.sum((x - center) ** 2), ROWS, 0.0)
    method = accord.Rounds(DESGLD(lambda k: jnp.sum(steps * 0.5)), burn_in=5, thin=1)
    for width, walks in ((np.float32, True), (np.float64, False)) * 2:
        run = accord.sample(post, NET, method if walks else None, draws=20, seed=0)
        assert run.draws.dtype == width
    expected = (np.sum(ROWS) + center.sum()) / 20.0
    np.testing.assert_allclose(run.points.mean, expected, atol=0.01)


METHOD = """
import jax.numpy as jnp
from accord.samplers import DESGLD
from accord.samplers.protocol import pytree
HEAT = {heat}

def helper(x):
    return {times} * x

@pytree
class Heated(DESGLD):
    def update(self, agent, state, inbox, noise):
        new = super().update(agent, state, inbox, noise)
        return new._replace(position=HEAT * helper(new.position))
"""


def heated(heat=1.0, times=1.0):
    """The class of a module of such text, as of a notebook's cell that is run again."""
    content = {"__name__": "heated"}
    exec(compile(METHOD.format(heat=heat, times=times), "heated.py", "exec"), content)
    return content["Heated"]


def test_a_class_that_is_defined_again_is_another_method():
    post = accord.Posterior(log_likelihood, lambda x: -0.5 * x**2, ROWS, 0.0)

    def draws(method):
        return walk(post, NET, method, draws=20, burn_in=5, thin=1, seed=0, whiten=False).draws

    before = draws(DESGLD(0.05))
    np.testing.assert_array_equal(draws(heated()(0.05)), before)
    assert draws(heated(heat=0.0)(0.05)).std() == draws(heated(times=0.0)(0.05)).std() == 0.0 < before.std()


# --- rows that change under a posterior ---


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
            # and results for one agent, from earlier reads
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
    shards = [rows.copy() for rows in ROWS]
    post = accord.Posterior(log_likelihood, lambda x: -0.5 * x**2, shards, 0.0)
    run = accord.sample(post, NET, draws=200, seed=0)
    left_out = accord.loo(run, post, NET).elpd
    shards[1][0] += 1.0
    asks = {
        "sample": lambda: accord.sample(post, NET),
        "plan": lambda: accord.plan(post, NET),
        "mode": post.mode,
        "laplace": post.laplace,
        "leave_out": lambda: accord.leave_out(run, post, NET, 1),
        "loo": lambda: accord.loo(run, post, NET),
        "consensus": lambda: accord.samplers.combine.consensus(post, draws=20, warmup=20),
        "bfi": lambda: accord.samplers.combine.bfi(post, draws=20),
        "nuts": lambda: nuts(post, draws=20, warmup=20),
    }
    for ask in asks.values():
        with pytest.raises(ValueError, match="the shard of agent 1 was changed in place"):
            ask()
    shards[1][0] = ROWS[1][0]
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


# --- on disk ---


def kept(folder, draws=10, shards=ROWS, offset=0.0, scale=1.0, method=None, network=NET, **options):
    """A run in a folder."""
    post = accord.Posterior(
        lambda x, rows: log_likelihood(x + offset, rows),
        lambda x: scale * far_away(x),
        shards,
        options.pop("init", 0.0),
    )
    method = DESGLD(1e-5) if method is None else method
    return walk(post, network, method, draws=draws, burn_in=20, thin=1, seed=0, checkpoint=folder, **options)


ANOTHER = "cannot resume from .*: "
OTHERS = {
    "a row": (
        {"shards": [*ROWS[:2], ROWS[2] + 1e-6]},
        "the data of agent 2 or a function",
    ),
    "more rows": ({"shards": [ROWS[0], np.append(ROWS[1], 0.1), ROWS[2]]}, "the data of agent 1"),
    "likelihood": ({"offset": 1e-6}, "the data of agent 0 or a function of the posterior changed"),
    "prior": ({"scale": 1.0 + 1e-6}, f"{ANOTHER}log prior changed"),
    "number": ({"method": DESGLD(1.001e-5)}, f"{ANOTHER}method changed .DESGLD, with other values"),
    "schedule": ({"method": DESGLD(lambda k: jnp.where(k < 200, 1e-5, 2e-5))}, f"{ANOTHER}method changed"),
    "network": ({"network": accord.Network.path(3)}, f"{ANOTHER}network changed .ring.* then, path.* now"),
    "links": ({"network": NET.links(schedule=lambda k: jnp.full(3, k != 7))}, f"{ANOTHER}network changed"),
}
FIRST = {
    "schedule": {"method": DESGLD(lambda k: jnp.where(k < 300, 1e-5, 2e-5))},
    "links": {"network": NET.links(schedule=lambda k: jnp.full(3, k != 6))},
}


@pytest.mark.parametrize("change", OTHERS)
def test_a_run_is_not_resumed_with_others(change, tmp_path):
    first = FIRST.get(change, {})
    before = kept(tmp_path, **first)
    changed, message = OTHERS[change]
    with pytest.raises(ValueError, match=f"{message}.*Use a new checkpoint folder"):
        kept(tmp_path, draws=20, **{**first, **changed})
    np.testing.assert_array_equal(kept(tmp_path, draws=20, **first).draws[:, :10], before.draws)


@pytest.mark.parametrize("method", ["code", "a number of its module"])
def test_a_run_is_not_resumed_by_an_edited_method(method, tmp_path):
    changed = {"heat": 1.0001} if method == "a number of its module" else {"times": 1.0001}
    before = kept(tmp_path, method=heated()(1e-5))
    with pytest.raises(ValueError, match="repeating the first 3 rounds gives other positions, so the method has"):
        kept(tmp_path, draws=20, method=heated(**changed)(1e-5))
    np.testing.assert_array_equal(kept(tmp_path, draws=20, method=heated()(1e-5)).draws[:, :10], before.draws)


def test_the_same_functions_under_other_objects_resume(tmp_path):
    schedule = {
        "method": DESGLD(lambda k: 1e-5 / (1.0 + k)),
        "network": NET.links(schedule=lambda k: jnp.full(3, k != 7)),
    }
    again = {"method": DESGLD(lambda k: 1e-5 / (k + 1.0)), "network": NET.links(schedule=lambda r: jnp.full(3, r != 7))}
    before = kept(tmp_path, **schedule)
    np.testing.assert_array_equal(kept(tmp_path, draws=20, **again).draws[:, :10], before.draws)


@pytest.mark.parametrize("engine", ["local", "mesh"])
def test_values_of_rows_are_for_their_user_alone(engine, tmp_path):
    kept(tmp_path, engine=engine)
    (path,) = (tmp_path / "process-0" / "posterior").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    # and the note of the run holds nothing that depends on them
    notes = [json.loads((tmp_path / "process-0" / "run.json").read_text())]
    kept(tmp_path / "other", engine=engine, shards=[rows + 1.0 for rows in ROWS])
    notes.append(json.loads((tmp_path / "other" / "process-0" / "run.json").read_text()))
    assert notes[0] == notes[1]


def test_a_damaged_file_of_values_is_named_and_written_anew(tmp_path):
    before = kept(tmp_path)
    (path,) = (tmp_path / "process-0" / "posterior").iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="is truncated or corrupt and is skipped"):
        np.testing.assert_array_equal(kept(tmp_path, draws=20).draws[:, :10], before.draws)
    assert kept(tmp_path, draws=20).draws.shape[1] == 20


def at_mode():
    """One agent whose gradient at init is zero."""
    return accord.Posterior(lambda x, rows: log_likelihood(x, rows), lambda x: 0.0 * x, [np.array([-1.0, 1.0])], 0.0)


def infinite():
    """A density that is zero at the second position."""
    return accord.Posterior(
        lambda x, rows: jnp.where(x > 0.01, -jnp.inf, log_likelihood(x, rows)), far_away, ROWS, np.zeros(1)[0]
    )


@pytest.mark.parametrize("made", [at_mode, infinite])
def test_positions_without_slope_or_density_compare(made, tmp_path):
    require_same_posterior(tmp_path, made())
    require_same_posterior(tmp_path, made())
    shifted = made().with_shards([rows + 1e-6 for rows in made().shards])
    with pytest.raises(DataError, match="the data of agent 0"):
        require_same_posterior(tmp_path, shifted)


def test_rounding_is_no_change():
    before = np.array([[[1e6, 1e-9, 3.0], [np.nan, np.inf, 1.0]]])
    rounded = before * (1.0 + 1e-12) + [0.0, 1e-10, 0.0]
    assert behaviour._is_same(rounded, before).all()
    for place in range(3):
        changed = before.copy()
        changed[0, 0, place] += [0.01, 1e-6, 1e-6][place]
        assert (~behaviour._is_same(changed, before)).sum() == 1
    assert not behaviour._is_same(np.abs(before) * -1.0, before)[0, 1, 1]


def test_the_values_are_those_of_the_users_parameters(tmp_path):
    local = accord.Local(lambda x, latent, row: -0.5 * latent**2, init=0.0)
    post = accord.Posterior(lambda x, latent, rows: log_likelihood(x + latent, rows), far_away, ROWS, 0.0, local=local)
    place = accord.posterior.coordinates.Coordinates(np.ones(1), 2.0 * np.eye(1))
    require_same_posterior(tmp_path, post)
    require_same_posterior(tmp_path, post.transformed(place))
    with pytest.raises(DataError, match="agents or parameters changed"):
        require_same_posterior(tmp_path, post.alone(1))
