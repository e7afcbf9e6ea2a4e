"""The papers' figures and tables, one file each; `accord reproduce NAME` runs one.

They lie in the package, and not beside it, so that an installed wheel has them. Each module has one `EXPERIMENT`.
"""

from __future__ import annotations

from ..errors import unknown_name_error
from . import (
    dadmms_fig1,
    dadmms_fig2,
    dadmms_fig3,
    dadmms_fig4,
    dadmms_fig5,
    dadmms_fig6,
    desghmc_fig_networks,
    desgld_fig4,
    desgld_fig_networks,
    dglmc_fig2,
    dglmc_fig3,
    dglmc_fig4,
    dglmc_table1,
    gibbs_fig2,
    gibbs_fig4,
    gibbs_fig5,
    gibbs_table1,
    gibbs_table2,
    gtdula_fig1,
    gtdula_fig2,
    gtdula_fig3,
)
from .frame import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (
        dadmms_fig1,
        dadmms_fig2,
        dadmms_fig3,
        dadmms_fig4,
        dadmms_fig5,
        dadmms_fig6,
        desghmc_fig_networks,
        desgld_fig4,
        desgld_fig_networks,
        dglmc_fig2,
        dglmc_fig3,
        dglmc_fig4,
        dglmc_table1,
        gibbs_fig2,
        gibbs_fig4,
        gibbs_fig5,
        gibbs_table1,
        gibbs_table2,
        gtdula_fig1,
        gtdula_fig2,
        gtdula_fig3,
    )
}


def find(name: str) -> Experiment:
    """The experiment of that name, or a `ValueError` that names the nearest one."""
    if name not in EXPERIMENTS:
        raise unknown_name_error("experiment", name, [*EXPERIMENTS, "all"])
    return EXPERIMENTS[name]
