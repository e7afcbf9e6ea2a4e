"""Time to a checked posterior: accord beside NUTS of BlackJAX and of NumPyro.

Each program runs in a process of its own and takes turns with the others. It answers twice there: the first answer
includes imports and compilation.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from measured import Line, Ratio, Skipped, against, in_process, report

EFFECTIVE, CHAINS, AGENTS = 4000, 4, 10
# rows above which NUTS adapts and draws less
MANY = 10_000


class Answer(NamedTuple):
    """Seconds to `EFFECTIVE` effective draws, number of compilations, effective draws, means and sds (dim,)."""

    seconds: float
    programs: int
    effective: float
    mean: list[float]
    sd: list[float]


def lines(small: bool) -> Iterator[Line | Skipped]:
    if small:
        yield from programs_on("logistic-500x5", 1)
    else:
        yield from programs_on("breast-cancer", 2)
        yield from programs_on("logistic-20000x50", 1)


def many_rows(small: bool) -> Iterator[Line | Skipped]:
    """Lines for many rows, which take half an hour, mostly for NUTS."""
    yield from programs_on("logistic-2000x10" if small else "logistic-200000x100", 1)


def programs_on(posterior: str, repeats: int) -> Iterator[Line | Skipped]:
    """Lines that compare accord with every program on a posterior. A program that fails is skipped."""
    found: dict[str, list[tuple[Answer, Answer]]] = {program: [] for program in PROGRAMS}
    for _ in range(repeats):
        for program in list(found):
            try:
                found[program].append(answers(program, posterior))
            except ChildProcessError as error:
                if program == "accord":
                    raise
                del found[program]
                yield Skipped(f"{program} on {posterior}", str(error))
    own = found.pop("accord")
    for program, other in found.items():
        first, second = own[0][0], other[0][0]
        apart = np.abs(np.subtract(first.mean, second.mean) / second.sd).max()
        for place, (state, most) in enumerate((("cold", 1.0), ("warm", 1 / 3))):
            ours, theirs = ([one[place].seconds for one in side] for side in (own, other))
            note = f"{against(np.median(ours), np.median(theirs))}; {second.effective:,.0f} effective draws; "
            note += f"means differ by {apart:.2g} sd"
            yield Line(f"{state}, over {program}", posterior, Ratio.of(np.divide(ours, theirs)), note, most=most)
        ratio, note = Ratio.of([first.programs / second.programs]), f"{first.programs} / {second.programs}"
        yield Line(f"programs, over {program}", posterior, ratio, note)


def answers(program: str, posterior: str) -> tuple[Answer, Answer]:
    """The first and the second answer of a program in a new process."""
    first, second = in_process(__file__, program, posterior, str(time.time()))
    return Answer(*first), Answer(*second)


def posterior_named(name: str) -> Any:
    import problems

    if name == "breast-cancer":
        return problems.breast_cancer(AGENTS)
    count, dim = map(int, name.removeprefix("logistic-").split("x"))
    return problems.logistic(AGENTS, dim, count // AGENTS)


# seconds of adaptation and of drawing, effective draws, means, sds
Made = tuple[float, float, float, Any, Any]


def by_accord(post: Any) -> Callable[[int], Made]:
    import accord

    network = accord.Network.ring(AGENTS)

    def answer(seed: int) -> Made:
        began = time.perf_counter()
        run = accord.sample(post, network, seed=seed, progress=False)
        seconds = time.perf_counter() - began
        if run.points is not None:
            return 0.0, seconds, run.points.effective, run.points.mean, run.points.sd
        return 0.0, seconds, *_moments(run.draws[:, :, 0])

    return answer


def _moments(draws: Any) -> tuple[float, Any, Any]:
    from arviz_stats.base.array import array_stats

    draws = np.asarray(draws, np.float64)
    effective = float(array_stats.ess(draws, chain_axis=0, draw_axis=1).min())
    return effective, draws.mean(axis=(0, 1)), draws.std(axis=(0, 1))


def _steps(post: Any) -> tuple[int, int]:
    """Adaptation steps and draws of a chain."""
    return (1000, 1000) if post.sizes.sum() < MANY else (300, 250)


def by_blackjax(post: Any) -> Callable[[int], Made]:
    """BlackJAX's NUTS with one compiled loop over all chains."""
    import blackjax
    import jax
    import jax.numpy as jnp

    start, (warmup, draws) = jnp.asarray(post.init, jnp.float32), _steps(post)
    adaptation = blackjax.window_adaptation(
        blackjax.nuts, post.logdensity, is_mass_matrix_diagonal=False, adaptation_info_fn=lambda *_: None
    )

    @jax.jit
    @jax.vmap
    def adapt(key: Any) -> Any:
        return adaptation.run(key, start, warmup)[0]

    @jax.jit
    @jax.vmap
    def draw(key: Any, adapted: Any) -> Any:
        state, parameters = adapted
        kernel = blackjax.nuts(post.logdensity, **parameters)

        def step(state: Any, key: Any) -> Any:
            state, _ = kernel.step(key, state)
            return state, state.position

        return jax.lax.scan(step, state, jax.random.split(key, draws))[1]

    def answer(seed: int) -> Made:
        keys = jax.random.split(jax.random.key(seed), (2, CHAINS))
        began = time.perf_counter()
        adapted = jax.block_until_ready(adapt(keys[0]))
        adapting = time.perf_counter() - began
        drawn = np.asarray(draw(keys[1], adapted))
        return adapting, time.perf_counter() - began - adapting, *_moments(drawn)

    return answer


def by_numpyro(post: Any) -> Callable[[int], Made]:
    """NumPyro's NUTS with vectorised chains."""
    import jax
    import jax.numpy as jnp
    import numpyro.infer

    kernel = numpyro.infer.NUTS(potential_fn=lambda x: -post.logdensity(x), dense_mass=True)
    warmup, draws = _steps(post)
    options = {"num_chains": CHAINS, "chain_method": "vectorized", "progress_bar": False}
    walk = numpyro.infer.MCMC(kernel, num_warmup=warmup, num_samples=draws, **options)
    start = jnp.broadcast_to(jnp.asarray(post.init, jnp.float32), (CHAINS, post.dim))

    def answer(seed: int) -> Made:
        adapt, draw = jax.random.split(jax.random.key(seed))
        walk.post_warmup_state = None
        began = time.perf_counter()
        walk.warmup(adapt, init_params=start)
        jax.block_until_ready(walk.post_warmup_state)
        adapting = time.perf_counter() - began
        walk.run(draw)
        drawn = np.asarray(walk.get_samples(group_by_chain=True))
        return adapting, time.perf_counter() - began - adapting, *_moments(drawn)

    return answer


PROGRAMS = {"accord": by_accord, "BlackJAX's NUTS": by_blackjax, "NumPyro's NUTS": by_numpyro}


def main() -> None:
    """Report both answers of a program. The third argument is its start time."""
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
    adapting, drawing, effective, *_ = second
    # extend the drawing time in proportion to the missing effective draws, without compilation
    longer = drawing * max(0.0, EFFECTIVE / effective - 1.0)
    for seconds, made in ((cold, first), (adapting + drawing, second)):
        mean, sd = (np.asarray(numbers).tolist() for numbers in made[3:])
        report(Answer(seconds + longer, compiled, float(effective), mean, sd))


if __name__ == "__main__":
    main()
