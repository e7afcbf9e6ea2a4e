"""The default method: importance sampling with ChEES as fallback."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

from ...base.progress import current
from ...posterior.newton import NotIdentifiedError
from ...results.certificate import INTERRUPTED
from ..session import Job, Session
from .chees import ChEES
from .importance import Importance
from .integration import INTEGRATION
from .method import BySums, Result, SumsForecast
from .start import Start

# The reason why a run with coarse answers has one method.
_NO_FALLBACK = "ChEES is off with coarse answers"


@dataclass(frozen=True, kw_only=True)
class Auto(BySums):
    """`Importance()`, or `ChEES()` started from its points if they are not certified.

    `run.settings["chosen"]` has the method of the draws and the reason.
    """

    @property
    def _methods(self) -> tuple[BySums, ...]:
        return Importance(), ChEES()

    def _methods_of(self, job: Job) -> tuple[BySums, ...]:
        """The methods of a run: `ChEES` needs hundreds of sums, too many for coarse answers."""
        return self._methods[:1] if job.coarse else self._methods

    def title(self, job: Job) -> str:
        """The name of the first method."""
        return type(self._methods[0]).__name__

    def doubles(self, dim: int) -> int:
        """The smaller number of the two methods."""
        return min(method.doubles(dim) for method in self._methods)

    def draw(self, session: Session, start: Start | None = None) -> Result:
        """The draws of `certified`."""
        return self.certified(session, start)

    def forecast(self, session: Session) -> SumsForecast:
        """The first forecast without `doubt`, or the last one."""
        for method in self._methods_of(session.job):
            found = method.forecast(session)
            if not found.doubt:
                break
        return found

    def certified(self, session: Session, start: Start | None = None) -> Result:
        """The draws of the first method whose certificate holds, or of the last method."""
        reasons: list[str] = []
        kept: Result | None = None
        methods = self._methods_of(session.job)
        *_, last = methods
        for place, method in enumerate(methods, 1):
            name = type(method).__name__
            if (line := current()) is not None:
                line.title = name
            try:
                found = method.certified(session, start)
            except KeyboardInterrupt:
                if kept is None:
                    raise
                return replace(kept, chosen="; ".join([*reasons, f"{name} was interrupted before its first draw"]))
            except NotIdentifiedError:
                raise
            except ArithmeticError as error:
                if method == last:
                    raise
                reasons.append(f"{name} failed: {error}")
                following = type(methods[place]).__name__
                warnings.warn(f"{reasons[-1]}; falling back to {following}, which needs many more sums", stacklevel=5)
                continue
            # errors of integrals over latents are the same for all methods
            if INTERRUPTED in found.failed or found.failed in ([], [INTEGRATION]) or method == last:
                break
            reasons.append(f"{name} is not certified: {found.certificate.why}")
            start, kept = found.start, found
        if session.job.coarse:
            reasons.append(_NO_FALLBACK)
        ended = "is certified" if found.certificate.holds else f"is not certified: {found.certificate.why}"
        return replace(found, chosen="; ".join([*reasons, f"{name} {ended}"]))
