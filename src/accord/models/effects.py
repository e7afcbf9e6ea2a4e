"""Effects of sites, or of groups within sites, `(1 | site)` and `(1 + x | ward)`: integrated out at the site."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..data.meeting import Meeting
from ..posterior import Local
from .families import Family
from .families.family import Parameter, Rows, Summary
from .formula import Formula
from .priors import Exponential, Uniform
from .regression import predictor, weighted

# Share of rows that are unlike any other, from which on looking for like ones gains nothing.
_MOST_DISTINCT = 0.7


@dataclasses.dataclass(frozen=True)
class PredictedInGroups:
    """The log likelihood of a family whose predictors have effects of groups, one number a row."""

    family: Family

    def __call__(self, params: dict[str, Array], latents: Float[Array, "row effect"], rows: dict[str, Array]) -> Array:
        """The log density of the rows' responses given their groups' standardised effects, times their weights."""
        first, *second = jnp.moveaxis(latents, 1, 0)
        effects = [params["group_sd"] * first]
        if second:
            correlation = params["group_correlation"]
            # the Cholesky factor of a correlation matrix of two
            turned = correlation * first + jnp.sqrt(1.0 - correlation**2) * second[0]
            effects.append(params["group_sd_2"] * turned)
        eta = predictor(self.family, params, rows) + jnp.sum(rows["effects"] * jnp.stack(effects, axis=1), axis=1)
        return weighted(self.family.log_density(params, eta, rows), rows)


def distinct(meeting: Meeting, shards: Sequence[Rows]) -> list[Rows]:
    """The rows of each site without those that are like another one, which weighs more for them.

    Integrals over effects look at every row many times; where most rows are different, they stay as they are.
    """
    found = []
    for rows in shards:
        alike = np.column_stack(
            [np.reshape(rows[name], (len(rows["design"]), -1)) for name in rows if name != "weight"]
        )
        _, first, of_row = np.unique(alike, axis=0, return_index=True, return_inverse=True)
        weight = np.bincount(of_row, weights=rows.get("weight"), minlength=len(first)).astype(float)
        found.append({**{name: values[first] for name, values in rows.items()}, "weight": weight})
    # all sites keep their rows in one form
    counts = meeting.total(
        [{"found": len(own["design"]), "rows": len(rows["design"])} for own, rows in zip(found, shards, strict=True)]
    )
    return found if counts["found"] < _MOST_DISTINCT * counts["rows"] else list(shards)


def require_possible(family: Family, design: Formula) -> None:
    """Raise `ValueError` where effects of groups are not what this family or formula can have."""
    if not family.splits or family.predictors:
        raise ValueError(f"the family {family.name} cannot have effects of groups")
    if len(design.effects) > 2:
        raise ValueError(f"a group can have two effects at most, found {', '.join(design.effects)}")


def parameters(
    family: Family, design: Formula, summary: Summary, spread: Float[np.ndarray, " effect"]
) -> dict[str, Parameter]:
    """The standard deviations of the effects and their correlation, with priors that fit the scale of the data."""
    found = {}
    for name, effect, sd in zip(("group_sd", "group_sd_2"), design.effects, spread, strict=False):
        scale = family.unit(summary) / (float(sd) if sd > 0 else 1.0)
        labels = (f"{effect}|{design.group}",)
        found[name] = Parameter(np.array(scale / 2.0), "positive", Exponential(scale), labels=labels)
    if len(found) == 2:
        from numpyro.distributions import constraints

        labels = (f"{', '.join(design.effects)}|{design.group}",)
        limits = constraints.interval(-1.0, 1.0)
        found["group_correlation"] = Parameter(np.array(0.0), limits, Uniform(-1.0, 1.0), labels=labels)
    return found


def local(design: Formula) -> Local:
    """The standardised effects of a group, which a site integrates out."""
    return Local(_standard_normal, np.zeros(len(design.effects)), None if design.group_is_site else _group)


def _standard_normal(params: dict[str, Array], latents: Float[Array, " effect"], row: dict[str, Array]) -> Array:
    return -jnp.sum(latents**2) / 2.0 - latents.size * np.log(2.0 * np.pi) / 2.0


def _group(rows: dict[str, Array]) -> Array:
    return rows["group"]
