"""Masked totals of one of two mesh processes, and the words that it receives from the other.

python masks_worker.py FOLDER ADDRESS PROCESS
"""

import sys
from pathlib import Path

import jax
import numpy as np
from jax.experimental import multihost_utils
from test_masks import AGENTS, holding, own_row, sevens_as, wide

import accord
from accord.engines.mesh.shares import Shares
from accord.engines.processes import join


def main(folder, address, process):
    gather, received = multihost_utils.process_allgather, []

    def watched(sent):
        received.append(np.asarray(gather(sent)))
        return received[-1]

    multihost_utils.process_allgather = watched
    net, found = accord.Network.ring(AGENTS), {}
    with join(address, 2, int(process)):
        numbers = {"sums": wide(), "equal": np.full((AGENTS, 4000), 3.0), "seven": [[7.0], *[[1.0]] * 5]}
        for name, rows in numbers.items():
            post = holding(rows)
            total = post.with_data_at(Shares(post)).totals(net, masks=True)
            found[name] = total(own_row)
            found[f"{name}/received"] = np.ascontiguousarray(received[-1][1 - int(process)]).view(np.uint64)
        try:
            total(sevens_as, np.nan)
        except ArithmeticError as error:
            found["error"] = str(error)
    np.savez(Path(folder) / f"{process}.npz", **found)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    main(*sys.argv[1:])
