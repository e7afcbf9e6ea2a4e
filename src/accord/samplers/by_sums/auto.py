"""The default: the first of the methods by sums whose draws are certified."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

from ...posterior.newton import NotIdentifiedError
from ...results.certificate import INTERRUPTED
from ..session import Job, Session
from .chees import ChEES
from .importance import Importance
from .integration import INTEGRATION
from .method import BySums, Result, SumsForecast
from .start import Start


@dataclass(frozen=True, kw_only=True)
class Auto(BySums):
    """`Importance()`, and where its draws are not certified, `ChEES()`, which begins at what was found before.

    The run says in `run.settings["chosen"]` which of them drew, and why.
    """

    @property
    def _methods(self) -> tuple[BySums, ...]:
        return Importance(), ChEES()

    def title(self, job: Job) -> str:
        """Both names."""
        return " or ".join(type(method).__name__ for method in self._methods)

    def doubles(self, dim: int) -> int:
        """Those of the method that holds fewer."""
        return min(method.doubles(dim) for method in self._methods)

    def draw(self, session: Session, start: Start | None = None) -> Result:
        """The draws, certified already."""
        return self.certified(session, start)

    def forecast(self, session: Session) -> SumsForecast:
        """The first forecast without a doubt, or the last."""
        for method in self._methods:
            found = method.forecast(session)
            if not found.doubt:
                break
        return found

    def certified(self, session: Session, start: Start | None = None) -> Result:
        """The draws of the first method whose certificate holds, or of the last."""
        reasons: list[str] = []
        kept: Result | None = None
        *_, last = self._methods
        for place, method in enumerate(self._methods, 1):
            name = type(method).__name__
            try:
                found = method.certified(session, start)
            except KeyboardInterrupt:
                if kept is None:
                    raise
                # what was drawn before is not certified, and better than nothing
                return replace(kept, chosen="; ".join([*reasons, f"{name} was interrupted before it had drawn"]))
            except NotIdentifiedError:
                raise
            except ArithmeticError as error:
                if method == last:
                    raise
                reasons.append(f"{name} did not begin: {error}")
                following = type(self._methods[place]).__name__
                # what is next may take long
                warnings.warn(f"{reasons[-1]}; {following} goes on, by many sums", stacklevel=5)
                continue
            # what integrals over latents are off, they are off for all methods
            if INTERRUPTED in found.failed or found.failed in ([], [INTEGRATION]) or method == last:
                break
            reasons.append(f"{name} is not certified: {found.certificate.why}")
            start, kept = found.start, found
        ended = "is certified" if found.certificate.holds else f"is not certified: {found.certificate.why}"
        return replace(found, chosen="; ".join([*reasons, f"{name} {ended}"]))
