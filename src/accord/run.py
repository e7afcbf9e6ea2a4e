"""What a run drew, what it cost, and what it says of the posterior."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

# Attributes of the saved tree that rebuild a run; everything else of a method or network is in `settings` as text.
_FORMAT = "accord-run-2"


@dataclass(frozen=True)
class Traffic:
    """What a run sent.

    Parameters
    ----------
    rounds
        Rounds run, burn-in and thinned ones included.
    exchanges
        Exchanges of messages that had to follow one another.
    bytes_sent
        Bytes that each agent sent in one chain, over all its edges, shape (agent,).
    gradient_rows
        Rows that each agent read for gradients or values of f_i in one chain, shape (agent,); a potential whose rows
        cannot be told apart counts as one row.
    """

    rounds: int
    exchanges: int
    bytes_sent: np.ndarray
    gradient_rows: np.ndarray


@dataclass(frozen=True, eq=False)
class Run:
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
        Text about the run: method, network, seed, burn_in, thin, ...
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
            raise AttributeError('this run kept only the average: read run.average, or sample with keep="agents"')
        return self.kept

    def __repr__(self) -> str:
        chains, draws, dim = self.average.shape
        return f"<Run: {chains} chains of {draws} draws, {self.agents.size} agents kept, {dim} parameters>"

    def to_datatree(self) -> xr.DataTree:
        """The run as an xarray DataTree that ArviZ reads.

        Groups: `posterior` with dimensions (chain, draw, agent, ...), `average` with (chain, draw, ...),
        `sample_stats` with (chain, draw) and `traffic` with (agent_sent,). Without kept agents `posterior` is
        left out.
        """
        import xarray as xr

        groups: dict[str, xr.Dataset] = {}
        if self.agents.size:
            groups["posterior"] = self._dataset(self.kept, ("chain", "draw", "agent"))
        groups["average"] = self._dataset(self.average, ("chain", "draw"))
        groups["sample_stats"] = xr.Dataset({name: (("chain", "draw"), x) for name, x in self.statistics.items()})
        counts = {"bytes_sent": self.traffic.bytes_sent, "gradient_rows": self.traffic.gradient_rows}
        groups["traffic"] = xr.Dataset({name: (("agent_sent",), count) for name, count in counts.items()})
        chain, draw = np.arange(self.average.shape[0]), np.arange(self.average.shape[1])
        for name in set(groups) - {"traffic"}:
            groups[name] = groups[name].assign_coords(chain=chain, draw=draw)
        tree = xr.DataTree.from_dict(groups)
        tree.attrs = {
            "format": _FORMAT,
            "names": list(self.names),
            "rounds": self.traffic.rounds,
            "exchanges": self.traffic.exchanges,
            "seconds": self.seconds,
            "setting_names": list(self.settings),
            "setting_values": [str(value) for value in self.settings.values()],
        }
        return tree

    def _dataset(self, draws: np.ndarray, dims: tuple[str, ...]) -> xr.Dataset:
        import xarray as xr

        arrays: dict[str, xr.DataArray] = {}
        start = 0
        for name, shape in self.variables:
            stop = start + int(np.prod(shape, dtype=int))
            own = tuple(f"{name}_dim_{k}" for k in range(len(shape)))
            coords: dict[str, Any] = {}
            if len(shape) == 1:
                coords[own[0]] = list(self.names[start:stop])
            if "agent" in dims:
                coords["agent"] = self.agents
            values = draws[..., start:stop].reshape(*draws.shape[:-1], *shape)
            arrays[name] = xr.DataArray(values, dims=(*dims, *own), coords=coords)
            start = stop
        return xr.Dataset(arrays)

    def save(self, path: str | Path) -> None:
        """Write the tree of `to_datatree` as NetCDF; an existing file is replaced only when all is written."""
        path = Path(path)
        partial = path.with_name(path.name + ".partial")
        self.to_datatree().to_netcdf(partial, engine="h5netcdf")
        partial.replace(path)

    @classmethod
    def load(cls, path: str | Path) -> Run:
        """Read a run that `save` wrote.

        Raises
        ------
        ValueError
            The file is not a run of accord.
        """
        import xarray as xr

        with xr.open_datatree(path, engine="h5netcdf") as tree:
            if tree.attrs.get("format") != _FORMAT:
                raise ValueError(f"{path} is not a run written by accord (format {tree.attrs.get('format')!r})")
            tree = tree.load()
        average = tree["average"].to_dataset()
        variables = tuple((str(name), tuple(array.shape[2:])) for name, array in average.data_vars.items())
        flat = _flatten(average, 2)
        agents = np.array([], dtype=np.int64)
        kept = np.zeros((*flat.shape[:2], 0, flat.shape[2]), flat.dtype)
        if "posterior" in tree.children:
            posterior = tree["posterior"].to_dataset()
            agents, kept = posterior["agent"].values, _flatten(posterior, 3)
        attrs = tree.attrs
        return cls(
            average=flat,
            agents=agents,
            kept=kept,
            statistics={str(n): a.values for n, a in tree["sample_stats"].to_dataset().data_vars.items()},
            names=tuple(map(str, np.atleast_1d(attrs["names"]))),
            variables=variables,
            traffic=Traffic(
                int(attrs["rounds"]),
                int(attrs["exchanges"]),
                *(tree["traffic"].to_dataset()[name].values for name in ("bytes_sent", "gradient_rows")),
            ),
            seconds=float(attrs["seconds"]),
            settings=dict(
                zip(
                    map(str, np.atleast_1d(attrs["setting_names"])),
                    map(str, np.atleast_1d(attrs["setting_values"])),
                    strict=True,
                )
            ),
        )

    def summary(self) -> pd.DataFrame:
        """The posterior by parameter: mean, sd, 5% and 95% quantiles, bulk ESS and R-hat, of average and worst agent.

        The worst agent of a parameter is the kept one whose marginal lies furthest from the average's in the
        Wasserstein distance of their Gaussian approximations. Rows are parameters; columns have two levels,
        ("average" | "worst agent", statistic), and ("worst agent", "agent") names it.
        """
        import pandas as pd

        blocks = {"average": pd.DataFrame(_statistics(self.average), index=list(self.names))}
        if self.agents.size:
            mean, sd = (getattr(np, f)(self.kept, axis=(0, 1), dtype=np.float64) for f in ("mean", "std"))
            own = [getattr(np, f)(self.average, axis=(0, 1), dtype=np.float64) for f in ("mean", "std")]
            worst = np.argmax(np.hypot(mean - own[0], sd - own[1]), axis=0)
            chosen = np.take_along_axis(self.kept, worst[None, None, None, :], axis=2)[:, :, 0]
            table = pd.DataFrame({"agent": self.agents[worst], **_statistics(chosen)}, index=list(self.names))
            blocks["worst agent"] = table
        return pd.concat(blocks, axis=1)


def _flatten(dataset: xr.Dataset, lead: int) -> np.ndarray:
    arrays = [array.values.reshape(*array.shape[:lead], -1) for array in dataset.data_vars.values()]
    return np.concatenate(arrays, axis=-1)


def _statistics(draws: np.ndarray) -> dict[str, np.ndarray]:
    """Columns of the summary from draws of shape (chain, draw, dim)."""
    from arviz_stats.base.array import array_stats

    draws = draws.astype(np.float64)
    low, high = np.quantile(draws, [0.05, 0.95], axis=(0, 1))
    ess, rhat = np.full((2, draws.shape[2]), np.nan)
    # both need at least four draws a chain that differ, and R-hat two chains
    varied = np.flatnonzero(np.ptp(draws, axis=1).min(axis=0) > 0)
    if draws.shape[1] >= 4 and varied.size:
        ess[varied] = array_stats.ess(draws[..., varied], chain_axis=0, draw_axis=1)
        if draws.shape[0] > 1:
            rhat[varied] = array_stats.rhat(draws[..., varied], chain_axis=0, draw_axis=1)
    return {
        "mean": draws.mean(axis=(0, 1)),
        "sd": draws.std(axis=(0, 1)),
        "5%": low,
        "95%": high,
        "ess": ess,
        "rhat": rhat,
    }


def human_bytes(count: float) -> str:
    """A number of bytes with three digits and a unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
