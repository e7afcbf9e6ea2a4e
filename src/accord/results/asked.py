"""What a run was asked: the model in words, the sites and their rows, and who talks to whom."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from ..network import Network
from ..posterior import Posterior
from ..posterior.about import Said

# Agents of networks that are kept to be drawn; more are no picture.
MOST_DRAWN = 200


@dataclass(frozen=True)
class Asked(Said):
    """What a run was asked; kept with it, also in its file.

    Parameters
    ----------
    edges
        Pairs of agents that talk; None where there was no network, or one too large to be drawn.
    """

    edges: tuple[tuple[int, int], ...] | None = None

    @classmethod
    def of(cls, post: Posterior) -> Asked:
        """What a posterior says."""
        said = {one.name: getattr(post.about, one.name) for one in fields(Said)}
        return cls(**{**said, "rows": post.about.rows or post.counted_rows})

    def on(self, network: Network) -> Asked:
        """The same over a network."""
        if network.num_agents > MOST_DRAWN:
            return self
        return replace(self, edges=tuple((int(i), int(j)) for i, j in network.edges))

    def to_json(self) -> str:
        """The same as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_plain(cls, found: dict[str, Any]) -> Asked:
        """What `to_json` wrote, from its JSON.

        Raises
        ------
        KeyError, TypeError, ValueError
            A part is missing or of another type.
        """
        edges = None if found["edges"] is None else tuple((int(i), int(j)) for i, j in found["edges"])
        return cls(
            **{name: _text(found[name]) for name in ("model", "formula", "ratio")},
            priors=tuple((_text(name), _text(prior)) for name, prior in found["priors"]),
            sites=tuple(map(_text, found["sites"])),
            rows=tuple(map(int, found["rows"])),
            ratios=tuple(map(_text, found["ratios"])),
            notes=tuple(map(_text, found.get("notes", ()))),
            edges=edges,
            # runs were written without
            coefficients=tuple(
                (_text(name), float(loc), float(sd), float(of_column))
                for name, loc, sd, of_column in found.get("coefficients", ())
            ),
        )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a text is of type {type(value).__name__}")
    return value
