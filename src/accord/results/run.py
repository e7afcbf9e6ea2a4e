"""The class `Run`: the draws of a finished run, their summary, its cost and its files."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base import figures
from ..base.errors import absent_error
from ..base.progress import Progress, stage
from ..base.text import counted
from ..posterior.model_info import ModelInfo
from . import forest
from .card import SHOWN, card
from .certificate import Certificate
from .diagnostics import statistics
from .findings import UNKNOWN, Examination, Findings, recalled
from .netcdf import (
    FORMAT,
    as_text,
    as_tree,
    certificate_of,
    dataset,
    flatten,
    from_tree,
    parsed,
    points_of,
    read,
    require_digest,
    require_whole,
    unconstrained_of,
    variables_of,
    write,
)
from .points import Points
from .ratios import factors, ratios
from .traffic import Traffic
from .unconstrained import Unconstrained, for_all
from .warnings import Drawn, complaints

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False)
class Run:
    """Draws of all agents and of their average, as plain values. Functions such as `accord.loo` query the agents.

    Parameters
    ----------
    average
        Draws of the unweighted average over all agents, shape (chain, draw, dim).
    agents
        Numbers of the agents whose own draws were kept, shape (kept,).
    kept
        Draws of these agents, shape (chain, draw, kept, dim).
    statistics
        Named arrays of shape (chain, draw): `consensus_error`, the root mean square distance of the agents to their
        average, and statistics of the method.
    names, variables
        Names of the flat parameters, and (name, shape) of each variable of the user's pytree, in the same order.
    traffic
        Rounds, exchanges, bytes and rows read.
    seconds
        Wall-clock seconds of the run, including compilation.
    settings
        Texts and numbers about the run: method, network, seed, burn_in, thin, ...
    examine
        Function that computes `findings` from the average's draws at first use, or None.
    points
        Weighted points from which the draws were resampled, for importance sampling; else None.
    certificate
        Checks of the draws, or None if the method has no certificate.
    unconstrained
        The draws in the sampler's coordinates if the posterior has constraints; else None.
    info
        Description of the model and the sites.
    before
        If an agent left for good, the run up to then, with the agent's data. It is not saved.
    """

    average: np.ndarray
    agents: np.ndarray
    kept: np.ndarray
    statistics: dict[str, np.ndarray]
    names: tuple[str, ...]
    variables: tuple[tuple[str, tuple[int, ...]], ...]
    traffic: Traffic
    seconds: float
    settings: dict[str, Any] = field(default_factory=dict)
    examine: Examination | None = field(default=None, repr=False)
    points: Points | None = field(default=None, repr=False)
    certificate: Certificate | None = field(default=None, repr=False)
    unconstrained: Unconstrained | None = field(default=None, repr=False)
    info: ModelInfo = field(default_factory=ModelInfo, repr=False)
    before: Run | None = field(default=None, repr=False)

    @property
    def moved(self) -> Unconstrained:
        """The draws in the sampler's coordinates."""
        return Unconstrained(self.names, self.average, self.kept) if self.unconstrained is None else self.unconstrained

    @property
    def private(self) -> dict[str, Any]:
        """The guarantee and the noise of `accord.samplers.Private`.

        `epsilon`, `delta` and `colluding` are the guarantee. `coverage` is the simulated coverage of intervals of 90%.
        `noise` has the sds of the noise in the summed gradient and Hessian of each step, `wider` the sd of each
        parameter relative to that without noise.

        Raises
        ------
        AttributeError
            The run has another method.
        """
        if "private" not in self.settings:
            raise absent_error("private", "it needs the method Private()")
        found: dict[str, Any] = self.settings["private"]
        return found

    @property
    def log_evidence(self) -> tuple[float, float]:
        """Log of the integral of likelihood times prior, and its standard error.

        Constants that the log likelihood or log prior omits are omitted here too.

        Raises
        ------
        AttributeError
            The method has no weights.
        ArithmeticError
            The weights are not certified.
        """
        try:
            return self.weighted("log_evidence").log_evidence
        except ValueError as error:
            raise absent_error("log_evidence", str(error)) from None

    def weighted(self, name: str) -> Points:
        """The weighted points, for the result called `name`.

        Raises
        ------
        ValueError
            The method has no weights.
        ArithmeticError
            The weights are not certified.
        """
        if self.points is None:
            method = self.settings.get("method", "this run's method").split("(")[0]
            why = f" ({self.settings['chosen']})" if "chosen" in self.settings else ""
            raise ValueError(f"{name} needs the weights of Importance(), and {method} has none{why}")
        if self.certificate is not None and not self.certificate.holds:
            raise ArithmeticError(f"{name} needs certified weights, and they are not certified: {self.certificate.why}")
        return self.points

    @cached_property
    def findings(self) -> Findings:
        """Predicted bias and tests of the draws against F; see `accord.results.findings.Findings`.

        They are computed at first use, which takes some seconds if the method and its numbers were given. `traffic`
        does not count this work. A run with a warm-up computes them at its end, over the network.
        """
        stage("predicting the method's bias")
        return UNKNOWN if self.examine is None else self.examine(self.moved.average)

    def __getstate__(self) -> dict[str, Any]:
        # pickle the findings without the posterior
        return {**vars(self), "examine": partial(recalled, self.findings)}

    @property
    def draws(self) -> np.ndarray:
        """Draws of the kept agents, shape (chain, draw, agent, dim).

        Draw t is the state after burn_in + (t + 1) * thin rounds.

        Raises
        ------
        AttributeError
            The run kept only the average.
        """
        if self.agents.size == 0:
            raise absent_error(
                "draws", 'this run kept only the average: read run.average, or sample with keep="agents"'
            )
        return self.kept

    def __repr__(self) -> str:
        chains, draws, dim = self.average.shape
        size = f"{counted(chains, 'chain')} of {counted(draws, 'draw')}"
        return f"<Run: {size}, {counted(self.agents.size, 'agent')} kept, {counted(dim, 'parameter')}>"

    def to_datatree(self) -> xr.DataTree:
        """The run as an xarray DataTree for ArviZ 1.0 or later.

        Groups and dimensions:

        - `posterior`: (chain, draw, agent, ...), without agent if all agents have the same draws. A run of rounds that
          kept only the average has no such group.
        - `average`: (chain, draw, ...).
        - `sample_stats`: (chain, draw).
        - `traffic`: (agent_sent,).
        - `points`: (point, parameter), for weighted points.
        - `unconstrained_posterior`: (chain, draw, ..., parameter), if the posterior has constraints.

        Coordinates of agents are the names of sites if known, else numbers. `accord.log_likelihood` returns a group
        `log_likelihood` for `arviz.loo`.
        """
        import xarray as xr

        names: Sequence[Any] = self.sites or range(self.traffic.bytes_sent.size)
        own, alike = [names[agent] for agent in self.agents], self._is_alike
        groups: dict[str, xr.Dataset] = {}
        if alike or self.agents.size:
            groups["posterior"] = dataset(self.average if alike else self.kept, self.names, self.variables, own)
        groups["average"] = dataset(self.average, self.names, self.variables, ())
        groups["sample_stats"] = xr.Dataset({name: (("chain", "draw"), x) for name, x in self.statistics.items()})
        traffic = ("bytes_sent", "gradient_rows", "value_rows")
        counts = {name: np.broadcast_to(getattr(self.traffic, name), self.traffic.bytes_sent.shape) for name in traffic}
        groups["traffic"] = xr.Dataset(
            {name: (("agent_sent",), count) for name, count in counts.items()}, coords={"agent_sent": list(names)}
        )
        if self.points is not None:
            arrays: dict[str, Any] = {"positions": (("point", "parameter"), self.points.positions)}
            if self.unconstrained is not None:
                arrays["values"] = (("point", "number"), self.points.values)
            arrays |= {name: (("point",), getattr(self.points, name)) for name in ("log_density", "log_proposal")}
            if self.points.shared_error:
                arrays["shared_error"] = ((), self.points.shared_error)
            groups["points"] = xr.Dataset(arrays, coords={"parameter": list(self.moved.names)})
        if self.unconstrained is not None:
            free: dict[str, Any] = {"average": (("chain", "draw", "parameter"), self.unconstrained.average)}
            coords: dict[str, Any] = {"parameter": list(self.unconstrained.names)}
            if not alike:
                free["agents"] = (("chain", "draw", "agent", "parameter"), self.unconstrained.kept)
                coords["agent"] = own
            groups["unconstrained_posterior"] = xr.Dataset(free, coords=coords)
        chain, draw = np.arange(self.average.shape[0]), np.arange(self.average.shape[1])
        for name in set(groups) - {"traffic", "points"}:
            groups[name] = groups[name].assign_coords(chain=chain, draw=draw)
        tree = xr.DataTree.from_dict(groups)
        tree.attrs = {
            "format": FORMAT,
            "names": json.dumps(self.names),
            "variables": json.dumps(self.variables),
            "agents": json.dumps(self.agents.tolist()),
            "rounds": self.traffic.rounds,
            "exchanges": self.traffic.exchanges,
            "sums": self.traffic.sums,
            "certificate": "" if self.certificate is None else json.dumps(self.certificate.checks),
            "seconds": self.seconds,
            "settings": as_text(self.settings),
            "model_info": self.info.to_json(),
        }
        return tree

    @property
    def _is_alike(self) -> bool:
        """Whether all agents have the average's draws."""
        if self.agents.size == 0:
            # in certified runs all agents have the same draws
            return self.certificate is not None
        return np.array_equal(self.kept, for_all(self.average, self.agents.size))

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of all agents if known, else empty."""
        for known in (self.settings.get("sites"), self.info.sites):
            if known is not None and len(known) == self.traffic.bytes_sent.size:
                return tuple(map(str, known))
        return ()

    def save(self, path: str | Path) -> None:
        """Write the tree of `to_datatree` as NetCDF, with `findings` as the group `forecast`.

        An existing file is replaced only when the new file is complete. The draws are written first, before the
        findings are computed.

        Raises
        ------
        OSError
            The file cannot be written, for example because the disk is full. An existing file stays.
        """
        tree = self.to_datatree()
        if "findings" not in vars(self):
            write(tree, Path(path))
        tree["forecast"] = as_tree(self.findings, self.moved.names)
        write(tree, Path(path))

    @classmethod
    def load(cls, path: str | Path) -> Run:
        """Read a run that `save` wrote.

        The file may come from an untrusted source: its structure is validated before its arrays are read. Its SHA-256
        digest detects damage and edits. The digest is no signature, as an attacker can write a matching digest.

        Raises
        ------
        FileNotFoundError, ValueError
            There is no such file, it is not a complete accord run, it links to other files, or its digest does not
            match.

        Warns
        -----
        UserWarning
            The file has no digest.
        """
        tree = read(path)
        try:
            run = cls._of_tree(tree)
            require_whole(run)
        except (AttributeError, KeyError, IndexError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ValueError(f"{path} is not a complete accord run: a part is missing or invalid ({error})") from error
        require_digest(tree, path)
        return run

    @classmethod
    def _of_tree(cls, tree: xr.DataTree) -> Run:
        """The run stored in a tree of `to_datatree` or `save`."""
        attrs = tree.attrs
        flat = flatten(tree["average"].to_dataset(), 2)
        agents = np.array(parsed(attrs, "agents", list), dtype=np.int64)
        kept = for_all(flat, agents.size)
        if "posterior" in tree.children and "agent" in tree["posterior"].dims:
            kept = flatten(tree["posterior"].to_dataset(), 3)
        traffic = tree["traffic"].to_dataset()
        points = points_of(tree["points"].to_dataset()) if "points" in tree.children else None
        moved = tree["unconstrained_posterior"].to_dataset() if "unconstrained_posterior" in tree.children else None
        # `save` writes the draws first, without findings
        findings = from_tree(tree["forecast"].to_dataset()) if "forecast" in tree.children else None
        return cls(
            average=flat,
            agents=agents,
            kept=kept,
            statistics={str(n): a.values for n, a in tree["sample_stats"].to_dataset().data_vars.items()},
            names=tuple(parsed(attrs, "names", list)),
            variables=variables_of(attrs),
            traffic=Traffic(
                int(attrs["rounds"]),
                int(attrs["exchanges"]),
                traffic["bytes_sent"].values,
                traffic["gradient_rows"].values,
                int(attrs["sums"]),
                traffic["value_rows"].values,
            ),
            seconds=float(attrs["seconds"]),
            settings=dict(parsed(attrs, "settings", dict)),
            examine=None if findings is None else partial(recalled, findings),
            points=points,
            unconstrained=None if moved is None else unconstrained_of(moved, agents.size),
            info=ModelInfo.from_plain(parsed(attrs, "model_info" if "model_info" in attrs else "asked", dict)),
            certificate=certificate_of(attrs),
        )

    def summary(self, sites: Sequence[str] | None = None, *, findings: bool = True) -> pd.DataFrame:
        """Mean, sd, 5% and 95% quantiles, bulk ESS and R-hat by parameter, for the average and the worst agent.

        Rows are parameters. Columns have two levels, ("average" or "worst agent", statistic). The worst agent of a
        parameter is the kept agent whose marginal is furthest from the average's, by the Wasserstein distance between
        Gaussian approximations; ("worst agent", "agent") is its name or number. If all agents have the same draws,
        the table prints one group of columns, "all agents".

        Each warning has a remedy. Warnings are issued if the method's law predicts an error above 0.05 posterior
        standard deviations, if there are few effective draws, if chains or agents disagree, or if the temperature of
        the draws differs from the law's.

        Parameters
        ----------
        sites
            Names of all agents; None: the names that the run knows, else numbers.
        findings
            Whether to compute `findings` if they are not computed yet, which may take some seconds. Without them, the
            warnings use the draws alone.
        """
        with Progress("summary"):
            for text in self.warnings(sites, findings=findings):
                warnings.warn(text, stacklevel=2)
            stage("ESS and R-hat")
            return self.table(sites)

    def warnings(self, sites: Sequence[str] | None = None, *, findings: bool = True) -> list[str]:
        """The warnings of `summary`, each with the values found and a remedy; same arguments."""
        sites = self.sites or None if sites is None else sites
        free = self.moved
        found = self.findings if findings else vars(self).get("findings", UNKNOWN)
        weighted = self.points is not None
        # methods with chains are tested in the chains' coordinates
        shown = self.average if weighted or self.unconstrained is not None else None
        drawn = Drawn(
            free.average,
            free.kept,
            self.agents,
            free.names,
            found,
            self.certificate,
            weighted,
            shown,
            self.names,
            self.info.coefficients,
        )
        stage("checking the draws")
        texts = complaints(drawn, sites)
        if self.settings.get("interrupted") and self.certificate is None:
            texts.append(f"the run was interrupted: it has {self.average.shape[1]} draws per chain")
        return texts

    def table(self, sites: Sequence[str] | None = None) -> pd.DataFrame:
        """The table of `summary`, without warnings."""
        import pandas as pd

        from .table import Table

        sites = self.sites or None if sites is None else sites
        blocks = {"average": pd.DataFrame(statistics(self.average), index=list(self.names))}
        if self.agents.size:
            mean, sd = (getattr(np, f)(self.kept, axis=(0, 1), dtype=np.float64) for f in ("mean", "std"))
            own = [getattr(np, f)(self.average, axis=(0, 1), dtype=np.float64) for f in ("mean", "std")]
            worst = np.argmax(np.hypot(mean - own[0], sd - own[1]), axis=0)
            chosen = np.take_along_axis(self.kept, worst[None, None, None, :], axis=2)[:, :, 0]
            named = self.agents[worst] if sites is None else [sites[agent] for agent in self.agents[worst]]
            table = pd.DataFrame({"agent": named, **statistics(chosen)}, index=list(self.names))
            blocks["worst agent"] = table
        return Table(pd.concat(blocks, axis=1))

    def ratios(self, units: str | Mapping[str, float] = "original") -> pd.DataFrame:
        """Exponentials of the coefficients: odds ratios, rate ratios or hazard ratios, depending on the family.

        Median, 5% and 95% quantiles and the probability that the ratio is above 1, by coefficient, from the average's
        draws. The name of the median's column is the kind of ratio. The intercept is left out.

        Parameters
        ----------
        units
            "original": one more unit of the column in the files, even if `accord run` standardised it; "model": one
            more unit of the column passed to the model; or a number of original units by column, as `{"age": 10}`.

        Raises
        ------
        ValueError
            The exponential of a coefficient is no ratio in this model, or units are unknown.
        """
        return self._ratios("", units)

    def odds_ratios(self, units: str | Mapping[str, float] = "original") -> pd.DataFrame:
        """`ratios` of a family with odds ratios."""
        return self._ratios("odds", units)

    def rate_ratios(self, units: str | Mapping[str, float] = "original") -> pd.DataFrame:
        """`ratios` of a family with rate ratios."""
        return self._ratios("rate", units)

    def hazard_ratios(self, units: str | Mapping[str, float] = "original") -> pd.DataFrame:
        """`ratios` of a family with hazard ratios."""
        return self._ratios("hazard", units)

    def _ratios(self, kind: str, units: str | Mapping[str, float]) -> pd.DataFrame:
        """Ratios of a kind such as "odds"; "" for any kind."""
        ratio, names = self.info.ratio, self.info.ratios
        if not names:
            model = f"the {self.info.model}" if self.info.model else "this model, whose family is unknown"
            raise ValueError(f"exponentials of coefficients are no ratios in {model}")
        if kind and kind not in ratio.split():
            raise ValueError(f"this run has no {kind} ratios: exp(coefficient) of the {self.info.model} is the {ratio}")
        places = [self.names.index(name) for name in names]
        sds = self.settings.get("sds", {})
        if units == "original" and not sds and not self.info.formula:
            warnings.warn(
                "ratios are for one unit of the columns passed to the model. If Study.matrix standardised them, which "
                "is its default, one unit is one standard deviation. Pass units='model' to silence this warning",
                stacklevel=3,
            )
        return ratios(self.average[..., places] * factors(names, units, sds), names, ratio)

    def plot_forest(self, ax: Axes | None = None) -> Axes:
        """Forest plot of the average's draws: mean, 50% and 90% interval of each parameter.

        Parameters
        ----------
        ax
            Matplotlib axes; None creates a figure.

        Raises
        ------
        ImportError
            Matplotlib is not installed.
        """
        flat = self.average.reshape(-1, len(self.names))
        low, first, third, high = np.quantile(flat, [0.05, 0.25, 0.75, 0.95], axis=0)
        ax = figures.axes(6.0, forest.EDGES + forest.LINE * len(self.names)) if ax is None else ax
        forest.forest(ax, self.names, flat.mean(axis=0), np.stack([first, third]), np.stack([low, high]))
        return ax

    def _repr_html_(self) -> str:
        """The table and the verdict of the certificate, for notebooks, without new computations."""
        chains, draws, dim = self.average.shape
        line = f"{counted(chains, 'chain')} of {counted(draws, 'draw')} of {counted(dim, 'parameter')}"
        return card("Run", line, self.certificate, self.names, statistics(self.average[..., :SHOWN]))
