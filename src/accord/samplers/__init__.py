"""The methods, one file each, listed in `__all__`. `Gossip` and `Mixing` are base classes of custom methods."""

from . import balance as balance
from . import combine as combine
from . import conditional as conditional
from . import convex_sets as convex_sets
from . import schedules as schedules
from .asynchronous_ula import AsynchronousULA
from .by_sums.auto import Auto
from .by_sums.chees import ChEES
from .by_sums.importance import Importance
from .by_sums.private import Private
from .d_admms import DADMMS
from .d_mahmc import DMAHMC
from .dasg import DASG
from .de_sghmc import DESGHMC
from .de_sgld import DESGLD
from .dg_lmc import DGLMC
from .diging_sgld import DIGingSGLD
from .dula import DULA
from .elf import ELF
from .event_triggered_ula import EventTriggeredULA
from .extra_sgld import EXTRASGLD
from .fa_ld import FALD
from .fsgld import FSGLD
from .gcmc import GCMC
from .gibbs import Gibbs
from .gt_baoab import GTBAOAB
from .gt_dula import GTDULA
from .hub_sgld import HubSGLD
from .mixing import Gossip as Gossip
from .mixing import Mixing as Mixing
from .proximal_de_sgld import ProximalDESGLD
from .qlsd import QLSD
from .replicated import Replicated
from .split_gt_baoab import SplitGTBAOAB
from .stale_sgld import StaleSGLD

__all__ = [
    "AsynchronousULA",
    "Auto",
    "ChEES",
    "DADMMS",
    "DASG",
    "DESGHMC",
    "DESGLD",
    "DGLMC",
    "DIGingSGLD",
    "DMAHMC",
    "DULA",
    "EXTRASGLD",
    "EventTriggeredULA",
    "ELF",
    "FALD",
    "FSGLD",
    "GCMC",
    "GTBAOAB",
    "GTDULA",
    "Gibbs",
    "HubSGLD",
    "Importance",
    "Private",
    "ProximalDESGLD",
    "QLSD",
    "Replicated",
    "SplitGTBAOAB",
    "StaleSGLD",
]
