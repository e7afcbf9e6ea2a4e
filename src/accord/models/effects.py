"""Effects of sites or of groups within sites, `(1 | site)` and `(1 + x | ward)`: integrated out, or parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float

from ..data.collectives import SiteCollectives
from ..posterior import Local
from ..posterior.parameters import Standardised
from .families import Family
from .families.family import Parameter, Rows, Summary
from .formula import Formula
from .priors import Exponential, Normal, Uniform
from .regression import LogPrior, predictor, weighted

if TYPE_CHECKING:
    import pandas as pd

# Values of the argument `effects` of `glm`.
INTEGRATED, PARAMETERS = "integrated", "parameters"
# Name of the variable with the effects as parameters, shape (group, effect).
EFFECTS = "group_effect"
# Share of distinct rows above which equal rows are not merged.
_MOST_DISTINCT = 0.7


def factor(params: dict[str, Array]) -> Float[Array, "effect effect"]:
    """The Cholesky factor of the covariance of a group's effects."""
    sd = params["group_sd"]
    if "group_sd_2" not in params:
        return sd[None, None]
    second, correlation = params["group_sd_2"], params["group_correlation"]
    return jnp.stack(
        [
            jnp.stack([sd, jnp.zeros_like(sd)]),
            second * jnp.stack([correlation, jnp.sqrt(1.0 - correlation**2)]),
        ]
    )


STANDARDISED = Standardised(factor)


@dataclasses.dataclass(frozen=True)
class PredictedInGroups:
    """The log likelihood of each row, with effects of groups in the linear predictor."""

    family: Family

    def __call__(self, params: dict[str, Array], latents: Float[Array, "row effect"], rows: dict[str, Array]) -> Array:
        """The weighted log density of each row's response, given the standardised effects of its group."""
        return self.given(STANDARDISED(latents, params)[0], params, rows)

    def given(self, effects: Float[Array, "row effect"], params: dict[str, Array], rows: dict[str, Array]) -> Array:
        """The weighted log density of each row's response, given the effects of its group."""
        eta = predictor(self.family, params, rows) + jnp.sum(rows["effects"] * effects, axis=1)
        return weighted(self.family.log_density(params, eta, rows), rows)


@dataclasses.dataclass(frozen=True)
class PredictedByEffects:
    """The log likelihood of each row, with effects that are parameters: `rows["group"]` indexes them."""

    groups: PredictedInGroups

    def __call__(self, params: dict[str, Array], rows: dict[str, Array]) -> Array:
        """The weighted log density of each row's response."""
        return self.groups.given(params[EFFECTS][rows["group"]], params, rows)


@dataclasses.dataclass(frozen=True)
class LogPriorOfEffects:
    """The log prior of all parameters, effects included. The effects are normal given the other parameters."""

    others: LogPrior

    def __call__(self, *numbers_and_params: Any) -> Array:
        """The sum of all log densities, with the arguments of `LogPrior`."""
        params = numbers_and_params[-1]
        z = STANDARDISED.inverse(params[EFFECTS], params)
        volume = STANDARDISED(z, params)[1]
        return self.others(*numbers_and_params) - (jnp.sum(z**2) + z.size * np.log(2.0 * np.pi)) / 2.0 - volume


def distinct(meeting: SiteCollectives, shards: Sequence[Rows]) -> list[Rows]:
    """The rows of each site with equal rows merged into one of larger weight.

    Integrals over effects evaluate every row at many nodes. If most rows are distinct, no rows are merged.
    """
    found = []
    for rows in shards:
        alike = np.column_stack(
            [np.reshape(rows[name], (len(rows["design"]), -1)) for name in rows if name != "weight"]
        )
        _, first, of_row = np.unique(alike, axis=0, return_index=True, return_inverse=True)
        weight = np.bincount(of_row, weights=rows.get("weight"), minlength=len(first)).astype(float)
        found.append({**{name: values[first] for name, values in rows.items()}, "weight": weight})
    # all sites use the same form
    counts = meeting.total(
        [{"found": len(own["design"]), "rows": len(rows["design"])} for own, rows in zip(found, shards, strict=True)]
    )
    return found if counts["found"] < _MOST_DISTINCT * counts["rows"] else list(shards)


def require_possible(family: Family, design: Formula, meeting: SiteCollectives, effects: str) -> None:
    """Raise `ValueError` if the family, the formula or the study does not support these effects of groups."""
    if not family.splits or family.predictors:
        others = "bernoulli, of one class against all others"
        if family.columns == ("time", "event"):
            others = "piecewise_exponential or weibull"
        raise ValueError(f"the family {family.name} does not support effects of groups: use the family {others}")
    if len(design.effects) > 2:
        raise ValueError(f"a group can have two effects at most, found {', '.join(design.effects)}")
    if effects == PARAMETERS and not meeting.is_whole:
        require_integrated(effects)


def require_integrated(effects: str) -> None:
    """Raise `ValueError` for effects as parameters in a study whose groups stay at their sites."""
    if effects == PARAMETERS:
        raise ValueError(
            f'effects = "{PARAMETERS}" needs the rows of all sites in one process, as the names of parameters contain '
            f'the names of groups. Set effects = "{INTEGRATED}", the default'
        )


def parameters(
    family: Family, design: Formula, summary: Summary, spread: Float[np.ndarray, " effect"]
) -> dict[str, Parameter]:
    """The standard deviations and the correlation of the effects, with default priors for the scale of the data."""
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


def as_parameters(
    design: Formula, frames: Mapping[str, pd.DataFrame], shards: Sequence[Rows]
) -> tuple[Parameter, list[Rows]]:
    """The effects of all groups as a parameter, and the shards with groups numbered across sites.

    `frames`, by site, and `shards` cover all sites.
    """
    names: list[str] = []
    found = []
    for (site, frame), rows in zip(frames.items(), shards, strict=True):
        found.append({**rows, "group": rows["group"] + np.int32(len(names))})
        names += design.groups(frame, site)
    labels = tuple(f"{effect}|{design.group}={name}" for name in names for effect in design.effects)
    init = np.zeros((len(names), len(design.effects)))
    # the prior is on the standardised effects
    return Parameter(init, STANDARDISED, Normal(0.0, 1.0), labels=labels), found


def local(design: Formula) -> Local:
    """The standardised effects of a group, as latents that the site integrates out."""
    return Local(Partial(_standard_normal), np.zeros(len(design.effects)), None if design.group_is_site else _group)


def _standard_normal(params: dict[str, Array], latents: Float[Array, " effect"], row: dict[str, Array]) -> Array:
    return -jnp.sum(latents**2) / 2.0 - latents.size * np.log(2.0 * np.pi) / 2.0


def _group(rows: dict[str, Array]) -> Array:
    return rows["group"]
