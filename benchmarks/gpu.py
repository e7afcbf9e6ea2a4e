"""Rounds on a GPU, where JAX finds one: over their floor there, and beside this machine's processor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import rounds
from measured import Line, Skipped, against, compared, effort

TITLE = "On a GPU"
ABOUT = """\
The rounds of the first section over their floor, both on the GPU; then the time of each on the processor over that on
the GPU."""


def lines(small: bool) -> Iterator[Line | Skipped]:
    try:
        device = jax.devices("gpu")[0]
    except RuntimeError:
        yield Skipped("all", "JAX finds no GPU here")
        return
    turns = effort(small)
    for shape in rounds.shapes(small):
        try:
            with jax.default_device(device):
                yield from rounds.measured(shape, **turns)
                there = advancing(shape)
        except ImportError as error:
            yield Skipped(shape.name, str(error))
            continue
        # arrays stay where they were made, and programs run where their arrays are
        found, *seconds = compared(advancing(shape), there, **turns)
        yield Line(f"{type(shape.sampler).__name__}, processor over GPU", shape.name, found, None, against(*seconds))


def advancing(shape: rounds.Shape) -> Callable[[int], Any]:
    return rounds.advancing(shape.posterior(), shape.network(), shape.sampler, shape.chains)[1]
