"""A matrix over agents on several devices, which fetch rows of other devices before the product."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Float, Int

from ...base.pytree import pytree, static
from ..operators import Dense, Operator, gather
from .collectives import AGENTS

# Entries of a device's part of a matrix up to which a dense product is fastest.
_DENSE_ENTRIES = 2**20


@pytree
class Halo:
    """A matrix over agents on a ring of devices, each of which fetches the rows that its part needs."""

    # this device's rows of the matrix, with columns for its own agents and then for fetched rows by shift
    part: Operator
    # rows that this device sends along the ring, by shift
    sent: tuple[Int[Array, " _"], ...]
    shifts: tuple[int, ...] = static()

    def __call__(self, x: Float[Array, "agent rest"]) -> Float[Array, "agent rest"]:
        return self.part(self._fetched(x))

    def differences(self, own: Float[Array, "agent rest"], x: Float[Array, "agent rest"]) -> Float[Array, "agent rest"]:
        return self.part.differences(own, self._fetched(x))

    def _fetched(self, x: Float[Array, "agent rest"]) -> Float[Array, "held rest"]:
        devices = jax.lax.axis_size(AGENTS)
        rows = [x]
        for shift, sent in zip(self.shifts, self.sent, strict=True):
            route = [(place, (place + shift) % devices) for place in range(devices)]
            rows.append(jax.lax.ppermute(x[sent], AGENTS, route))
        return jnp.concatenate(rows)


@pytree
class Everyone:
    """A matrix over agents on several devices, each of which fetches all rows by one all-gather."""

    # this device's rows of the matrix
    part: Operator

    def __call__(self, x: Float[Array, "agent rest"]) -> Float[Array, "agent rest"]:
        return self.part(self._fetched(x))

    def differences(self, own: Float[Array, "agent rest"], x: Float[Array, "agent rest"]) -> Float[Array, "agent rest"]:
        return self.part.differences(own, self._fetched(x))

    @staticmethod
    def _fetched(x: Float[Array, "agent rest"]) -> Float[Array, "everyone rest"]:
        return jax.lax.all_gather(x, AGENTS, tiled=True)


def fetched(matrix: scipy.sparse.csr_array, devices: int, rows: int) -> Halo | Everyone:
    """A sparse matrix over `agents <= devices * rows` agents, as `Everyone` if devices need most rows, else `Halo`."""
    borders = halo(matrix, devices, rows)
    width = sum(sent.size // devices for sent in borders.sent)
    if len(borders.shifts) < 2 or 2 * width < rows * (devices - 1):
        return borders
    whole = scipy.sparse.csr_array(matrix)
    whole.resize(devices * rows, devices * rows)
    return Everyone(_part(whole, rows))


def _part(local: scipy.sparse.csr_array, rows: int) -> Operator:
    """The parts of all devices, of `rows` rows each, stacked."""
    return Dense(jnp.asarray(local.toarray())) if rows * local.shape[1] <= _DENSE_ENTRIES else gather(local)


def halo(matrix: scipy.sparse.csr_array, devices: int, rows: int) -> Halo:
    """A sparse matrix over `agents <= devices * rows` agents as `Halo`, with the parts of all devices stacked."""
    entries = scipy.sparse.coo_array(matrix)
    extra = np.arange(matrix.shape[0], devices * rows)
    # padding rows have only a diagonal entry
    row, column = np.concatenate([entries.row, extra]), np.concatenate([entries.col, extra])
    data = np.concatenate([entries.data, np.ones(extra.size)])
    home, away = row // rows, column // rows
    place, width, shifts, sent = column % rows, rows, [], []
    for shift in range(1, devices):
        crossing = (home - away) % devices == shift
        if not crossing.any():
            continue
        wanted = [np.unique(column[crossing & (away == device)]) for device in range(devices)]
        most = max(map(len, wanted))
        table = np.zeros((devices, most), np.int32)
        for device, columns in enumerate(wanted):
            table[device, : len(columns)] = columns - device * rows
            own = crossing & (away == device)
            place[own] = width + np.searchsorted(columns, column[own])
        shifts.append(shift)
        sent.append(jnp.asarray(table.ravel()))
        width += most
    local = scipy.sparse.csr_array((data, (row, place)), shape=(devices * rows, width))
    return Halo(_part(local, rows), tuple(sent), tuple(shifts))
