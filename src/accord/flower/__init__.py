"""Federations of organisations over Flower, see docs/flower.md."""

from .engine import Flower
from .policy import RefusedError, SitePolicy
from .site import Site
from .study import StudyDocument

__all__ = ["Flower", "RefusedError", "Site", "SitePolicy", "StudyDocument"]
