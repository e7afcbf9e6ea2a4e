"""The class `Run`: the draws of a finished run, their summary, its cost and its files."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.checks import whole_number
from ..base.errors import absent_error
from ..base.progress import Progress, stage
from ..base.text import counted
from ..report.told import Histogram
from .alone import Alone, alone
from .asked import Asked
from .certificate import Certificate
from .complaints import Drawn, complaints
from .diagnostics import statistics
from .findings import UNKNOWN, Examination, Findings, recalled
from .local import LocalDraws
from .loo import Loo, Sampled, loo, sampled
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
from .reweighting import Agents, LeftOut, leave_each_out, leave_out, updated
from .scales import Unconstrained, for_all
from .shown import Shown
from .traffic import Traffic

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr


@dataclass(frozen=True, eq=False)
class Run(Shown):
    """Draws of all agents and of their average.

    Parameters
    ----------
    average
        Draws of the plain average over all agents, shape (chain, draw, dim).
    agents
        The agents whose own draws were kept, shape (kept,).
    kept
        Their draws, shape (chain, draw, kept, dim).
    statistics
        Named arrays of shape (chain, draw): `consensus_error`, the root mean square distance of the agents to their
        average, and what the method reports of itself.
    names, variables
        Names of the flat parameters, and (name, shape) of each variable of the user's pytree, in that order.
    traffic
        Rounds, exchanges, bytes.
    seconds
        Wall seconds of the run, compilation included.
    settings
        Texts and numbers about the run: method, network, seed, burn_in, thin, ...
    examine
        Finds `findings` from the average's draws when they are first asked for; None: nothing but the draws is known.
    points
        The weighted points that the draws are of, where they were drawn by importance sampling.
    certificate
        What was checked of them.
    agents_data
        Who answers for the agents' data, while this process lives: it is not saved.
    unconstrained
        The same draws in the numbers that methods move in, where the posterior has constraints.
    asked
        What was asked, and of whom.
    before
        Where an agent left for good: what was drawn of the posterior with its data. It is not saved.
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
    agents_data: Agents | None = field(default=None, repr=False)
    unconstrained: Unconstrained | None = field(default=None, repr=False)
    asked: Asked = field(default_factory=Asked, repr=False)
    before: Run | None = field(default=None, repr=False)

    @property
    def _moved(self) -> Unconstrained:
        """The draws in the numbers that methods move in."""
        return Unconstrained(self.names, self.average, self.kept) if self.unconstrained is None else self.unconstrained

    @property
    def log_evidence(self) -> tuple[float, float]:
        """The log of the integral of likelihood times prior, and its standard error.

        It is that of the functions as they were given: constants that they leave out are left out of it.

        Raises
        ------
        AttributeError
            The method has no weights.
        ArithmeticError
            The weights are not certified.
        """
        return self._weighted("log_evidence").log_evidence

    def leave_out(self, agent: int) -> LeftOut:
        """The posterior without the data of one agent, from the points of this run: nothing is sampled.

        The agent is asked for the log likelihood of its rows at the points.

        Raises
        ------
        AttributeError
            The method has no weights, the run was read from a file, or its sums are masked.
        ValueError
            There is no such agent.
        ArithmeticError
            The weights are not certified, or that data changes the posterior too much for them.
        """
        points, agents = self._weighted("leave_out"), self._agents("leave_out")
        return leave_out(points, agents, whole_number("agent", agent, 0, self.traffic.bytes_sent.size - 1))

    def leave_each_out(self) -> tuple[LeftOut | str, ...]:
        """`leave_out` of every agent in one question; in place of what is not known, a sentence says why.

        Raises
        ------
        AttributeError
            The method has no weights, the run was read from a file, or its sums are masked.
        ArithmeticError
            The weights are not certified.
        """
        return leave_each_out(self._weighted("leave_each_out"), self._agents("leave_each_out"))

    def update(self, rows: Mapping[int, Any]) -> Run:
        """The run on more data, from the points of this one: nothing is sampled, and agents are asked for one sum.

        Parameters
        ----------
        rows
            New rows of some agents, by their numbers: shards as `Posterior` takes them, in addition to those before.

        What was checked of it is in its `certificate`; its traffic stays that of the run before. An updated run cannot
        be updated: give all that is new at once.

        Raises
        ------
        AttributeError
            The method has no weights, or the run was read from a file or updated.
        ValueError
            There is no such agent, or its rows are not what the model takes.
        ArithmeticError
            The weights are not certified, or the new data changes the posterior too much for them.
        """
        points, agents = self._weighted("update"), self._agents("update")
        new = {whole_number("agent", agent, 0, self.traffic.bytes_sent.size - 1): own for agent, own in rows.items()}
        found, certificate = updated(points, agents, new)
        chains, draws = self.average.shape[:2]
        chosen = found.chains(chains, draws, int(self.settings["seed"]))
        own, free = found.values[chosen], self.unconstrained
        if free is not None:
            average = found.positions[chosen]
            free = free._replace(average=average, kept=for_all(average, self.agents.size))
        return replace(
            self,
            average=own,
            kept=for_all(own, self.agents.size),
            unconstrained=free,
            points=found,
            certificate=certificate,
            # latents that agents have kept are of the draws before
            settings={name: value for name, value in self.settings.items() if name != "local"},
            # of the data before: what it does not know of it cannot leave out
            agents_data=None,
        )

    def loo(self) -> Loo:
        """How well all rows but one predict that one, over all rows: PSIS-LOO, as ArviZ has it of pooled data.

        Each agent leaves out its own rows, one after another, and what it tells is summed over all rows of all agents.
        The draws are those of the average. The likelihood must be normalised for `elpd` to be a log density.

        Raises
        ------
        AttributeError
            The run was read from a file, updated or combined: it knows no agents.
        ValueError
            The log likelihood does not give one number a row, or draws are fewer than 25.
        ArithmeticError
            The draws are not certified or not of temperature 1, or a log likelihood is not finite at some draw.

        Warns
        -----
        UserWarning
            Rows have a Pareto k that is too large, with their number.
        """
        found, _ = loo({"this run": self._agents("loo")}, [self._sampled("loo")])
        return found["this run"]

    @cached_property
    def local(self) -> LocalDraws:
        """Draws of the latents that agents have of their own; see `LocalDraws`. They are neither sent nor saved.

        Raises
        ------
        AttributeError
            The posterior has no `local`, its data lies elsewhere, where each agent has its own in a file, or the run
            was read from a file, updated or combined.
        """
        if "local" in self.settings:
            raise absent_error(
                "local",
                f"each agent has its own latents in a file at its site, {self.settings['local']}, and tells them to "
                "nobody else",
            )
        agents, free, seed = self._agents("local"), self._moved.kept, int(self.settings["seed"])

        def ask(agent: int) -> dict[str, np.ndarray]:
            return agents.latents(agent, free[:, :, int(np.flatnonzero(self.agents == agent)[0])], seed)

        return LocalDraws(self.agents, agents.latent_agents(), ask)

    def _sampled(self, name: str) -> Sampled:
        """The average's draws, for what has this name: where they may be relied on."""
        if self.certificate is not None and not self.certificate.holds:
            raise ArithmeticError(f"{name} rests on draws that are not certified: {self.certificate.why}")
        temperature = self.settings.get("temperature", 1.0)
        if temperature != 1.0:
            raise ArithmeticError(
                f"{name} is of the posterior, and this run drew at temperature {temperature:g}: sample at temperature 1"
            )
        return sampled(self._moved.average)

    def _agents(self, name: str) -> Agents:
        if self.agents_data is None:
            raise absent_error(
                name,
                f"{name} asks the agents, and this run knows none: it was read from a file, updated or combined; "
                "sample anew",
            )
        return self.agents_data

    def _weighted(self, name: str) -> Points:
        """The weighted points, where they may be relied on."""
        if self.points is None:
            method = self.settings.get("method", "this run's method").split("(")[0]
            why = f" ({self.settings['chosen']})" if "chosen" in self.settings else ""
            raise absent_error(name, f"{name} needs the weights of Importance(), and {method} has none{why}")
        if self.certificate is not None and not self.certificate.holds:
            raise ArithmeticError(f"{name} rests on weights that are not certified: {self.certificate.why}")
        return self.points

    @cached_property
    def findings(self) -> Findings:
        """The bias that the method's law predicts, and the draws beside F; see `accord.results.findings.Findings`.

        Found at first use, in some seconds where the method and its numbers were given: that is in no traffic. A run
        with a warm-up has measured its draws at its end, over the network.
        """
        stage("what the method's law says")
        return UNKNOWN if self.examine is None else self.examine(self._moved.average)

    def __getstate__(self) -> dict[str, Any]:
        # what was found travels with the run; the posterior that it was found from stays, and so do latents
        own = {name: value for name, value in vars(self).items() if name != "local"}
        return {**own, "examine": partial(recalled, self.findings), "agents_data": None}

    @property
    def draws(self) -> np.ndarray:
        """Draws of the kept agents, shape (chain, draw, agent, dim).

        Draw t is the state after burn_in + (t + 1) thin rounds.

        Raises
        ------
        AttributeError
            The run kept the average only.
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

    def to_datatree(self, *, log_likelihood: bool = False) -> xr.DataTree:
        """The run as an xarray DataTree that ArviZ 1.0 or later reads.

        Groups: `posterior` with dimensions (chain, draw, agent, ...), and without agent where the draws of all agents
        are the same; `average` with (chain, draw, ...), `sample_stats` with (chain, draw) and `traffic` with
        (agent_sent,). Agents are the names of sites where these are known, else numbers. `posterior` is left out where
        a method that walks kept the average alone. Weighted points are in the group `points` with (point, parameter).
        Where the posterior has constraints, `unconstrained_posterior` has the draws as methods move, with (chain, draw,
        ..., parameter).

        Parameters
        ----------
        log_likelihood
            Whether there is a group `log_likelihood` of all rows, for `arviz.loo`, whose variable `rows` has (chain,
            draw, row), and a coordinate that names the agent of each row.

        Raises
        ------
        AttributeError
            Log likelihoods are asked for, and the run knows no agents: it was read from a file, updated or combined.
        ValueError
            Log likelihoods are asked for, and rows lie in other processes, enter together or share latents.
        """
        import xarray as xr

        names = self._names_of_agents
        own, alike = [names[agent] for agent in self.agents], self._is_alike
        groups: dict[str, xr.Dataset] = {}
        if alike or self.agents.size:
            groups["posterior"] = dataset(self.average if alike else self.kept, self.names, self.variables, own)
        groups["average"] = dataset(self.average, self.names, self.variables, ())
        groups["sample_stats"] = xr.Dataset({name: (("chain", "draw"), x) for name, x in self.statistics.items()})
        if log_likelihood:
            groups["log_likelihood"] = self._log_likelihoods(names)
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
            groups["points"] = xr.Dataset(arrays, coords={"parameter": list(self._moved.names)})
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
            "asked": self.asked.to_json(),
        }
        return tree

    @property
    def _is_alike(self) -> bool:
        """Whether all agents have the average's draws."""
        if self.agents.size == 0:
            # a certificate is of draws that all agents have
            return self.certificate is not None
        return np.array_equal(self.kept, for_all(self.average, self.agents.size))

    @property
    def _names_of_agents(self) -> Sequence[Any]:
        """The sites' names, or else numbers."""
        count = self.traffic.bytes_sent.size
        for known in (self.settings.get("sites"), self.asked.sites):
            if known is not None and len(known) == count:
                return tuple(map(str, known))
        return range(count)

    def _log_likelihoods(self, names: Sequence[Any]) -> xr.Dataset:
        """Those of all rows at the draws of the average."""
        import xarray as xr

        flat = self._moved.average.astype(np.float64)
        found = self._agents("log_likelihood").of_rows(flat.reshape(-1, flat.shape[2]))
        rows = np.concatenate(found, axis=1).reshape(*flat.shape[:2], -1)
        owners = np.repeat(np.array(names), [own.shape[1] for own in found])
        return xr.Dataset({"rows": (("chain", "draw", "row"), rows)}, coords={"agent": ("row", owners)})

    def save(self, path: str | Path) -> None:
        """Write the tree of `to_datatree` as NetCDF, and with it `findings` as the group `forecast`.

        An existing file is replaced only when all is written. The draws are written before anything is found out about
        them, which takes some seconds.

        Raises
        ------
        OSError
            It cannot be written, as where the disk is full or the folder is not there; an existing file stays.
        """
        tree = self.to_datatree()
        if "findings" not in vars(self):
            write(tree, Path(path))
        tree["forecast"] = as_tree(self.findings, self._moved.names)
        write(tree, Path(path))

    @classmethod
    def load(cls, path: str | Path) -> Run:
        """Read a run that `save` wrote.

        The file may come from a stranger: what it holds is looked at before it is read. Its SHA-256 digest detects
        accidents and edits. The digest is no signature: whoever edits a file on purpose can write another one.

        Raises
        ------
        FileNotFoundError, ValueError
            There is no such file; it is not a whole run of accord, or points to other files; its digest is another one.

        Warns
        -----
        UserWarning
            An earlier accord wrote the file without a digest.
        """
        tree = read(path)
        try:
            run = cls._of_tree(tree)
            require_whole(run)
        except (AttributeError, KeyError, IndexError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ValueError(
                f"{path} is not a whole run of accord: a part is missing or is not as it was ({error})"
            ) from error
        require_digest(tree, path)
        return run

    @classmethod
    def _of_tree(cls, tree: xr.DataTree) -> Run:
        """The run of which `to_datatree` and `save` made this tree."""
        attrs = tree.attrs
        flat = flatten(tree["average"].to_dataset(), 2)
        agents = np.array(parsed(attrs, "agents", list), dtype=np.int64)
        kept = for_all(flat, agents.size)
        if "posterior" in tree.children and "agent" in tree["posterior"].dims:
            kept = flatten(tree["posterior"].to_dataset(), 3)
        traffic = tree["traffic"].to_dataset()
        points = points_of(tree["points"].to_dataset()) if "points" in tree.children else None
        moved = tree["unconstrained_posterior"].to_dataset() if "unconstrained_posterior" in tree.children else None
        # the draws are written first, without findings
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
            asked=Asked.from_plain(parsed(attrs, "asked", dict)),
            certificate=certificate_of(attrs),
        )

    def summary(self, sites: Sequence[str] | None = None, *, findings: bool = True) -> pd.DataFrame:
        """The posterior by parameter: mean, sd, 5% and 95% quantiles, bulk ESS and R-hat, of average and worst agent.

        The worst agent of a parameter is the kept one whose marginal lies furthest from the average's in the
        Wasserstein distance of their Gaussian approximations. Rows are parameters; columns have two levels,
        ("average" | "worst agent", statistic), and ("worst agent", "agent") names it.

        Warns, with a remedy, where the method's law says that an agent's draws are off by more than 0.05 posterior
        standard deviations, effective draws are few or chains disagree, agents are far apart, or the average's draws
        have another temperature than the law.

        Parameters
        ----------
        sites
            Names of all agents, to name them by; None: those that `accord run` wrote with the run, or their numbers.
        findings
            Whether `findings` are found for it, if nobody has asked for them yet, which may take some seconds; without
            them it warns of what the draws alone show.
        """
        with Progress("summary"):
            for text in self.warnings(sites, findings=findings):
                warnings.warn(text, stacklevel=2)
            stage("effective draws and R-hat")
            return self.table(sites)

    def warnings(self, sites: Sequence[str] | None = None, *, findings: bool = True) -> list[str]:
        """The sentences that `summary` warns of, each with the numbers found and a remedy; arguments as it has them."""
        sites = self.settings.get("sites") if sites is None else sites
        free = self._moved
        found = self.findings if findings else vars(self).get("findings", UNKNOWN)
        weighted = self.points is not None
        # draws of methods that walk are warned of on the scale that they walk on
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
            self.asked.coefficients,
        )
        stage("what the draws show")
        found_out = complaints(drawn, sites)
        if self.settings.get("interrupted") and self.certificate is None:
            found_out.append(
                f"the run was interrupted: it has the {self.average.shape[1]} draws a chain made until then"
            )
        return found_out

    def table(self, sites: Sequence[str] | None = None) -> pd.DataFrame:
        """The table of `summary`, and no warning."""
        import pandas as pd

        from .table import Table

        sites = self.settings.get("sites") if sites is None else sites
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

    def alone(self) -> tuple[Alone, ...]:
        """The posterior of each agent's data alone, by weighted points that each agent is asked at.

        Its means and standard deviations are `points.mean` and `points.sd` of each.

        Nothing is sampled anew but these points: each agent tells the log likelihood of its rows there. Where weights
        are not to be relied on, `why` says so. Draws of the run need not be certified: these weights have a check of
        their own.

        Raises
        ------
        AttributeError
            The run was read from a file, updated or combined and knows no agents, or its sums are masked.
        """
        draws = self._moved.average.astype(np.float64)
        agents, flat = self._agents("alone"), draws.reshape(-1, draws.shape[2])
        return tuple(alone(flat, agents, self.traffic.bytes_sent.size, int(self.settings["seed"])))

    def predictive_check(self) -> Histogram:
        """A posterior predictive check from totals: histograms of the responses, observed and drawn from the model.

        Each site counts its own and those that it draws from the model at draws of the run; the counts are summed over
        the sites. A site with a count above 0 and below its floor in any bin takes no part.

        Raises
        ------
        AttributeError
            The run was read from a file, updated or combined: it knows no agents.
        ArithmeticError
            The draws are not certified or not of temperature 1.
        ValueError
            The model does not say how responses are drawn, or the floors of the sites hide every histogram.
        """
        positions, agents = self._sampled("predictive_check").positions, self._agents("predictive_check")
        found = agents.predicted(positions, int(self.settings["seed"]))
        if isinstance(found, str):
            raise ValueError(found)
        return found
