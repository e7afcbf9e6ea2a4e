"""Time to a posterior that can be trusted, in a process that has just begun and in one that did the same before.

Each program runs in a process of its own, in turn with the others: `python benchmarks/answers.py PROGRAM POSTERIOR
TIME`, begun at a time, which prints a line of JSON for its first and for its second answer.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from measured import Line, Ratio, Skipped, against, at_most

TITLE = "Time to an answer that can be trusted"
ABOUT = """\
Seconds to 4,000 effective draws of every parameter, accord's with nothing given (ten agents on a ring in one process)
over the other's on the pooled data: NUTS with a dense metric and 1,000 steps (300 above 10,000 rows) of adaptation in
4 chains, of BlackJAX (compiled as one loop over all chains) and of NumPyro (vectorised chains), and Pathfinder with
importance weights (PSIS). Sampling is prolonged to 4,000 effective draws in proportion where there were fewer,
adaptation is not. *Cold* is from the start of the process, imports and compilation included; *warm* is the same again
in that process with another seed. Programs are those that XLA compiles for the first answer, single operations too,
which are most of NumPyro's: as many for any data. The note has the times of both, or both numbers; means of both are
compared, in posterior sds. Left out is a program whose own diagnosis says that it is not to be trusted, or with a mean
further than 8 standard errors from that of BlackJAX's NUTS."""
EFFECTIVE, CHAINS, AGENTS = 4000, 4, 10
# rows above which NUTS is given less time
MANY = 10_000
UNTRUSTED = "not to be trusted"
# Standard errors that a mean may be from BlackJAX's NUTS where both are right: all parameters, and estimated errors.
ERRORS, REFERENCE = 8.0, "BlackJAX's NUTS"
_MARK = "answered "
# Letters of an error that are told.
_MOST_SAID = 120


class Answer(NamedTuple):
    """Seconds to 4,000 effective draws; programs compiled for it; how it was made, of how many; means, sds (dim,)."""

    seconds: float
    programs: int
    told: str
    effective: float
    mean: list[float]
    sd: list[float]


def lines(small: bool) -> Iterator[Line | Skipped]:
    if small:
        yield from programs_on("wine", 1)
    else:
        yield from programs_on("breast-cancer", 2)
        yield from programs_on("logistic-20000x50", 1)


def programs_on(posterior: str, repeats: int) -> Iterator[Line | Skipped]:
    """Every program's answers for a posterior, each so often, if it can be trusted, and in turns, against accord's."""
    found: dict[str, list[tuple[Answer, Answer]]] = {program: [] for program in PROGRAMS}
    missing: dict[str, str] = {}
    for _ in range(repeats):
        for program in PROGRAMS:
            if program in missing or any(UNTRUSTED in first.told for first, _ in found[program]):
                continue
            try:
                found[program].append(answers(program, posterior))
            except (ImportError, ChildProcessError) as error:
                missing[program] = str(error)
    yield from compared(posterior, found)
    yield from (Skipped(f"{program} on {posterior}", reason) for program, reason in missing.items())


def compared(posterior: str, found: dict[str, list[tuple[Answer, Answer]]]) -> Iterator[Line | Skipped]:
    own = found.pop("accord")
    for program, other in found.items():
        if not other:
            continue
        first, second = own[0][0], other[0][0]
        if UNTRUSTED in second.told:
            yield Skipped(f"{program} on {posterior}", second.told)
            continue
        off = 0.0 if program == REFERENCE or not found[REFERENCE] else errors_apart(second, found[REFERENCE][0][0])
        if off > ERRORS:
            yield Skipped(f"{program} on {posterior}", f"{second.told}; a mean {off:.0f} errors from {REFERENCE}")
            continue
        apart = np.abs(np.subtract(first.mean, second.mean) / second.sd).max()
        for place, (state, most) in enumerate((("cold", 1.0), ("warm", 1 / 3))):
            ours, theirs = ([one[place].seconds for one in side] for side in (own, other))
            ratio = Ratio.of(np.divide(ours, theirs))
            note = f"{against(np.median(ours), np.median(theirs))}; {second.told}; means {apart:.2g} sd apart"
            yield Line(f"{state}, over {program}", posterior, ratio, at_most(most), note)
        ratio, note = Ratio.of([first.programs / second.programs]), f"{first.programs} / {second.programs}"
        yield Line(f"programs, over {program}", posterior, ratio, None, note)


def errors_apart(one: Answer, other: Answer) -> float:
    """Standard errors between two answers' means, of the parameter where they are most."""
    error = np.array(other.sd) * (1.0 / one.effective + 1.0 / other.effective) ** 0.5
    return float(np.abs(np.subtract(one.mean, other.mean) / error).max())


def answers(program: str, posterior: str) -> tuple[Answer, Answer]:
    """The first and the second answer of a program in a process of its own."""
    command = [sys.executable, __file__, program, posterior, str(time.time())]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    made = [line.removeprefix(_MARK) for line in ended.stdout.splitlines() if line.startswith(_MARK)]
    if ended.returncode:
        said = ended.stderr.strip().splitlines() or ["no message"]
        if "ModuleNotFoundError" in said[-1]:
            raise ImportError(said[-1])
        if program == "accord":
            raise SystemExit(f"accord on {posterior} failed: {said[-1]}")
        # where the last line is advice, the error is before it
        why = next((line for line in reversed(said) if "Error" in line), said[-1])
        raise ChildProcessError(f"it failed: {why[:_MOST_SAID]}")
    first, second = (Answer(*json.loads(line)) for line in made)
    return first, second


def posterior_named(name: str) -> Any:
    import problems

    import accord

    if name.startswith("logistic"):
        count, dim = map(int, name.removeprefix("logistic-").split("x"))
        return accord.models.logistic_regression(problems.split(*problems.table(count, dim), AGENTS), 1.0)
    from no_knobs import posterior

    return posterior(name, AGENTS)


# What a program answers with: seconds of what is done once, of what draws, effective draws, how, draws' means and sds.
Made = tuple[float, float, float, str, Any, Any]


def by_accord(post: Any) -> Callable[[int], Made]:
    import accord

    network = accord.Network.ring(AGENTS)

    def answer(seed: int) -> Made:
        began = time.perf_counter()
        run = accord.sample(post, network, seed=seed, progress=False)
        seconds = time.perf_counter() - began
        told = run.settings["method"].partition("(")[0]
        if run.points is not None:
            return 0.0, seconds, run.points.effective, told, run.points.mean, run.points.sd
        return 0.0, seconds, *_told(run.draws[:, :, 0], told)

    return answer


def _told(draws: Any, told: str) -> tuple[float, str, Any, Any]:
    from arviz_stats.base.array import array_stats

    draws = np.asarray(draws, np.float64)
    effective = float(array_stats.ess(draws, chain_axis=0, draw_axis=1).min())
    return effective, told, draws.mean(axis=(0, 1)), draws.std(axis=(0, 1))


def _adaptation(post: Any) -> int:
    return 1000 if post.sizes.sum() < MANY else 300


def _draws(post: Any) -> int:
    """Draws a chain: fewer of what takes long, and prolonged in proportion."""
    return 1000 if post.sizes.sum() < MANY else 250


def by_blackjax(post: Any) -> Callable[[int], Made]:
    import blackjax
    import jax
    import jax.numpy as jnp

    start = jnp.asarray(post.init, jnp.float32)
    adaptation = blackjax.window_adaptation(
        blackjax.nuts, post.logdensity, is_mass_matrix_diagonal=False, adaptation_info_fn=lambda *_: None
    )

    @jax.jit
    @jax.vmap
    def adapt(key: Any) -> Any:
        return adaptation.run(key, start, _adaptation(post))[0]

    @jax.jit
    @jax.vmap
    def draw(key: Any, adapted: Any) -> Any:
        state, parameters = adapted
        kernel = blackjax.nuts(post.logdensity, **parameters)

        def step(state: Any, key: Any) -> Any:
            state, _ = kernel.step(key, state)
            return state, state.position

        return jax.lax.scan(step, state, jax.random.split(key, _draws(post)))[1]

    def answer(seed: int) -> Made:
        keys = jax.random.split(jax.random.key(seed), (2, CHAINS))
        began = time.perf_counter()
        adapted = jax.block_until_ready(adapt(keys[0]))
        adapting = time.perf_counter() - began
        draws = np.asarray(draw(keys[1], adapted))
        return adapting, time.perf_counter() - began - adapting, *_told(draws, "NUTS")

    return answer


def by_numpyro(post: Any) -> Callable[[int], Made]:
    import jax
    import jax.numpy as jnp
    import numpyro.infer

    kernel = numpyro.infer.NUTS(potential_fn=lambda x: -post.logdensity(x), dense_mass=True)
    walk = numpyro.infer.MCMC(
        kernel,
        num_warmup=_adaptation(post),
        num_samples=_draws(post),
        num_chains=CHAINS,
        chain_method="vectorized",
        progress_bar=False,
    )
    start = jnp.broadcast_to(jnp.asarray(post.init, jnp.float32), (CHAINS, post.dim))

    def answer(seed: int) -> Made:
        adapt, draw = jax.random.split(jax.random.key(seed))
        walk.post_warmup_state = None
        began = time.perf_counter()
        walk.warmup(adapt, init_params=start)
        jax.block_until_ready(walk.post_warmup_state)
        adapting = time.perf_counter() - began
        walk.run(draw)
        draws = np.asarray(walk.get_samples(group_by_chain=True))
        return adapting, time.perf_counter() - began - adapting, *_told(draws, "NUTS")

    return answer


def by_pathfinder(post: Any) -> Callable[[int], Made]:
    import blackjax
    import jax
    import jax.numpy as jnp
    from arviz_stats.base.array import array_stats

    start = jnp.asarray(post.init, jnp.float32)

    @jax.jit
    def fit(key: Any) -> Any:
        return blackjax.vi.pathfinder.approximate(key, post.logdensity, start)[0]

    @jax.jit
    def draw(key: Any, state: Any) -> Any:
        x, log_density = blackjax.vi.pathfinder.sample(key, state, EFFECTIVE)
        return x, jax.lax.map(post.logdensity, x, batch_size=100) - log_density

    def answer(seed: int) -> Made:
        keys = jax.random.split(jax.random.key(seed))
        began = time.perf_counter()
        state = jax.block_until_ready(fit(keys[0]))
        fitting = time.perf_counter() - began
        x, log_weights = (np.asarray(part, np.float64) for part in draw(keys[1], state))
        smooth, shape = array_stats.psislw(log_weights - log_weights.max())
        weights = np.exp(smooth - smooth.max())
        weights /= weights.sum()
        drawing = time.perf_counter() - began - fitting
        mean = weights @ x
        sd = np.sqrt(weights @ (x - mean) ** 2)
        told = f"k = {float(shape):.2f}" + (f", {UNTRUSTED}" if shape > 0.7 else "")
        return fitting, drawing, 1.0 / float((weights**2).sum()), told, mean, sd

    return answer


PROGRAMS = {
    "accord": by_accord,
    "BlackJAX's NUTS": by_blackjax,
    "NumPyro's NUTS": by_numpyro,
    "Pathfinder": by_pathfinder,
}


def main() -> None:
    program, posterior, began = sys.argv[1], sys.argv[2], float(sys.argv[3])
    warnings.simplefilter("ignore")
    import jax.monitoring

    programs: list[str] = []

    def count(event: str, duration: float, **_: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            programs.append(event)

    jax.monitoring.register_event_duration_secs_listener(count)
    answer = PROGRAMS[program](posterior_named(posterior))
    first = answer(1)
    cold, compiled = time.time() - began, len(programs)
    second = answer(2)
    # a second answer's time, of which none goes to compiling, tells what more draws would take
    once, drawing, effective, told, mean, sd = second
    longer = drawing * max(0.0, EFFECTIVE / effective - 1.0)
    told = f"{effective:,.0f} effective, {told}"
    for seconds, (_, _, effective, _, mean, sd) in ((cold, first), (once + drawing, second)):
        numbers = np.asarray(mean).tolist(), np.asarray(sd).tolist()
        made = Answer(seconds + longer, compiled, told, float(effective), *numbers)
        print(_MARK + json.dumps(made), flush=True)


if __name__ == "__main__":
    main()
