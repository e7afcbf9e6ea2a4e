"""The methods, one file each; `__all__` lists them. `Gossip`, a base for methods of your own, is importable too."""

from .chees import ChEES
from .d_admms import DADMMS
from .d_mahmc import DMAHMC
from .dasg import DASG
from .de_sghmc import DESGHMC
from .de_sgld import DESGLD
from .dg_lmc import DGLMC
from .dula import DULA
from .gcmc import GCMC
from .gibbs import Gibbs
from .gt_baoab import GTBAOAB
from .gt_dula import GTDULA
from .hub_sgld import HubSGLD
from .importance import Importance
from .mixing import Gossip as Gossip
from .replicated import Replicated

__all__ = [
    "ChEES",
    "DADMMS",
    "DASG",
    "DESGHMC",
    "DESGLD",
    "DGLMC",
    "DMAHMC",
    "DULA",
    "GCMC",
    "GTBAOAB",
    "GTDULA",
    "Gibbs",
    "HubSGLD",
    "Importance",
    "Replicated",
]
