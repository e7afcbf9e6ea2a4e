"""The methods, one file each."""

from .d_admms import DADMMS
from .de_sghmc import DESGHMC
from .de_sgld import DESGLD
from .dula import DULA
from .gt_dula import GTDULA

__all__ = ["DADMMS", "DESGHMC", "DESGLD", "DULA", "GTDULA"]
