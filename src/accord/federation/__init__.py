"""Studies between organisations: one program at every site, and entries that travel by files or over Flower."""

from .document import StudyDocument
from .entry import Entry, ForgedError
from .exchange import EntryFolder, Pending
from .policy import RefusedError, SitePolicy
from .program import Progress, Site, result

__all__ = [
    "Entry",
    "EntryFolder",
    "ForgedError",
    "Pending",
    "Progress",
    "RefusedError",
    "Site",
    "SitePolicy",
    "StudyDocument",
    "result",
]
