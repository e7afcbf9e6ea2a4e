"""The output folder of `accord run`: run.nc, summary.csv, summary.txt, config.toml and report.html."""

from __future__ import annotations

import json
import shutil
import tempfile
import tomllib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.atomic import write_whole
from ..base.interruptions import hold
from ..engines.fingerprint import first_differing, forget, keyed, own_key, record, recorded
from ..examine.page import notes_of
from ..results.run import Run

if TYPE_CHECKING:
    import pandas as pd

    from .config import Job

DRAWS, SUMMARY, NOTES, CONFIG, REPORT = "run.nc", "summary.csv", "summary.txt", "config.toml", "report.html"
# Folder with digests of the inputs and of the draws of the run.
INPUTS = ".inputs"
# Largest number of characters of a configuration value that a message quotes.
_MOST_LETTERS = 60
# Difference of two configurations with equal keys.
_COMMENTS = f"{CONFIG}, in comments or spaces"
# Column of `Run.summary()` with the name of the agent furthest from the average.
WORST = ("worst agent", "agent")


@dataclass(frozen=True, eq=False)
class Place:
    """The output folder of a job.

    Parameters
    ----------
    job
        The job.
    config
        Its configuration file, as bytes.
    with_report
        Whether a report page will be written.
    overwrite
        Whether to replace files of another run.
    warned
        Warnings of accord so far.
    """

    job: Job
    config: bytes
    with_report: bool = False
    overwrite: bool = False
    warned: Sequence[str] = ()

    def claim(self) -> Run | None:
        """Create the folder before sampling, or return the run in it if it is this run and finished.

        Raises
        ------
        ValueError
            The folder is a file, or has files of another run.
        """
        folder = self.job.output
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"the output folder {folder} is a file: name another with --output")
        if not self.overwrite:
            done = self._finished(folder)
            if done is not None:
                return done
            if taken := self._taken(folder):
                raise ValueError(
                    f"the output folder {folder} holds {taken}: add --overwrite to replace it, or name another folder "
                    "with --output"
                )
        folder.mkdir(parents=True, exist_ok=True)
        return None

    def write(self, drawn: Run) -> tuple[Path, pd.DataFrame]:
        """Write the files of a run. Returns their folder and the summary, and issues the summary's warnings.

        Raises
        ------
        OSError
            A file cannot be written, for example on a full disk. The message names the file with the draws instead.
        """
        # an interrupt waits until all files are written
        hold()
        # sites and scales make the file self-contained
        drawn.settings["sites"] = list(self.job.sites)
        if self.job.agreed is not None:
            drawn.settings["agreed"] = self.job.agreed.to_json()
        if self.job.sds:
            drawn.settings["sds"] = dict(self.job.sds)
        folder = self._free()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # the record of inputs is written last and marks the files as complete
            forget(folder / INPUTS)
            drawn.save(folder / DRAWS)
        except OSError as error:
            raise _kept_elsewhere(drawn, error) from error
        summary = drawn.summary(self.job.sites)
        for name, content in self._texts(drawn, summary).items():
            write_whole(folder / name, content)
        write_whole(folder / CONFIG, self.config)
        if self.job.inputs is not None:
            record(folder / INPUTS, self._digests(folder, self.job.inputs))
        return folder, summary

    def complete(self, done: Run, summary: pd.DataFrame) -> list[str]:
        """Write missing files beside the draws of a finished run. Returns their names."""
        missing = [name for name in (SUMMARY, NOTES) if not (self.job.output / name).exists()]
        texts = self._texts(done, summary) if missing else {}
        for name in missing:
            write_whole(self.job.output / name, texts[name])
        return missing

    def _texts(self, drawn: Run, summary: pd.DataFrame) -> dict[str, bytes]:
        """The summary table and the notes of a run, with one line per note or warning."""
        warned = (f"Warning: {' '.join(text.split())}" for text in self.warned)
        return {SUMMARY: _as_csv(summary), NOTES: ("\n".join([*notes_of(drawn), *warned]) + "\n").encode()}

    def _free(self) -> Path:
        """The output folder, or a free one beside it if another process wrote to it since `claim`."""
        own = self.job.output
        if self.overwrite:
            return own
        folder = next(folder for folder in _numbered(own) if not self._taken(folder))
        if folder is not own:
            warnings.warn(f"the output folder {own} now holds {self._taken(own)}: written to {folder}", stacklevel=3)
        return folder

    def _finished(self, folder: Path) -> Run | None:
        """The run in a folder, if it is this run and has all its draws."""
        copy = folder / CONFIG
        if not (copy.is_file() and copy.read_bytes() == self.config) or self._other_inputs(folder) != "":
            return None
        try:
            found = Run.load(folder / DRAWS)
        except (OSError, ValueError):
            return None
        return found if found.average.shape[1] >= self.job.draws else None

    def _other_inputs(self, folder: Path) -> str | None:
        """The difference of inputs or draws to the recorded run, "" for none, None if unknown.

        Ignores the configuration.
        """
        theirs = None if self.job.inputs is None else recorded(folder / INPUTS)
        if theirs is None or self.job.inputs is None:
            return None
        return _difference(self._digests(folder, self.job.inputs), theirs)

    @staticmethod
    def _digests(folder: Path, inputs: Callable[[bytes], dict[str, str]]) -> dict[str, str]:
        """The inputs of the job, and the digest of the draws in a folder, under the key of the folder."""
        key = own_key(folder / INPUTS)
        draws = folder / DRAWS
        return inputs(key) | ({DRAWS: keyed(draws.read_bytes(), key)} if draws.is_file() else {})

    def _taken(self, folder: Path) -> str:
        """A description of files in a folder that do not belong to an unfinished part of this run, or ""."""
        draws, summary, copy = (folder / name for name in (DRAWS, SUMMARY, CONFIG))
        if copy.exists() and not (copy.is_file() and copy.read_bytes() == self.config):
            if not draws.exists():
                return f"another file {CONFIG}"
            difference = _difference_of_configs(self.config, copy)
            if difference == _COMMENTS:
                # comments do not hide other data
                difference = self._other_inputs(folder) or difference
            return f"another run ({difference})"
        if not draws.exists():
            others = [summary, folder / NOTES, *([folder / REPORT] if self.with_report else [])]
            return next((f"another file {other.name}" for other in others if other.exists()), "")
        if copy.exists() and (other := self._other_inputs(folder)):
            return f"another run ({other})"
        if not copy.exists() or (self.job.inputs is not None and recorded(folder / INPUTS) is None):
            return f"{DRAWS} without the record of its run, as after an interrupted write"
        if not self.job.has_checkpoint:
            return f"another run ({DRAWS})"
        try:
            before = Run.load(draws)
        except ValueError:
            return f"another file {DRAWS}"
        if before.average.shape[1] >= self.job.draws:
            return f"this run, finished ({DRAWS})"
        if summary.exists():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                own = _as_csv(before.summary())
            # an edited summary is not overwritten
            return "" if summary.is_file() and summary.read_bytes() == own else f"another file {SUMMARY}"
        return ""


def _difference(mine: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """The first entry that differs, such as "seed is 2, and was 1", or ""."""
    name = first_differing(mine, theirs)
    if name is None:
        return ""
    # digests only, without values
    if name in ("data", DRAWS) or name.startswith("module "):
        return f"with another {name}" if name != "data" else "with other data"
    now, before = (
        text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}..."
        for text in (one.get(name, "left out") for one in (mine, theirs))
    )
    return f"{name} is {now}, and was {before}"


def _difference_of_configs(mine: bytes, copy: Path) -> str:
    """The first key that differs between two configurations, with both values."""
    try:
        own, theirs = (_keys(text) for text in (mine, copy.read_bytes()))
    except (OSError, ValueError, RecursionError):
        return CONFIG
    return _difference(own, theirs) or _COMMENTS


def _keys(config: bytes) -> dict[str, str]:
    """The values of a configuration, with keys such as "draws in [run]"."""

    def flat(part: Mapping[str, Any], above: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        for key, value in part.items():
            if isinstance(value, dict):
                yield from flat(value, (*above, key))
            else:
                text = json.dumps(value, default=str, ensure_ascii=False)
                yield ".".join((*above[1:], key)) + "".join(f" in [{name}]" for name in above[:1]), text

    return dict(flat(tomllib.loads(config.decode("utf-8-sig")), ()))


def _numbered(folder: Path) -> Iterator[Path]:
    yield folder
    for number in count(2):
        yield folder.with_name(f"{folder.name}-{number}")


def _as_csv(summary: pd.DataFrame) -> bytes:
    columns = ["worst agent" if column == WORST else " ".join(column) for column in summary.columns]
    return summary.set_axis(columns, axis=1).to_csv(index_label="parameter").encode()


def _kept_elsewhere(drawn: Run, error: OSError) -> OSError:
    """The error for draws that cannot be written, which are saved in a temporary folder instead if possible."""
    spare = Path(tempfile.mkdtemp(prefix="accord-"))
    try:
        drawn.save(spare / DRAWS)
    except OSError as another:
        shutil.rmtree(spare, ignore_errors=True)
        return OSError(f"{error}, and the temporary folder cannot be written either: {another}")
    return OSError(f"{error}. The draws are in {spare / DRAWS}")
