"""Federations: sites answer what their policies allow, and draws equal the draws of one process."""

import base64
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from typer.testing import CliRunner

import accord
from accord.base.errors import DataError
from accord.cli import app
from accord.data import Policy
from accord.data.collectives import LocalCollectives, means_and_sds, sums_of
from accord.federation import (
    Entry,
    EntryFolder,
    ForgedError,
    RefusedError,
    Site,
    SitePolicy,
    StudyDocument,
    audit,
    engine,
    figures,
    result,
)
from accord.federation.check import check
from accord.federation.document import hash_of
from accord.federation.engine import SumExchange, prior_limit
from accord.federation.entry import digest_of, plain, revived
from accord.federation.exchange import Exchange, Plan
from accord.federation.flower import board, channel, errors
from accord.federation.keys import SiteMasks, is_signed, new_identity, secret_noise, signature
from accord.federation.program import SiteError, follow
from accord.posterior.coordinates import Coordinates
from accord.posterior.masks import added, decoded, encoded
from accord.results.certificate import Certificate, Check
from accord.samplers.by_sums.evaluations import mean_expansion
from accord.samplers.by_sums.proposal import Drawn, student

SITES = ("north", "south", "west")
STUDY = """
[data]
sites = ["north", "south", "west"]
positive = {died = "yes"}

[model]
formula = "died ~ scale(age) + ward"
family = "bernoulli"

[priors]
ward = {name = "Normal", loc = 0.0, scale = 2.0}

[run]
draws = 200
coarse = false
"""
COARSE = STUDY.replace("coarse = false\n", "")
# The first step whose plan has points, without coarse answers.
PLANNED = 7


def rows_of(place, rows=90):
    rng = np.random.default_rng(place)
    age = rng.normal(50 + place, 9, rows).round(3)
    died = np.where(rng.random(rows) < 1 / (1 + np.exp(-(age - 50) / 9)), "yes", "no")
    return "\n".join(
        ["age,ward,died", *(f"{a},{w},{d}" for a, w, d in zip(age, rng.choice(["a", "b"], rows), died, strict=True))]
    )


class Federation:
    """Sites below a folder, and a shared folder of entries. Each answer is by a new `Site`, as by a new process."""

    def __init__(self, folder, study=STUDY, sites=SITES, **changes):
        self.folder, self.sites, self.log = folder, sites, []
        self.text, self.public, self.board = study, {}, EntryFolder(folder / "board")
        for place, name in enumerate(sites):
            (folder / name).mkdir()
            (folder / name / "rows.csv").write_text(rows_of(place))
            self.public[name] = new_identity(folder / name / "key")
        for name in sites:
            self.write(name, **changes.get(name, {}))

    @property
    def study(self):
        return StudyDocument(self.text)

    def write(self, name, **changes):
        values = {"site": name, "data": "rows.csv", "folder": "kept", "studies": [hash_of(self.text)]}
        values |= {"identity": "key", "exact": True, "peers": self.public} | changes
        peers = values.pop("peers")
        lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
        keys = ["[peers]", *(f"{site} = {json.dumps(key)}" for site, key in peers.items())]
        (self.folder / name / "site.toml").write_text("\n".join(lines + keys))

    def policy(self, name):
        return SitePolicy.read(self.folder / name / "site.toml")

    def store(self, name):
        """The entries that a site has stored."""
        return EntryFolder(self.folder / name / "kept" / hash_of(self.text)[:16] / "entries", private=True)

    def audit(self, name):
        kept = self.folder / name / "kept"
        return audit.read(kept) if (kept / "audit.jsonl").is_file() else []

    def answer(self, name, entries=None):
        """The progress of a site, whose new entries are put into the shared folder."""
        entries = self.board.all(self.sites) if entries is None else entries
        found = Site(self.policy(name), self.log.append).answer(self.study, entries)
        for step, text in found.entries.items():
            if self.board.read(step, name) is None:
                self.board.write(step, name, text)
        return found

    def run(self, until=None, between=lambda: None):
        """Answer site by site, to the end or until all sites have made their entries of a step. The runs by site.

        `between` is called between the rounds.
        """
        runs = {}
        while len(runs) < len(self.sites):
            between()
            for name in self.sites:
                found = self.answer(name)
                if found.run is not None:
                    runs[name] = found.run
            if until is not None and all(self.board.read(until, name) for name in self.sites):
                break
        return runs

    def message(self, name, request):
        """The answer of a site to a message of a server."""
        return board.answered(self.policy(name), request, self.log.append)

    def change(self, step, name, **changes):
        """The entry of a site with other fields, signed by the site's key. It replaces the one in the shared folder."""
        before = Entry.read(self.board.read(step, name), self.public, "before")
        text = replace(before, **changes).signed(self.folder / name / "key")
        self.board.write(step, name, text)
        return text

    def here(self):
        files = [self.folder / name / "rows.csv" for name in self.sites]
        options = {"formula": self.study._arguments["formula"], "positive": {"died": "yes"}}
        return accord.models.glm(accord.data.study(files, **options), **self.study._arguments)


def drawn_here(federation):
    return accord.sample(federation.here(), accord.Network.star(len(federation.sites)), draws=200)


def entries_of(folder):
    """The contents of all files of entries."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("step-*/*.json"))}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    federation = Federation(tmp_path_factory.mktemp("federation"))
    return federation, federation.run()


@pytest.fixture(scope="module")
def coarse(tmp_path_factory):
    """A study with noise, which is the default."""
    federation = Federation(tmp_path_factory.mktemp("coarse"), COARSE, **dict.fromkeys(SITES, {"exact": False}))
    return federation, federation.run()


@pytest.fixture
def at(finished, tmp_path):
    """A copy of the finished study before a step, without entries of it."""

    def make(step):
        return back(finished[0], tmp_path / f"before {step}", step)

    return make


def back(finished, folder, step, only=None):
    """A copy of a federation before a step. With `only`, other sites keep their own entries of this step."""
    shutil.copytree(finished.folder, folder)
    found = Federation.__new__(Federation)
    found.__dict__ |= finished.__dict__ | {"folder": folder, "board": EntryFolder(folder / "board"), "log": []}
    for path in folder.rglob("step-*/*.json"):
        number = int(path.parent.name.removeprefix("step-"))
        is_own = path.parents[4].name == path.stem
        keep = number < step or (only is not None and number == step and is_own and path.stem not in only)
        if not keep:
            path.unlink()
    for path in folder.rglob("run.nc"):
        path.unlink()
    return found


def number_of_steps(federation):
    return len(list((federation.folder / "board").glob("step-*")))


# --- draws ---


def test_draws_of_a_federation_equal_the_draws_of_one_process(finished):
    federation, runs = finished
    expected = drawn_here(federation)
    without_rows = result(federation.study, federation.board.folder, federation.public)
    for run in (*runs.values(), without_rows, result(federation.study, federation.board.folder)):
        assert run.certificate.holds and run.names == expected.names
        np.testing.assert_allclose(run.draws, expected.draws, rtol=1e-9, atol=1e-9)
        np.testing.assert_array_equal(run.draws, runs["north"].draws)


def test_draws_of_a_study_with_noise_are_near_the_draws_of_one_process(coarse):
    federation, runs = coarse
    expected = drawn_here(federation)
    mean, sd = expected.average.mean(axis=(0, 1)), expected.average.std(axis=(0, 1))
    for run in (*runs.values(), result(federation.study, federation.board.folder)):
        np.testing.assert_array_equal(run.draws, runs["north"].draws)
        assert run.certificate.holds and run.names == expected.names
        assert np.abs((run.average.mean(axis=(0, 1)) - mean) / sd).max() < 0.3
        assert np.abs(np.log(run.average.std(axis=(0, 1)) / sd)).max() < 0.2
    # the noise is not zero
    assert np.abs(runs["north"].average.mean(axis=(0, 1)) - mean).max() > 1e-6


def test_draws_near_the_limit_of_the_prior_are_refused(finished, monkeypatch):
    federation, _ = finished
    assert prior_limit(3) == 10.0 and prior_limit(100) == 15.0
    monkeypatch.setattr("accord.federation.program._NEAR_LIMIT", 0.01)
    with pytest.raises(ArithmeticError, match=r"a draw is \d\.\d standard deviations of the prior .* beyond 10\.0"):
        result(federation.study, federation.folder / "board")


def test_sites_keep_the_run(finished):
    federation, runs = finished
    for name in SITES:
        kept = accord.Run.load(federation.store(name).folder.parent / "run.nc")
        np.testing.assert_array_equal(kept.draws, runs[name].draws)


def test_a_finished_study_has_the_same_answer_again(finished):
    federation, runs = finished
    lines = len(federation.audit("north"))
    found = federation.answer("north")
    assert found.waits_for == () and found.step == number_of_steps(federation)
    np.testing.assert_array_equal(found.run.draws, runs["north"].draws)
    assert len(federation.audit("north")) == lines


class Messages:
    """A channel that asks sites in this process, and keeps all messages."""

    def __init__(self, federation, dies_after=None):
        self.federation, self.seen, self.dies_after = federation, [], dies_after

    def __call__(self, requests):
        answers = {name: self.federation.message(name, request) for name, request in requests.items()}
        self.seen += [*requests.values(), *answers.values()]
        if self.dies_after is not None and len(self.seen) >= self.dies_after:
            raise ConnectionError("the server was killed")
        return answers


@pytest.mark.long
def test_draws_over_messages_equal_the_draws_of_one_process(tmp_path, finished, capsys):
    federation, log = Federation(tmp_path), []
    messages = Messages(federation, dies_after=50)
    with pytest.raises(ConnectionError):
        board.lead(federation.study, messages, tmp_path / "server", log.append)
    before = entries_of(tmp_path / "server")
    again = Messages(federation)
    board.lead(federation.study, again, tmp_path / "server", log.append)
    # a restarted server continues with the entries that it has, and sites make none of them again
    assert before and before.items() <= entries_of(tmp_path / "server").items()
    run = accord.Run.load(tmp_path / "server" / "run.nc")
    np.testing.assert_allclose(run.draws, finished[1]["north"].draws, rtol=1e-9, atol=1e-9)
    assert "scale(age)" in capsys.readouterr().out
    steps = [int(text.split()[1].strip(":")) for text in log if text.startswith("step ")]
    assert steps == sorted(steps) and log[-1].endswith("run.nc") and " messages, " in log[-2]
    for name in SITES:
        assert_made_once(federation, name)


def assert_made_once(federation, name):
    """The audit file of a site has one hash for each step."""
    lines = [line for line in federation.audit(name) if "step" in line]
    assert len({line["step"] for line in lines}) == len({(line["step"], line["hash"]) for line in lines})


# --- what travels ---


def numbers_in(value):
    """All numbers and texts in JSON values."""
    if isinstance(value, np.ndarray):
        return value.ravel().tolist()
    if isinstance(value, dict):
        return [one for item in value.values() for one in numbers_in(item)]
    if isinstance(value, list):
        return [one for item in value for one in numbers_in(item)]
    return [value]


def contents(federation):
    """The content of all entries, by step and site."""
    found = federation.board.all(federation.sites)
    return {place: revived(Entry.read(text, federation.public, f"{place}").content) for place, text in found.items()}


def ages(federation):
    return [
        np.loadtxt(federation.folder / name / "rows.csv", delimiter=",", skiprows=1, usecols=0)
        for name in federation.sites
    ]


@pytest.mark.parametrize("study", ["finished", "coarse"])
def test_no_cell_and_no_part_of_a_sum_travels(request, study):
    federation, _ = request.getfixturevalue(study)
    cells = np.concatenate(ages(federation))
    cells = cells[cells != cells.round()]
    words = b""
    for content in contents(federation).values():
        if isinstance(content, dict) and "masked" in content:
            assert content.keys() == {"about", "like", "masked"}
            words += content["masked"].tobytes()
        if isinstance(content, dict) and "coarse" in content:
            assert content.keys() == {"coarse"} and content["coarse"].dtype == np.uint8
            words += content["coarse"].tobytes()
        numbers = [float(one) for one in numbers_in(content) if isinstance(one, int | float)]
        assert not np.isin(cells, numbers).any()
    # words of sums look like noise: all bytes are equally frequent
    counts = np.bincount(np.frombuffer(words, np.uint8), minlength=256)
    assert len(words) > 10_000
    assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 255 + 5 * np.sqrt(2 * 255)


def test_no_site_sends_summaries_of_its_own_rows(finished):
    federation, _ = finished
    clear = [
        content for content in contents(federation).values() if not (isinstance(content, dict) and "masked" in content)
    ]
    values = [one for content in clear for one in numbers_in(content)]
    summaries = [
        one for age in ages(federation) for one in (age.mean(), age.std(), age.sum(), *np.quantile(age, [0.25, 0.5]))
    ]
    numbers = [float(one) for one in values if isinstance(one, int | float)]
    # numbers of rows and names of levels are sent in the clear
    assert 90.0 in numbers and "a" in values
    assert not any(np.isclose(one, summaries, rtol=1e-6).any() for one in numbers)


@pytest.mark.parametrize("study", ["finished", "coarse"])
def test_an_audit_file_has_every_entry(request, study):
    federation, _ = request.getfixturevalue(study)
    for name in SITES:
        lines = federation.audit(name)
        made = [line for line in lines if "step" in line]
        assert [line["step"] for line in made] == list(range(number_of_steps(federation)))
        assert all(line["study"] == federation.study.hash for line in lines) and "finished" in lines[-1]
        for line in made:
            entry = federation.board.read(line["step"], name)
            assert line["bytes"] == len(entry) and line["what"] == json.loads(entry.splitlines()[0])["what"]
            # what is sent in the clear
            content = json.loads(entry.splitlines()[0])["content"] or {}
            assert ("sent" in line) == (not isinstance(content, dict) or not content.keys() & {"masked", "coarse"})
        assert (federation.folder / name / "kept" / "audit.jsonl").stat().st_mode & 0o777 == 0o600
        assert federation.store(name).path(3, name).stat().st_mode & 0o777 == 0o600


# --- kill and resume ---


@pytest.mark.parametrize(
    ("study", "step"), [("finished", 0), ("finished", 8), ("coarse", PLANNED + 1), ("coarse", PLANNED + 3)]
)
def test_a_new_process_makes_the_same_entries(request, tmp_path, study, step):
    before, _ = request.getfixturevalue(study)
    federation = back(before, tmp_path / "killed", step)
    for number in range(step, step + 2):
        federation.run(until=number)
    made = entries_of(federation.board.folder)
    assert made.items() <= entries_of(before.board.folder).items()
    assert len(made) >= 3 * (step + 2)


def test_own_entries_are_not_made_again(tmp_path, finished, monkeypatch):
    step, points = PLANNED + 2, []
    # south has made its entry of this step, and was killed before it left
    federation = back(finished[0], tmp_path / "killed", step, only=("north", "west"))
    before = federation.store("south").read(step, "south")
    counted = Site._count_points
    monkeypatch.setattr(Site, "_count_points", lambda *given: (points.append(given[2]), counted(*given))[1])
    assert federation.board.read(step, "south") is None and before is not None
    found = federation.answer("south")
    assert found.entries[step] == before and points == []
    assert federation.board.read(step, "south") == before
    # entries of earlier steps are not made again either
    assert not any(line.get("step") == step for line in federation.audit("south")[number_of_lines(finished[0]) :])


def number_of_lines(federation):
    return len(federation.audit("south"))


def test_a_study_at_any_step_continues_after_an_error(at, monkeypatch):
    federation = at(PLANNED + 1)
    federation.answer("north")

    def killed(*arguments, **noted):
        raise KeyboardInterrupt

    # killed after the evaluation, before the entry is stored
    with monkeypatch.context() as patch:
        patch.setattr(audit, "note", killed)
        with pytest.raises(KeyboardInterrupt):
            federation.answer("south")
    federation.run(until=PLANNED + 1)
    assert_made_once(federation, "south")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_a_step_damages_no_study(at, monkeypatch, number):
    # a run in one process keeps the draws so far, which are not the result of a study
    step, gather = PLANNED + 3, Exchange.gather

    def interrupted(exchange, *given):
        found = gather(exchange, *given)
        if exchange.step == step:
            os.kill(os.getpid(), number)
        return found

    federation = at(step)
    with monkeypatch.context() as patch:
        patch.setattr(Exchange, "gather", interrupted)
        with pytest.raises(KeyboardInterrupt):
            federation.answer("north")
        found = answer_by_command(federation, "north", "--yes")
        assert found.exit_code == 130 and "interrupted: the same command continues the study" in found.output
    assert not (federation.store("north").folder.parent / "run.nc").exists()
    federation.run(until=step + 1)
    assert_made_once(federation, "north")


@pytest.mark.slow
def test_commands_are_killed_and_continue(tmp_path, finished):
    federation = Federation(tmp_path)
    (tmp_path / "study.toml").write_text(STUDY)

    def start(name):
        command = [sys.executable, "-m", "accord", "study", "answer", str(tmp_path / "study.toml")]
        command += [str(tmp_path / name / "site.toml"), str(tmp_path / "board"), "--yes", "--wait", "0.2"]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL)

    running = {name: start(name) for name in SITES}
    try:
        for place, name in enumerate((*SITES, "south")):
            ends = time.monotonic() + 300
            while not federation.board.path(5 * place + 4, name).is_file() and time.monotonic() < ends:
                time.sleep(0.05)
            running[name].send_signal(signal.SIGKILL)
            running[name].wait()
            running[name] = start(name)
        for one in running.values():
            assert one.wait(timeout=600) == 0
    finally:
        for one in running.values():
            one.kill()
    for name in SITES:
        run = accord.Run.load(federation.store(name).folder.parent / "run.nc")
        np.testing.assert_allclose(run.draws, finished[1]["north"].draws, rtol=1e-9, atol=1e-9)
        assert_made_once(federation, name)


# --- entries that are refused ---


def refused(federation, text, name="south", error=ForgedError):
    """Check that a site refuses the entries in the shared folder: it stores none, and its audit file has the reason."""
    before, lines = entries_of(federation.store(name).folder), len(federation.audit(name))
    with pytest.raises(error, match=text) as found:
        federation.answer(name)
    assert federation.audit(name)[lines:][-1]["refused"] == str(found.value)[:500]
    own = {path: entry for path, entry in entries_of(federation.store(name).folder).items() if path not in before}
    assert not any(path.endswith(f"{name}.json") for path in own)
    return own


def test_a_changed_entry_is_refused(at):
    federation = at(8)
    federation.run(until=8)
    federation = back(federation, federation.folder / "again", 8, only=("south",))
    federation.answer("north")
    path = federation.board.path(8, "north")
    whole = path.read_bytes()
    for place in (len(whole) // 3, len(whole) - 20):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert refused(federation, "the entry of north in step 8 is (not signed by north|no entry)") == {}
    # a file that is still copied is waited for
    for rest in (0, 1, 200, len(whole)):
        path.write_bytes(whole[: len(whole) - rest] if rest else b"")
        found = federation.answer("south")
        assert "north" in found.waits_for and "north" not in found.has
        assert federation.board.is_incomplete(8, "north") or rest == 0
    path.write_bytes(whole[:-200] + b"\n\n")
    assert refused(federation, "the entry of north in step 8 is no entry of a study") == {}
    # the entry itself is accepted afterwards
    path.write_bytes(whole)
    assert federation.answer("south").entries.keys() == set(range(9))


def test_an_entry_of_another_step_is_refused(at):
    federation = at(4)
    federation.board.write(4, "north", federation.board.read(3, "north"))
    text = "the entry of north in step 4 is one of north in step 3 of the study"
    assert refused(federation, text) == {}


def test_an_entry_of_another_study_is_refused(at):
    federation = at(4)
    federation.run(until=4)
    federation = back(federation, federation.folder / "again", 4)
    # the same key, in another study
    federation.answer("north")
    federation.change(4, "north", study="0" * 64)
    text = "the entry of north in step 4 is one of north in step 4 of the study 0000000000000000"
    assert refused(federation, text) == {}


def test_an_entry_that_another_site_signed_is_refused(at):
    federation = at(4)
    federation.answer("north")
    own = Entry.read(federation.board.read(4, "north"), federation.public, "own")
    federation.board.write(4, "north", own.signed(federation.folder / "west" / "key"))
    assert refused(federation, "the entry of north in step 4 is not signed by north") == {}
    # an entry of west in place of north's
    federation.board.write(4, "north", replace(own, site="west").signed(federation.folder / "west" / "key"))
    assert refused(federation, "the entry of north in step 4 is one of west in step 4") == {}
    federation.board.write(4, "north", replace(own, site="east").signed(federation.folder / "west" / "key"))
    assert refused(federation, "an entry of 'east', which takes no part in the study") == {}


def test_a_second_entry_of_one_step_is_refused(at):
    federation = at(4)
    federation.answer("north")
    federation.answer("south")
    kept = federation.store("south").read(4, "north")
    federation.change(4, "north", what="other words")
    text = "the entry of north in step 4 differs from the one that this site received before .* one entry of each site"
    assert refused(federation, text) == {}
    assert federation.store("south").read(4, "north") == kept


def test_a_site_whose_folder_was_lost_does_not_begin_again(at):
    federation = at(4)
    shutil.rmtree(federation.folder / "south" / "kept")
    with pytest.raises(
        ForgedError, match="the entry of south in step 0 is not the one that this site made.*another seed"
    ):
        federation.answer("south")
    assert not federation.store("south").all(SITES).keys() & {(step, "south") for step in range(40)}


def test_a_missing_entry_is_waited_for(at):
    federation = at(4)
    federation.answer("north")
    federation.answer("south")
    found = federation.answer("south")
    assert (found.step, found.waits_for, set(found.has)) == (4, ("west",), {"north", "south"})
    # an entry that was removed from the shared folder is at the site
    federation.board.path(4, "north").unlink()
    assert federation.answer("south").waits_for == ("west",)
    with pytest.raises(DataError, match="the study is not finished: .* has no entry of north, west for step 4"):
        result(federation.study, federation.board.folder, federation.public)


def test_two_different_entries_for_two_sites_are_found(at):
    federation = at(8)
    for name in SITES:
        federation.answer(name)
    own = federation.board.read(8, "west")
    # west sends north one entry of step 8, and south another one
    federation.answer("north")
    lie = federation.change(8, "west", what="other words")
    refused(federation, "north has other entries of the steps before 9 than this site")
    assert federation.store("north").read(8, "west") == own and federation.store("south").read(8, "west") == lie
    assert federation.board.read(9, "north") and federation.board.read(9, "south") is None


def test_a_site_does_not_take_its_own_entry_from_others(at):
    federation = at(4)
    federation.answer("north")
    federation.answer("south")
    federation.change(4, "south", what="other words")
    assert refused(federation, "the entry of south in step 4 is not the one that this site made") == {}


def test_the_result_needs_entries_that_agree(at, finished, tmp_path):
    shutil.copytree(finished[0].board.folder, tmp_path / "copy")
    path = tmp_path / "copy" / f"step-{PLANNED:03d}" / "west.json"
    path.write_bytes(path.read_bytes().replace(b'"what": "', b'"what": "x'))
    with pytest.raises(ForgedError, match=f"the entry of west in step {PLANNED} is not signed by west"):
        result(finished[0].study, tmp_path / "copy")
    # keys of sites that are known otherwise
    others = finished[0].public | {"west": finished[0].public["north"]}
    with pytest.raises(ForgedError, match="the entry of west in step 0 is not signed by west"):
        result(finished[0].study, finished[0].board.folder, others)
    with pytest.raises(DataError, match="has not begun: there is no entry of north for step 0"):
        result(finished[0].study, tmp_path / "none")


# --- a first site that lies about the plan ---


@pytest.fixture
def planned(at):
    """A study at a step with a plan of the first site. `lie(change)` changes the plan, which the first site signs."""
    federation = at(PLANNED)
    federation.answer("north")

    def lie(change):
        federation.board.write(PLANNED, "north", federation.store("north").read(PLANNED, "north"))
        written = Entry.read(federation.board.read(PLANNED, "north"), federation.public, "own").written
        written = change(json.loads(json.dumps(written)))
        federation.change(PLANNED, "north", written=written, plan=digest_of(written))
        return federation

    return lie


def moved(by):
    def change(written):
        points = revived(written["parts"]["points"])
        return written | {"parts": written["parts"] | {"points": plain(points + by)}}

    return change


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (moved(1e-4), "points has other numbers or another shape"),
        (moved(np.nan), "points has other numbers or another shape"),
        (lambda written: written | {"what": "own_cells"}, "it evaluates own_cells, and this site "),
        (lambda written: written | {"parts": {}}, "it evaluates "),
        (lambda written: {"what": written["what"]}, "the plan has another format"),
        (
            lambda written: written | {"parts": written["parts"] | {"points": plain(np.zeros((2, 3)))}},
            "points has other numbers or another shape",
        ),
    ],
)
def test_another_plan_of_the_first_site_is_refused(planned, change, text):
    federation = planned(change)
    refused(federation, f"the plan.*{text}|{text}")
    assert federation.store("south").read(PLANNED, "south") is None
    assert federation.board.read(PLANNED, "south") is None


def test_a_plan_that_agrees_up_to_rounding_is_used(planned):
    federation = planned(moved(1e-9))
    assert PLANNED in federation.answer("south").entries
    made = Entry.read(federation.board.read(PLANNED, "south"), federation.public, "made")
    assert made.plan == Entry.read(federation.board.read(PLANNED, "north"), federation.public, "plan").plan


def test_a_plan_with_another_digest_is_refused(at):
    federation = at(PLANNED)
    federation.answer("north")
    federation.change(PLANNED, "north", plan="0" * 64)
    refused(federation, "the entry of north has a plan with another digest")


def test_a_site_that_evaluated_another_plan_is_found(at):
    federation = at(PLANNED)
    for name in SITES:
        federation.answer(name)
    federation.change(PLANNED, "west", plan="0" * 64)
    refused(federation, f"west evaluated another plan in step {PLANNED} than north")


MIXTURE = student(np.arange(3.0), np.linalg.cholesky(np.eye(3) + 0.5), 5.0)


def drawn(count=100, seed=1, batch=2, **changes):
    return Drawn(MIXTURE._replace(**changes), count, seed, batch)


def test_offsets_count_as_positions():
    counted = []

    class Sums:
        def total(self, plan, points, own, words):
            counted.append((points, words.rpartition(".")[0].rpartition(" At ")[2]))
            return [np.zeros(1)], None

    engine.StudyTotals(Sums(), None)(mean_expansion, np.zeros(2), np.zeros((7, 2)))
    assert counted == [(7, "7 positions")]


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (drawn(count=101), "points has the count, seed and batch"),
        (drawn(seed=2), "points has the count, seed and batch"),
        (drawn(batch=3), "points has the count, seed and batch"),
        (drawn(mean=MIXTURE.mean + 1e-4), r"the means or factors of points differ by \d.*e-05"),
        (drawn(mean=MIXTURE.mean * np.nan), "the means or factors of points differ by nan"),
        (drawn(factor=MIXTURE.factor * (1 + 1e-5)), "the means or factors of points differ by 1e-05"),
        # the same covariance, and other points
        (drawn(factor=-MIXTURE.factor), "the means or factors of points differ by 2 standard"),
        (drawn(factor=MIXTURE.factor @ np.linalg.qr(np.arange(9.0).reshape(3, 3) ** 2)[0]), "factors of points differ"),
        (drawn(freedom=np.array([6.0])), "points has another freedom"),
        (drawn(mean=np.zeros((1, 2))), "points has 1 components"),
        (np.zeros((100, 3)), "another format"),
    ],
)
def test_a_recipe_of_points_is_the_own_one(written, text):
    own = Plan("slope_of", {"points": drawn()})
    other = json.loads(json.dumps(Plan("slope_of", {"points": written}).written()))
    with pytest.raises(ForgedError, match=text):
        own.adopted(other)


def test_a_recipe_that_agrees_up_to_rounding_is_used():
    own = Plan("slope_of", {"points": drawn()})
    near = drawn(mean=MIXTURE.mean + 1e-9, factor=MIXTURE.factor * (1 + 1e-9))
    found = own.adopted(json.loads(json.dumps(Plan("slope_of", {"points": near}).written())))
    np.testing.assert_array_equal(found.parts["points"].points, near.points)
    place = Coordinates(np.ones(3), MIXTURE.factor[0])
    own = Plan("slope_of", {"place": place})
    for origin, is_near in ((1.0 + 1e-8, True), (1.0 + 1e-4, False)):
        other = Plan("slope_of", {"place": Coordinates(np.full(3, origin), MIXTURE.factor[0])})
        if is_near:
            assert own.adopted(other.written()).parts["place"].origin[0] == origin
        else:
            with pytest.raises(ForgedError, match="the means or factors of place differ"):
                own.adopted(other.written())
    with pytest.raises(ForgedError, match="place has another shape"):
        own.adopted(Plan("slope_of", {"place": Coordinates(np.ones(2), np.eye(2))}).written())


# --- masks ---


def masks_of(folder, sites=SITES):
    own = [SiteMasks(folder / name) for name in sites]
    for name in sites:
        (folder / name).mkdir(exist_ok=True)
    publics = [one.begin() for one in own]
    for place, one in enumerate(own):
        one.agree(place, publics, "a study")
    return publics


def test_masks_cancel_in_one_context_only(tmp_path):
    masks_of(tmp_path)
    words = encoded([np.ones(3)], 3)

    def masked(name, context="context", step=1):
        return SiteMasks(tmp_path / name).masked(step, context, words)

    total = added(*map(masked, SITES))
    np.testing.assert_array_equal(total, added(words, words, words))
    np.testing.assert_array_equal(masked("north"), masked("north"))
    for other in (masked("north", "other"), masked("north", step=2), words):
        assert (other != masked("north")).all()
    for parts in (
        [*map(masked, SITES, ["context", "other", "context"])],
        [masked("north", step=2), *map(masked, SITES[1:])],
    ):
        with pytest.raises(RuntimeError, match="the masks did not cancel"):
            decoded(added(*parts), [np.ones(3)], 3)
    assert (tmp_path / "north" / "masks.json").stat().st_mode & 0o777 == 0o600
    # the private key is deleted
    assert json.loads((tmp_path / "north" / "masks.json").read_text()).keys() == {"public", "agent", "keys"}


def test_two_equal_keys_for_masks_are_refused(tmp_path):
    own = SiteMasks(tmp_path)
    public = own.begin()
    with pytest.raises(ValueError, match="not all different"):
        own.agree(0, [public, bytes(32), bytes(32)], "a study")


def test_masks_that_do_not_cancel_are_an_error(at):
    federation = at(6)
    for name in SITES:
        federation.answer(name)
    found = Entry.read(federation.board.read(6, "west"), federation.public, "own").content
    other = revived(found)["masked"] + np.uint64(1)
    federation.change(6, "west", content=found | {"masked": plain(other)})
    with pytest.raises(SiteError, match="^south: RuntimeError, see its audit file$"):
        federation.answer("south")
    assert "the masks did not cancel" in federation.audit("south")[-1]["failed"]


def test_numbers_of_other_shapes_are_an_error(at):
    federation = at(6)
    for name in SITES:
        federation.answer(name)
    found = Entry.read(federation.board.read(6, "west"), federation.public, "own").content
    federation.change(6, "west", content=found | {"like": [["<f8", 10**9]]})
    refused(federation, "west and north have numbers of different shapes or names in step 6", error=DataError)
    federation.board.path(6, "west").unlink()
    federation.store("south").path(6, "west").unlink()
    federation.board.write(6, "west", federation.store("west").read(6, "west"))
    federation.change(6, "west", content=found | {"masked": plain(revived(found["masked"])[:, 1:])})
    refused(federation, "west and north have numbers of different shapes or names in step 6", error=DataError)


@pytest.mark.parametrize("content", [b"", b"{"])
def test_damaged_masks_are_named(at, content):
    federation = at(8)
    path = federation.store("south").folder.parent / "masks.json"
    path.write_bytes(content) if content else path.unlink()
    with pytest.raises(DataError, match="its file masks.json is missing, damaged or of an earlier start"):
        federation.answer("south")


# --- noise ---


def test_noise_is_secret_and_the_same_again(tmp_path):
    for name in SITES:
        (tmp_path / name).mkdir()
    first = {name: secret_noise(tmp_path / name, "context").standard_normal(100) for name in SITES}
    again = secret_noise(tmp_path / "north", "context").standard_normal(100)
    np.testing.assert_array_equal(first["north"], again)
    other = secret_noise(tmp_path / "north", "other").standard_normal(100)
    for one in (first["south"], first["west"], other):
        assert not np.isclose(one, again).any()
    assert (tmp_path / "north" / "noise.key").stat().st_mode & 0o777 == 0o600
    many = secret_noise(tmp_path / "north", "many").standard_normal((400, 500)).ravel()
    assert scipy.stats.kstest(many, "norm").pvalue > 1e-6


def test_plans_have_radii_for_sites_with_r_only(coarse):
    written = [json.loads(text.splitlines()[0])["written"] for text in coarse[0].board.all(["north"]).values()]
    assert any("points" in one.get("parts", {}) for one in written)
    assert not any("radii" in one.get("parts", {}) for one in written)


def test_the_key_of_the_noise_stays_at_its_site(coarse):
    federation, _ = coarse
    sent = everything(federation)
    for name in SITES:
        folder = federation.store(name).folder.parent
        keys = [(folder / "noise.key").read_bytes().strip()]
        keys += [key.encode() for key in json.loads((folder / "masks.json").read_text())["keys"].values()]
        assert not any(key in sent or base64.b64decode(key) in sent for key in keys)


def test_noise_is_added_before_numbers_are_masked(tmp_path, coarse):
    """An entry of another noise key has other numbers, of which each differs by a small part of its range."""
    federation, step = coarse[0], PLANNED + 2
    changed = back(federation, tmp_path / "changed", step)
    changed.answer("north")
    before = back(changed, tmp_path / "before", step, only=("south",))
    (changed.store("south").folder.parent / "noise.key").unlink()
    found = []
    for one in (changed, before):
        one.answer("north")
        one.answer("south")
        content = revived(Entry.read(one.board.read(step, "south"), federation.public, "own").content)["coarse"]
        found.append(content.astype(int))
    # the masks are the same
    apart = (found[0] - found[1] + 128) % 256 - 128
    assert 0.1 < (apart != 0).mean() < 1.0


def agreed_of(federation):
    """The summaries of columns that follow from the entries of all sites."""
    exchange = Exchange(federation.study.hash, federation.sites, None, federation.board, federation.public)
    return follow(federation.study, SumExchange(exchange, None, True), None, Policy.none(), pytest.fail)[1].agreed


def test_means_and_sds_over_the_rows_of_all_sites_have_noise(finished, coarse):
    (federation, _), (with_noise, _) = finished, coarse
    expected, exact, noisy = federation.here().agreed, agreed_of(federation), agreed_of(with_noise)
    np.testing.assert_allclose([exact.means["age"], exact.sds["age"]], [expected.means["age"], expected.sds["age"]])
    # a site's noise has .5 to 1 sd of a row, and sums have 270 rows
    apart = np.array([noisy.means["age"] - expected.means["age"], noisy.sds["age"] - expected.sds["age"]])
    apart *= sum(expected.rows) / expected.sds["age"]
    assert (np.abs(apart) > 1e-3).all() and (np.abs(apart) < 5 * 3**0.5).all()
    # counts have none
    assert noisy.rows == expected.rows and noisy.columns["ward"].levels == expected.columns["ward"].levels


def test_noise_of_summaries_has_the_size_of_a_row():
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.normal(50.0, 9.0, 40), np.ones(40), rng.normal(1e6, 1e-3, 40)])
    spread = x.std(axis=0)
    exact = np.array(sums_of(x, 2.0))
    noise = np.array([sums_of(x, 2.0, rng) for _ in range(4000)]) - exact
    sizes = noise[:, 0].std(axis=0) / np.where(spread > 0.0, spread, 1.0)
    assert (np.abs(noise[:, 0].mean(axis=0)) <= 5.0 * noise[:, 0].std(axis=0) / 4000**0.5 + 1e-9).all()
    assert 0.48 < sizes[0] < 1.02 and (noise[..., 1] == 0.0).all()
    # the squares of differences from the mean have noise of their own
    around_mean = noise[:, 1] - 2.0 * (x.mean(axis=0) - 2.0) * noise[:, 0]
    assert 0.24 < around_mean[:, 0].std() / spread[0] ** 2 < 1.02


def test_moments_of_columns_far_from_zero_need_a_second_sum():
    rng = np.random.default_rng(0)
    values = [{"x": np.column_stack([np.ones(n), rng.normal(1e7, 1.0, n), rng.normal(0, 1, n)])} for n in (9, 40, 5)]
    pooled = np.concatenate([own["x"] for own in values])
    (mean, sd), *_ = means_and_sds(LocalCollectives(("a", "b", "c")), values).values()
    np.testing.assert_allclose(mean, pooled.mean(axis=0), rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(sd, pooled.std(axis=0), rtol=1e-12)
    assert sd[0] == 0.0


def test_exact_answers_need_the_policy(tmp_path):
    federation = Federation(tmp_path, south={"exact": False})
    refused(federation, "south: refused, the study has exact answers .coarse = false.", error=RefusedError)
    assert "exact answers" in check(federation.study, federation.policy("south")).wrong[0]
    for key in ("fallback", "report"):
        with pytest.raises(ValueError, match=f"{key} = true in .run. needs exact sums: set coarse = false"):
            StudyDocument(COARSE + f"{key} = true")
        assert StudyDocument(STUDY + f"{key} = true").hash


def test_numbers_with_noise_whose_masks_do_not_cancel_are_an_error(tmp_path, coarse):
    step = PLANNED + 2
    federation = back(coarse[0], tmp_path / "lying", step)
    for name in SITES:
        federation.answer(name)
    federation.answer("west")
    found = Entry.read(federation.board.read(step, "west"), federation.public, "own").content
    other = revived(found)["coarse"] + np.uint8(100)
    federation.change(step, "west", content={"coarse": plain(other)})
    with pytest.raises(SiteError, match="^south: RuntimeError, see its audit file$"):
        federation.answer("south")
    assert "the masks did not cancel" in federation.audit("south")[-1]["failed"]


def test_numbers_with_noise_of_other_widths_are_an_error(tmp_path, coarse):
    step = PLANNED + 2
    federation = back(coarse[0], tmp_path / "lying", step)
    for name in SITES:
        federation.answer(name)
    federation.answer("west")
    for content in ({"coarse": plain(np.zeros(3, np.uint8))}, {"coarse": plain(np.zeros(300))}, {"other": 1}, None):
        federation.store("south").path(step, "west").unlink(missing_ok=True)
        federation.change(step, "west", content=content)
        refused(federation, f"the entry of west in step {step} has another content than accord writes")


# --- two sites ---


TWO = STUDY.replace('"north", "south", "west"', '"north", "south"')
UNMASKED = TWO.replace("draws = 200", "draws = 200\nmasks = false")


@pytest.mark.parametrize(
    ("study", "text"),
    [
        (TWO, "masks hide nothing of fewer than 3 sites, found 2"),
        (STUDY.replace("draws = 200", "masks = false"), "masks = false is for two sites, found 3"),
        (STUDY.replace('"north", "south", "west"', '"north"'), "must list its sites"),
    ],
)
def test_masks_need_three_sites(study, text):
    with pytest.raises(ValueError, match=text):
        StudyDocument(study)


def test_two_sites_without_masks_need_both_policies(tmp_path):
    federation = Federation(tmp_path, UNMASKED, SITES[:2], north={"own_numbers": True})
    federation.answer("north")
    refused(federation, "south: refused, the study has no masks.*own_numbers", error=RefusedError)
    # the site's administrator sees it before the study begins
    assert "south: refused, the study has no masks" in check(federation.study, federation.policy("south")).wrong[0]
    with pytest.raises(ValueError, match="travels by files only"):
        board_app(federation.study, tmp_path / "app")


def board_app(study, folder):
    from accord.federation.flower.bundle import write_app

    write_app(study, folder, folder)


@pytest.mark.long
def test_draws_of_two_sites_without_masks_equal_the_draws_of_one_process(tmp_path):
    federation = Federation(tmp_path, UNMASKED, SITES[:2], **dict.fromkeys(SITES[:2], {"own_numbers": True}))
    runs, expected = federation.run(), drawn_here(federation)
    for run in (*runs.values(), result(federation.study, federation.board.folder)):
        np.testing.assert_allclose(run.draws, expected.draws, rtol=1e-9, atol=1e-9)


def test_an_unmasked_study_does_not_travel_by_messages(tmp_path):
    federation = Federation(tmp_path, UNMASKED, SITES[:2], **dict.fromkeys(SITES[:2], {"own_numbers": True}))
    request = json.dumps({"study": UNMASKED, "since": 0, "entries": []}).encode()
    answer = json.loads(federation.message("north", request))
    assert answer["refused"] and "by files only" in answer["error"]
    assert not federation.store("north").all(SITES)


def test_small_and_large_figures_pass_masks():
    numbers = {"b": np.array([1e-20, -3e-9]), "a": 7, "c": 1e15}
    leaves = figures.leaves_of(numbers)
    words = added(*(encoded(leaves, 3) for _ in range(3)))
    found = figures.numbers_of(decoded(words, leaves, 3), figures.shapes_of(numbers))
    for name, value in numbers.items():
        np.testing.assert_allclose(found[name], 3 * np.asarray(value), rtol=1e-12)


def test_signatures(tmp_path):
    public = new_identity(tmp_path / "key")
    signed = signature(tmp_path / "key", b"text")
    assert is_signed(public, b"text", signed) and not is_signed(public, b"other", signed)
    assert not is_signed("none", b"text", signed) and (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        new_identity(tmp_path / "key")


def test_values_of_entries_are_the_same_after_reading():
    value = {
        "a": np.arange(20.0), "b": np.array([1, 2], np.int32), "c": [np.inf, -np.inf, None, "x", True, 0.1],
        "d": np.array([[np.nan, 1.0]]), "e": np.float64(1 / 3), "f": np.zeros((0, 3)), "g": np.arange(18, dtype=">u8"),
    }  # fmt: skip
    found = revived(json.loads(json.dumps(plain(value), allow_nan=False)))
    for name in "abdfg":
        np.testing.assert_array_equal(found[name], value[name])
    assert found["c"] == value["c"] and found["e"] == value["e"]
    for wrong in ({"shape": [1], "type": "S900000000", "values": ["a"]}, {"shape": [1], "type": "O", "values": [1]}):
        with pytest.raises(ValueError, match="no numbers"):
            revived(wrong)


# --- policies ---


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"studies": ["0" * 64]}, "does not allow the study of hash"),
        ({"columns": ["age", "died"]}, "does not allow the columns ward"),
        ({"site": "east"}, "the study lists the sites north, south, west"),
        ({"rows": 500}, "fewer than 500 rows"),
        ({"parameters": 0.001}, "parameters are more than 0.001 of the rows"),
        ({"points": 10}, "allows sums at 10 positions"),
        ({"identity": "none"}, "holds no private key"),
        ({"peers": {}}, "has no public key of north, south, west in `peers`"),
        ({"exact": False}, "the study has exact answers"),
    ],
)
def test_a_site_refuses_by_its_policy(tmp_path, changes, text):
    federation = Federation(tmp_path, south=changes)
    with pytest.raises(DataError if "identity" not in changes else ValueError, match=text):
        federation.run()
    # a refusal because of rows is an entry, so that other sites know it
    assert any(text in json.dumps(line) for line in federation.audit("south"))
    assert all(line["study"] == federation.study.hash for line in federation.audit("south"))
    later = [federation.board.read(step, "south") for step in range(PLANNED, 40)]
    contents = [Entry.read(entry, federation.public, "later").content for entry in later if entry is not None]
    assert all(content.keys() == {"refused"} for content in contents) and len(contents) <= 1


@pytest.mark.filterwarnings("ignore:south. together the terms")
def test_columns_that_single_out_a_row_together_are_refused_at_all_sites(tmp_path):
    ages = sorted(float(line.split(",")[0]) for line in rows_of(1).splitlines()[1:])
    first, second = (ages[44] + ages[45]) / 2, (ages[45] + ages[46]) / 2
    federation = Federation(
        tmp_path, STUDY.replace("scale(age) + ward", f"ward + I(age > {first:.4f}) + I(age > {second:.4f})")
    )
    text = "south: refused, together the terms of the formula single out fewer than 3 rows, the floor of the site"
    for name in 6 * SITES:
        answer_by_command(federation, name, "--yes")
    for name in SITES:
        assert text in federation.audit(name)[-1]["refused"]
    steps = [step for step in range(40) if federation.board.read(step, "south")]
    contents = [Entry.read(federation.board.read(step, "south"), federation.public, "all").content for step in steps]
    # before the sums of the design
    assert "refused" in contents[-1] and sum("masked" in content for content in contents) == 1
    assert f"{ages[45]:g}" not in json.dumps(contents[-1])
    (tmp_path / "study.toml").write_text(federation.text)
    arguments = ["study", "check", str(tmp_path / "study.toml"), str(tmp_path / "south" / "site.toml")]
    found = CliRunner().invoke(app, arguments)
    assert found.exit_code == 1 and "wrong: south: refused, together" in found.output
    federation.write("south", rare="warn")
    assert CliRunner().invoke(app, arguments).exit_code == 0


def test_a_policy_without_a_key_is_refused(tmp_path):
    federation = Federation(tmp_path)
    path = tmp_path / "south" / "site.toml"
    whole = path.read_text()
    path.write_text(whole.replace('identity = "key"\n', ""))
    refused_at_start(federation, "south: refused, its policy names no `identity`")
    path.write_text(whole.replace(federation.public["west"], federation.public["north"]))
    refused_at_start(federation, "south: refused, its policy has one public key for two sites")


def refused_at_start(federation, text):
    with pytest.raises(RefusedError, match=text):
        federation.answer("south")
    assert text in federation.audit("south")[-1]["refused"] and not federation.store("south").all(SITES)


def test_a_key_that_the_policy_does_not_name_is_refused(tmp_path):
    """Whoever carries the entries cannot take the place of a site."""
    federation = Federation(tmp_path)
    federation.run(until=0)
    new_identity(tmp_path / "foreign")
    own = Entry.read(federation.board.read(0, "west"), federation.public, "own")
    (tmp_path / "south" / "kept").rename(tmp_path / "away")
    federation.board.path(0, "south").unlink()
    federation.board.write(0, "west", own.signed(tmp_path / "foreign"))
    with pytest.raises(ForgedError, match="the entry of west in step 0 is not signed by west"):
        federation.answer("south")


def test_floors_hold_for_the_positions_of_a_study(at):
    federation = at(PLANNED)
    points = int((federation.store("south").folder.parent / "points.txt").read_text())
    federation.write("south", points=points)
    federation.answer("north")
    refused(federation, f"allows sums at {points} positions of a study, {points} were evaluated", error=RefusedError)


def test_changed_data_is_refused(at):
    federation = at(PLANNED)
    path = federation.folder / "north" / "rows.csv"
    path.write_text("\n".join(path.read_text().splitlines()[:-30]) + "\n")
    refused(federation, "north: its data has changed since this study began", "north", DataError)
    path.unlink()
    refused(federation, "north: its policy's `data` names no file", "north", DataError)


def test_damaged_files_of_a_site_are_named(at):
    federation = at(PLANNED)
    federation.answer("north")
    path = federation.store("south").folder.parent / "points.txt"
    path.write_text("")
    refused(federation, r"south: its file points.txt is damaged", error=DataError)
    path.write_text("0")
    path = federation.store("south").path(5, "west")
    path.write_text("")
    with pytest.raises(ForgedError, match="the entry of west in step 5 differs from the one that this site received"):
        federation.answer("south")
    federation.board.path(5, "west").unlink()
    with pytest.raises(ForgedError, match="the entry of west in step 5 is no entry of a study"):
        federation.answer("south")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("rwos = 3", "rwos"),
        ("points = 0", "points"),
        ("own_numbers = 1", "own_numbers must be of the type bool"),
        ("[", "policy"),
    ],
)
def test_a_wrong_policy_names_its_file(tmp_path, line, text):
    path = tmp_path / "policy.toml"
    path.write_text(f'{line}\nsite = "a"\ndata = "b"\nfolder = "c"\nstudies = []\n')
    with pytest.raises(ValueError, match=text) as error:
        SitePolicy.read(path)
    assert str(path) in str(error.value)


def test_paths_of_a_policy_are_relative_to_it(tmp_path):
    federation = Federation(tmp_path)
    assert federation.policy("north").data == Path(tmp_path / "north" / "rows.csv")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rows = 500", r"rows in \[peers\]: a public key is what .* found 500. Other keys .* above \[peers\]"),
        ('west = "xx"', "a public key is what"),
        ('west = "M3f0..."', "a public key is what"),
    ],
)
def test_other_values_among_the_keys_of_peers_are_an_error(tmp_path, text, message):
    Federation(tmp_path)
    path = tmp_path / "north" / "site.toml"
    lines = [line for line in path.read_text().splitlines() if not line.startswith("west")]
    path.write_text("\n".join([*lines, text]))
    with pytest.raises(ValueError, match=message):
        SitePolicy.read(path)


@pytest.mark.parametrize("found", ["A" * 64, "abc", "0" * 63 + " "])
def test_a_hash_in_another_format_is_an_error(tmp_path, found):
    with pytest.raises(ValueError, match="studies, entry 1: a hash is 64 hexadecimal digits in lower case"):
        Federation(tmp_path, north={"studies": [found]}).policy("north")


# --- documents ---


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("[model]", "[modle]", "did you mean 'model'"),
        ('formula = "died', 'formulas = "died', "must have a formula"),
        ("positive", 'files = "x.csv"\npositive', r"names no files"),
        ("[model]", '[model]\nstrings = ["ward"]', r"strings is a key of \[data\], found in \[model\]: move it there"),
        ("[model]", '[model]\nmissing = "drop"', r"missing is a key of \[data\], found in \[model\]: move it there"),
        ("positive", 'family = "bernoulli"\npositive', r"family is a key of \[model\], found in \[data\]"),
        ("[run]", "[run]\napart = 0.1", r"apart is a key of \[rehearsal\], found in \[run\]"),
        ("[run]", "[strings]\nward = {}\n[run]", r"strings is a key of \[data\], found outside of it"),
        ('"south", ', '"north", ', "different names"),
        ('"south"', '"../south"', "a site's name has at most 64 letters, digits, single spaces"),
        ("draws = 200", 'draws = "many"', "draws"),
        ("draws = 200", "draws = 0", "draws in .run. must be"),
        ("draws = 200", "chains = -1", "chains"),
        ("draws = 200", "seed = -1", "seed"),
        ("draws = 200", "fallback = 1", "fallback"),
        ("coarse = false", "coarse = 0", "coarse"),
        ('family = "bernoulli"', 'famly = "bernoulli"', "famly"),
        ("scale = 2.0", "scale = true", "scale"),
        ("[run]", "[run", "not valid TOML"),
        ("[run]", f"x = {'[' * 5000}", "not valid TOML"),
    ],
)
def test_a_wrong_study_is_refused(old, new, text):
    with pytest.raises(ValueError, match=text):
        StudyDocument(STUDY.replace(old, new))


def test_the_hash_of_a_study_depends_on_its_text_only():
    same = ("\ufeff" + STUDY, STUDY.replace("\n", "\r\n"))
    assert {StudyDocument(text).hash for text in same} == {StudyDocument(STUDY).hash}
    assert StudyDocument(STUDY + "seed = 1").hash != StudyDocument(STUDY).hash


def test_a_study_has_one_of_two_methods():
    assert type(StudyDocument(STUDY).method) is accord.samplers.Importance
    assert type(StudyDocument(STUDY + "fallback = true").method) is accord.samplers.Auto


def test_methods_that_send_messages_along_edges_are_refused():
    with pytest.raises(TypeError, match="DESGLD sends messages between agents"):
        engine.StudyEngine.check(None, None, accord.samplers.DESGLD(0.1))


def test_effects_of_local_groups_are_refused(tmp_path):
    text = STUDY.replace("+ ward", "+ (1 | ward)")
    with pytest.raises(ValueError, match="that no group of ward has rows at two sites: write site:ward"):
        StudyDocument(text)
    (tmp_path / "study.toml").write_text(text)
    found = CliRunner().invoke(app, ["study", "hash", str(tmp_path / "study.toml")])
    assert found.exit_code == 1 and "write site:ward" in found.output
    for right in ("(1 | site:ward)", "(1 | site)", "(1 + age | ward:site)"):
        assert StudyDocument(STUDY.replace("+ ward", f"+ {right}").replace("ward = {", "age = {")).hash


def test_effects_of_groups_are_no_parameters_of_a_study():
    text = STUDY.replace("+ ward", "+ (1 | site:ward)").replace("ward = {", "age = {")
    with pytest.raises(ValueError, match='effects = "parameters" needs the rows of all sites in one process'):
        StudyDocument(text.replace("[model]", '[model]\neffects = "parameters"'))
    assert StudyDocument(text.replace("[model]", "[model]\nnodes = 30")).hash


@pytest.mark.parametrize(
    ("formula", "more", "columns"),
    [
        ("y ~ scale(age) + C(stage) + (1 + dose | site:ward)", "", {"y", "age", "stage", "dose", "ward"}),
        ("y ~ site + (1 | site)", "", {"y", "site"}),
        ("prop(a, b) ~ log(x) + offset(log(q))", "", {"a", "b", "x", "q"}),
        ("y['yes'] ~ crp + crp_missing", 'missing = "indicator"', {"y", "crp"}),
        ("y ~ crp + crp_missing", "", {"y", "crp", "crp_missing"}),
    ],
)
def test_a_study_knows_the_columns_of_its_files(formula, more, columns):
    text = f'[data]\nsites = ["a", "b", "c"]\n{more}\n[model]\nformula = "{formula}"\nweights = "times"\n'
    assert StudyDocument(text).needed_columns == columns | {"times"}


# --- data that does not fit ---


def everything(federation):
    """All bytes in the shared folder."""
    return b"".join(entries_of(federation.board.folder).values())


def test_a_misspelled_column_is_logged_at_its_own_site(tmp_path):
    # a name so long that ciphers and keys do not contain it by chance
    federation = Federation(tmp_path, STUDY.replace("age", "age_at_admission"))
    for site in SITES:
        path, own = tmp_path / site / "rows.csv", "Age_at_admission," if site == "north" else "age_at_admission,"
        path.write_text(path.read_text().replace("age,", own, 1))
    text = (
        r"north \(rows.csv\): there is no column 'age_at_admission', which south has "
        r"\(names must match exactly\). The study ends here. Repair the cause and begin it with another seed$"
    )
    with pytest.raises(DataError, match=text):
        federation.run()
    logged = (
        "rows.csv has no column 'age_at_admission', which the study needs. It has 'Age_at_admission' "
        "(names must match exactly)"
    )
    assert federation.log[0] == logged and federation.log.count(logged) == 1
    noted = [line["absent"] for line in federation.audit("north") if "absent" in line]
    assert noted == [{"age_at_admission": "Age_at_admission"}]
    # names of its other columns stay at the site
    assert b"Age_at" not in everything(federation)
    assert not any("absent" in line for line in federation.audit("south"))


def test_lines_of_unreadable_cells_stay_at_their_site(tmp_path):
    # line numbers would reveal the rows of a chosen cell
    cell = rows_of(0).splitlines()[7].split(",")[0]
    federation = Federation(tmp_path, STUDY.replace("[model]", f'blanks = ["{cell}"]\n[model]'))
    with pytest.raises(DataError, match="column 'age': some cells have no value: .* The site's own log") as raised:
        federation.run()
    assert "line 8" not in f"{raised.value}" and b"line 8" not in everything(federation)
    assert sum("column 'age': line 8 has no value" in text for text in federation.log) == 1


def test_a_site_alone_learns_that_its_rare_levels_look_like_others(tmp_path):
    federation = Federation(tmp_path)
    path = tmp_path / "south" / "rows.csv"
    path.write_text(path.read_text().replace(",a,", ",A,", 1))
    with pytest.raises(DataError, match="'ward': 1 of 3 levels have fewer than 3 rows") as raised:
        federation.run()
    assert "alike" not in str(raised.value) and b"alike" not in everything(federation)
    assert any("column 'ward' has levels that look alike" in text for text in federation.log)


def test_the_first_row_of_a_file_without_a_header_stays(tmp_path):
    federation = Federation(tmp_path)
    path = tmp_path / "south" / "rows.csv"
    path.write_text("anna meier,hiv positive,yes\n" + "".join(path.read_text().splitlines(True)[1:]))
    with pytest.raises(DataError) as raised:
        federation.run()
    # short words occur in base64 by chance
    words = (b"anna", b"meier", b"positive")
    assert not any(word in everything(federation) + str(raised.value).encode() for word in words)


@pytest.mark.parametrize("above", ["\n", "\n\n", "  \n"])
def test_a_blank_first_line_lets_no_column_through(tmp_path, above):
    federation = Federation(tmp_path, south={"columns": ["age", "died"]})
    path = tmp_path / "south" / "rows.csv"
    path.write_text(above + path.read_text())
    with pytest.raises(DataError, match="does not allow the columns ward|more cells|cannot be read|has no name"):
        federation.run()


def test_a_site_refuses_a_column_of_one_person(tmp_path):
    ages = [float(line.split(",")[0]) for line in rows_of(0).splitlines()[1:]]
    formula = f"died ~ center(I((age == {max(ages)}) * (age - 3)))"
    federation = Federation(tmp_path, STUDY.replace("died ~ scale(age) + ward", formula).replace("ward = ", "age = "))
    with pytest.raises(DataError, match=r"^north: refused, in center\(.*fewer than 3 rows differ") as caught:
        federation.run()
    assert str(max(ages) - 3) not in str(caught.value)


def test_classes_of_numbers_are_reported_if_enough_rows_have_them(tmp_path):
    study = STUDY.replace('"died ~ scale(age) + ward"', '"age ~ ward"').replace('"bernoulli"', '"categorical"')
    federation = Federation(tmp_path, study, **dict.fromkeys(SITES, {"parameters": 1000.0}))
    with pytest.raises(DataError, match=r"\d+ of \d+ classes of the response have fewer than 3 rows"):
        federation.run()


@pytest.mark.parametrize(
    "formula",
    [
        "surv.__builtins__.get.__class__.__call__('x') ~ age",
        "prop.__globals__.get('x') ~ age",
        "died ~ np.log.__class__(age)",
        "died ~ age + (1 | open('x'))",
    ],
)
def test_an_approved_formula_runs_no_code_at_a_site(formula, tmp_path, monkeypatch):
    from formulae.terms import call_resolver

    # somebody approved the hash without reading the text
    federation, text = Federation(tmp_path), STUDY.replace("died ~ scale(age) + ward", formula)
    with pytest.raises(ValueError, match="unknown function in the formula|cannot be read"):
        StudyDocument(text)
    federation.write("north", studies=[hash_of(text)])
    looked_up = []
    monkeypatch.setattr(call_resolver, "get_function_from_module", lambda name, env: looked_up.append(name))
    request = json.dumps({"study": text, "since": 0, "entries": []}).encode()
    answer = json.loads(federation.message("north", request))
    assert "unknown function" in answer["error"] or "cannot be read" in answer["error"]
    assert looked_up == []
    (tmp_path / "study.toml").write_text(text)
    arguments = ["study", "answer", str(tmp_path / "study.toml"), str(tmp_path / "north" / "site.toml")]
    found = CliRunner().invoke(app, [*arguments, str(tmp_path / "board"), "--yes"])
    assert found.exit_code == 1 and looked_up == [] and not (tmp_path / "board").exists()


def test_an_unexpected_error_stays_at_its_site(at, monkeypatch):
    federation = at(PLANNED)

    def fails(*arguments, **options):
        raise KeyError("a cell")

    monkeypatch.setattr(StudyDocument, "model", fails)
    with pytest.raises(SiteError, match="^north: KeyError, see its audit file$"):
        federation.answer("north")
    assert "a cell" in federation.audit("north")[-1]["failed"]


# --- latents ---


@pytest.mark.slow
def test_latents_are_stored_at_each_site_only(tmp_path):
    study = STUDY.replace("+ ward", "+ (1 | site:ward)").replace("ward = {", '"scale(age)" = {')
    federation = Federation(tmp_path, study)
    runs = federation.run()
    assert runs["north"].names == ("Intercept", "scale(age)", "group_sd[Intercept|site:ward]")
    assert runs["north"].certificate.holds
    for place, name in enumerate(SITES):
        files = [path.relative_to(tmp_path) for path in (tmp_path / name).rglob("latents.nc")]
        assert [path.parent.name for path in files] == [f"latents-agent-{place}"]
    assert {path.name for path in federation.board.folder.rglob("*.*")} == {f"{name}.json" for name in SITES}
    result(federation.study, federation.board.folder)


# --- commands ---


def _rename_age(path):
    path.write_text(path.read_text().replace("age,", "Age,", 1))


@pytest.mark.parametrize(
    ("changes", "damage", "text"),
    [
        ({}, None, None),
        ({"studies": []}, None, "wrong: north: refused, its policy does not allow the study of hash"),
        ({"columns": ["age", "died"]}, None, "wrong: north: refused, its policy does not allow the columns ward"),
        ({"identity": "none"}, None, "holds no private key"),
        ({"identity": "../south/key"}, None, "its key in `peers` does not belong to its `identity`"),
        ({"peers": {}}, None, "has no public key of north, south, west in `peers`"),
        ({"rows": 500}, None, "wrong: north (rows.csv): refused, there are fewer than 500 rows"),
        ({"parameters": 0.001}, None, "wrong: north: 3 parameters are more than 0.001 of the rows"),
        ({}, _rename_age, "wrong: rows.csv has no column 'age', which the study needs. It has 'Age'"),
        ({}, Path.unlink, "wrong: north (rows.csv): there is no such file"),
        (
            {},
            lambda path: path.write_text(path.read_text().replace(",a,", ",b,")),
            "perhaps: with rows like these at all sites, column 'ward' is the same in every row",
        ),
    ],
)
def test_a_site_checks_that_it_can_take_part(tmp_path, changes, damage, text):
    Federation(tmp_path, north=changes)
    (tmp_path / "study.toml").write_text(STUDY)
    if damage is not None:
        damage(tmp_path / "north" / "rows.csv")
    arguments = ["study", "check", str(tmp_path / "study.toml"), str(tmp_path / "north" / "site.toml")]
    found = CliRunner().invoke(app, arguments)
    may = text is None or text.startswith("perhaps")
    assert found.exit_code == (0 if may else 1) and ("north can take part" in found.output) == may
    assert text is None or text in found.output
    assert text is not None or "90 rows; age (number), ward (factor), died (yes-no)" in found.output
    # nothing is sent or stored
    assert not (tmp_path / "north" / "kept").exists()


def test_the_command_line_writes_an_app_a_hash_and_a_key(tmp_path):
    (tmp_path / "study.toml").write_text(STUDY)
    command = CliRunner()
    found = command.invoke(app, ["study", "hash", str(tmp_path / "study.toml")])
    assert found.output.strip() == StudyDocument(STUDY).hash
    made = command.invoke(app, ["study", "app", str(tmp_path / "app"), "--study", str(tmp_path / "study.toml")])
    assert made.exit_code == 0 and StudyDocument(STUDY).hash in made.output
    assert (tmp_path / "app" / "accord_study" / "study.toml").read_text() == STUDY
    project = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())
    assert project["tool"]["flwr"]["app"]["config"]["output"] == str(tmp_path / "app-results")
    again = command.invoke(app, ["study", "app", str(tmp_path / "app"), "--study", str(tmp_path / "study.toml")])
    assert again.exit_code == 1 and "is not empty" in again.output
    key = command.invoke(app, ["study", "key", str(tmp_path / "key")])
    assert is_signed(key.output.strip(), b"x", signature(tmp_path / "key", b"x"))
    wrong = command.invoke(app, ["study", "hash", str(tmp_path / "none.toml")])
    assert wrong.exit_code == 1 and "none.toml" in wrong.output
    (tmp_path / "two.toml").write_text(UNMASKED)
    two = command.invoke(app, ["study", "app", str(tmp_path / "b"), "--study", str(tmp_path / "two.toml")])
    assert two.exit_code == 1 and "travels by files only" in two.output


def answer_by_command(federation, name, *options, **given):
    (federation.folder / "study.toml").write_text(federation.text)
    arguments = ["study", "answer", str(federation.folder / "study.toml")]
    arguments += [str(federation.folder / name / "site.toml"), str(federation.folder / "board"), *options]
    return CliRunner().invoke(app, arguments, **given)


def test_the_command_line_asks_before_an_entry_leaves(tmp_path):
    federation = Federation(tmp_path)
    found = answer_by_command(federation, "north", input="n\n")
    assert found.exit_code == 1 and "step 0, " in found.output and "bytes: public keys of this site" in found.output
    assert "nothing leaves north. The same command asks again." in found.output
    assert not (tmp_path / "board").exists()
    # the entry stays at the site, and is the one that leaves later
    kept = federation.store("north").read(0, "north")
    found = answer_by_command(federation, "north", input="y\n")
    wanted = tmp_path / "board" / "step-000" / "SITE.json"
    assert found.exit_code == 0
    assert f"step 0 waits for south, west, whose `accord study answer` writes {wanted}\n" in found.output
    assert federation.board.read(0, "north") == kept
    again = answer_by_command(federation, "north", input="n\n")
    assert again.exit_code == 0 and "release?" not in again.output
    refused = answer_by_command(federation, "south", input="")
    assert refused.exit_code == 1 and federation.board.read(0, "south") is None


def test_the_command_line_ends_with_the_summary(finished, tmp_path):
    federation = back(finished[0], tmp_path / "copy", number_of_steps(finished[0]) - 1)
    for name in SITES:
        found = answer_by_command(federation, name, "--yes")
        assert found.exit_code == 0
        assert "the means and sds of the draws, which all sites have" in found.output
    found = answer_by_command(federation, "north", "--wait", "0.1")
    kept = federation.store("north").folder.parent / "run.nc"
    assert found.exit_code == 0 and "the study is finished: " in found.output and kept.is_file()
    assert "scale(age)" in found.output
    arguments = ["study", "result", str(federation.folder / "study.toml"), str(federation.folder / "board")]
    outputs = ["--output", str(tmp_path / "run.nc")]
    found = CliRunner().invoke(app, [*arguments, *outputs])
    assert found.exit_code == 0 and "scale(age)" in found.output
    assert all(f"  {name} = {key}" in found.output for name, key in federation.public.items())
    np.testing.assert_array_equal(accord.Run.load(tmp_path / "run.nc").draws, finished[1]["north"].draws)
    found = CliRunner().invoke(app, [*arguments, "--policy", str(federation.folder / "north" / "site.toml")])
    assert found.exit_code == 0 and "which only the sites can confirm" not in found.output


@pytest.mark.filterwarnings("default::UserWarning")
@pytest.mark.parametrize(
    ("study", "text"),
    [
        (COARSE, "with coarse = false (each policy needs exact = true) and fallback = true in [run], which"),
        (
            STUDY,
            "with fallback = true in [run], which also tries ChEES() in hundreds of steps, or with narrower priors",
        ),
        (STUDY + "fallback = true\n", "Begin another study with narrower priors or fewer columns"),
    ],
)
def test_a_result_that_is_not_certified_has_a_remedy(finished, tmp_path, monkeypatch, study, text):
    federation, runs = finished
    (tmp_path / "study.toml").write_text(study)
    run = replace(runs["north"], certificate=Certificate((Check("a check", 2.0, 1.0, False, "it is too large"),)))
    monkeypatch.setattr(accord.federation, "result", lambda *given: run)
    arguments = ["study", "result", str(tmp_path / "study.toml"), str(federation.board.folder)]
    found = CliRunner().invoke(app, arguments)
    assert found.exit_code == 0 and "failed  a check: it is too large" in found.output
    assert "do not report these draws, because a check failed. Begin" in found.output and text in found.output


def test_the_command_line_reports_a_forged_entry_in_one_line(at):
    federation = at(4)
    federation.answer("north")
    federation.board.path(4, "north").write_text("{}\n{}\n")
    found = answer_by_command(federation, "south", "--yes")
    assert found.exit_code == 1 and "the entry of north in step 4 is no entry of a study" in found.output
    assert "Traceback" not in found.output


# --- messages ---


def request_of(federation, since=0, entries=()):
    return json.dumps({"study": federation.text, "since": since, "entries": list(entries)}).encode()


@pytest.mark.parametrize(
    "found",
    [
        b"",
        b"nonsense",
        b"[]",
        b"PK" + bytes(100),
        b'{"study": "x", "since": 0}',
        b'{"study": 1, "since": "a", "entries": []}',
        b"[" * 100_000,
    ],
)
def test_other_bytes_than_a_request_are_answered_by_an_error(tmp_path, found):
    federation = Federation(tmp_path)
    answer = json.loads(federation.message("north", found))
    assert "is no request" in answer["error"] and "Traceback" not in answer["error"] and answer["site"] == "north"
    assert "is no request" in federation.audit("north")[-1]["refused"]


def test_a_study_that_is_not_approved_is_refused_before_it_is_read(tmp_path, monkeypatch):
    federation = Federation(tmp_path)
    monkeypatch.setattr(StudyDocument, "__post_init__", lambda self: pytest.fail("the document was read"))
    request = json.dumps({"study": STUDY + "seed = 1", "since": 0, "entries": []}).encode()
    answer = json.loads(federation.message("north", request))
    assert answer["refused"] and "does not allow the study of hash" in answer["error"]
    line = federation.audit("north")[-1]
    assert line["study"] == hash_of(STUDY + "seed = 1") and line["refused"] == answer["error"]


def test_a_message_again_has_the_same_answer(tmp_path):
    federation = Federation(tmp_path)
    messages = Messages(federation, dies_after=30)
    with pytest.raises(ConnectionError):
        board.lead(federation.study, messages, tmp_path / "server", lambda text: None)
    lines = len(federation.audit("north"))
    entries = federation_entries(tmp_path / "server")
    first = request_of(federation)
    answers = [json.loads(federation.message("north", first)) for _ in range(2)]
    assert answers[0] == answers[1] and len(federation.audit("north")) == lines
    for step, text in answers[0]["entries"]:
        assert entries.get((step, "north"), text.encode()) == text.encode()


def federation_entries(folder):
    return EntryFolder(folder / "entries").all(SITES)


def test_a_server_cannot_write_for_a_site(tmp_path):
    federation = Federation(tmp_path)
    federation.answer("north")
    own = federation.board.read(0, "north").decode()
    for site, text in (("west", "is one of north in step 0"), ("../../north", None), ("north", "is not the one")):
        request = request_of(federation, entries=[[0, site, own.replace("masks", "mask") if site == "north" else own]])
        answer = json.loads(federation.message("south" if site != "north" else "north", request))
        assert (text is None and "error" not in answer) or text in answer["error"]
    assert set(federation.store("south").all(SITES)) == {(0, "south")}


def test_a_site_sends_the_entries_that_the_server_lacks(at):
    federation = at(5)
    answer = json.loads(federation.message("south", request_of(federation, since=3)))
    assert [step for step, _ in answer["entries"]] == [3, 4, 5] and answer["site"] == "south"
    assert (answer["step"], answer["waits_for"], answer["has"]) == (5, ["north", "west"], ["south"])


def test_a_server_that_has_two_entries_of_a_step_stops(at, tmp_path):
    federation = at(3)
    folder = EntryFolder(tmp_path / "server" / "entries")
    for (step, name), text in federation.board.all(SITES).items():
        folder.write(step, name, text)
    folder.path(2, "west").unlink()
    folder.write(2, "west", federation.change(2, "west", what="other words"))

    def both(requests):
        answers = {name: json.loads(federation.message(name, request)) for name, request in requests.items()}
        for answer in answers.values():
            answer["entries"] = [[step, text] for step, text in enumerate_own(federation, answer["site"])]
        return {name: json.dumps(answer).encode() for name, answer in answers.items()}

    with pytest.raises(ForgedError, match="west sent two different entries of step 2"):
        board.collect(federation.study, both, folder, lambda text: None)


def enumerate_own(federation, name):
    return [(step, text.decode()) for (step, _), text in sorted(federation.store(name).all([name]).items())]


class Nodes:
    """Nodes of sites that are connected at some polls only. Some of them never answer."""

    def __init__(self, federation, names, away=(), silent=(), broken=()):
        self.federation, self.names, self.away, self.looks = federation, names, dict(away), 0
        self.silent, self.broken, self.sent = set(silent), dict(broken), []

    def nodes(self):
        self.looks += 1
        return {node for node, name in self.names.items() if self.looks > self.away.get(name, 0)}

    def send(self, requests):
        self.sent += requests.items()
        first = len(self.sent) - len(requests)
        return {f"message {first + place}": node for place, node in enumerate(requests)}

    def replies(self, messages):
        found = {}
        for message in messages:
            node, request = self.sent[int(message.split()[1])]
            if node in self.broken:
                found[message] = channel.Broken(self.broken[node])
            # a node that has disconnected
            elif (node, self.looks) == (11, 3):
                found[message] = None
            elif node not in self.silent:
                found[message] = self.federation.message(self.names[node], request)
        return found


class EndedError(Exception):
    pass


def collected(federation, nodes, log=lambda text: None, until=4):
    """Collect entries over nodes until all sites have made their entries of a step. The folder of the server."""
    folder = EntryFolder(federation.folder / "server")

    def logged(text):
        log(text)
        if any(text.startswith(f"step {step}:") for step in range(until + 1, 40)):
            raise EndedError

    over = channel.NodeChannel(nodes, logged, pause=0.01)
    with pytest.raises(EndedError):
        board.collect(federation.study, over, folder, logged)
    assert all(folder.read(until, name) for name in SITES)
    return folder


def test_sites_that_are_away_are_waited_for_and_named(tmp_path, monkeypatch):
    monkeypatch.setattr(channel, "_REPORT", 0.0)
    federation, log = Federation(tmp_path), []
    nodes = Nodes(federation, {11: "north", 22: "south", 33: "west"}, {"west": 4})
    collected(federation, nodes, log.append, until=1)
    waits = [text for text in log if "waiting" in text]
    assert any(text.startswith("2 of 3 have answered, waiting for west, ") for text in waits)
    assert not any("waiting for ," in text for text in log)
    steps = [text.split(":")[0] for text in log if text.startswith("step ")]
    assert steps == [f"step {number}" for number in range(len(steps))] and len(steps) > 2


def test_a_server_without_sites_logs_a_hint(tmp_path, monkeypatch):
    class Clock:
        now = 1000.0

        def monotonic(self):
            return self.now

        def sleep(self, seconds):
            if self.now > 1200.0:
                raise KeyboardInterrupt
            self.now += 5.0

    monkeypatch.setattr(channel, "time", Clock())
    federation, log = Federation(tmp_path), []
    over = channel.NodeChannel(Nodes(federation, {}), log.append)
    with pytest.raises(KeyboardInterrupt):
        board.collect(federation.study, over, EntryFolder(tmp_path / "server"), log.append)
    assert log[0] == "0 of 3 have answered, waiting for north, south, west, 10 s"
    assert log[-1] == (
        "waiting for north, south, west for 3 min 20 s: no SuperNode of theirs is connected, or it does not answer. "
        "Are they running? (flwr supernode list)"
    )
    assert len(log) == 10


def test_two_nodes_are_not_one_site(tmp_path):
    federation = Federation(tmp_path)
    nodes = Nodes(federation, {1: "north", 2: "north", 3: "west"})
    with pytest.raises(DataError, match="two nodes name the site north"):
        collected(federation, nodes)


@pytest.mark.parametrize("looks", [2, 4, 5])
def test_a_restarted_node_replaces_the_earlier_node(tmp_path, looks):
    federation = Federation(tmp_path)
    nodes = Nodes(federation, {1: "north", 2: "south", 3: "west"})
    there = nodes.nodes

    def restarted():
        if nodes.looks == looks:
            # the earlier node is still connected, and does not answer
            nodes.silent.add(2)
            nodes.names[4] = "south"
        return there()

    nodes.nodes = restarted
    collected(federation, nodes)
    assert 4 in {node for node, _ in nodes.sent}


@pytest.mark.parametrize("ahead", SITES)
def test_a_restarted_server_asks_each_site_for_the_entries_that_it_lacks(at, ahead):
    # one site had sent an entry more than the others before the server was killed
    federation = at(4)
    for name in SITES:
        federation.answer(name)
    folder = EntryFolder(federation.folder / "server")
    for (step, name), text in federation.board.all(SITES).items():
        if step < 4 or name == ahead:
            folder.write(step, name, text)
    nodes = Nodes(federation, {1: "north", 2: "south", 3: "west"})
    collected(federation, nodes, until=6)
    assert entries_of(folder.folder).items() >= entries_of(federation.board.folder).items()


def test_a_refusal_is_reported_although_another_site_is_silent(tmp_path, monkeypatch):
    monkeypatch.setattr(channel, "_GRACE", 0.05)
    monkeypatch.setattr(channel, "_REPORT", 0.5)
    federation = Federation(tmp_path, west={"studies": []})
    nodes = Nodes(federation, {1: "north", 2: "south", 3: "west"}, silent={1})
    with pytest.raises(RefusedError, match="west: refused, its policy does not allow the study"):
        collected(federation, nodes)
    # without a refusal, the silent site is waited for
    (tmp_path / "b").mkdir()
    with pytest.raises(TimeoutError):
        collected(Federation(tmp_path / "b"), Nodes(federation, {1: "north"}), _impatient)


def _impatient(text):
    raise TimeoutError(text)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ({1: "north", 2: "south", 3: "west"}, "^south answers with an error: Python is missing$"),
        ({2: "south", 3: "west"}, r"^SuperNode 2 \(one of north, south\) answers with an error: Python is missing$"),
    ],
)
def test_an_error_of_flower_names_its_site(tmp_path, monkeypatch, names, text):
    monkeypatch.setattr(channel, "_GRACE", 0.2)
    federation = Federation(tmp_path)
    nodes = Nodes(federation, names, broken={2: "Python is missing"})
    with pytest.raises(DataError, match=text):
        collected(federation, nodes)


@pytest.mark.parametrize("answer", [b"", b"[]", b"\xff", b"{}"])
def test_another_answer_than_a_site_is_an_error(tmp_path, answer):
    nodes = Nodes(Federation(tmp_path), {1: "north"})
    nodes.federation.message = lambda name, request: answer
    with pytest.raises(DataError, match="is no answer of a site|has not named its site"):
        collected(nodes.federation, nodes)


def test_the_reason_is_the_last_line_and_no_traceback(tmp_path, caplog):
    lines, logger = [], "flwr of a test"
    folder = EntryFolder(tmp_path)
    refusal = board.failed("north: refused, for no reason", "north", refused=True)
    with pytest.raises(errors.StudyEndedError) as caught, errors.ended_in_words(lines.append, logger):
        board.collect(StudyDocument(STUDY), lambda requests: {"north": refusal}, folder, lines.append)
    assert lines == ["the study ended: north: refused, for no reason"]
    # as Flower logs it
    log = logging.getLogger(logger)
    log.error("ServerApp raised an exception", exc_info=caught.value)
    log.error("Exit Code: 201\n\nAn unhandled exception occurred in the ServerApp.")
    log.error("something else")
    assert [record.getMessage() for record in caplog.records] == ["something else"]


def test_a_defect_keeps_its_traceback():
    log = []
    with pytest.raises(ZeroDivisionError), errors.ended_in_words(log.append):
        1 / 0  # noqa: B018
    assert log == []


# --- what reviewers found ---


@pytest.mark.parametrize("order", [("west", "north", "south"), ("north", "south", "west")])
def test_the_reason_of_a_refusal_reaches_all_sites_in_any_order(tmp_path, order):
    federation, said = Federation(tmp_path, west={"rows": 500}), {}
    for _ in range(6):
        for name in order:
            said[name] = answer_by_command(federation, name, "--yes").output
    for name, text in said.items():
        assert "west (rows.csv): refused, there are fewer than 500 rows" in text, name
        assert "begin it with another seed" in " ".join(text.split())
    refusal = federation.board.read(2, "west")
    assert Entry.read(refusal, federation.public, "own").content["refused"][0].startswith("west (rows.csv): refused")
    # the sites that learn of it send no numbers
    for name in ("north", "south"):
        assert "masked" not in Entry.read(federation.board.read(2, name), federation.public, "own").content


def test_the_command_line_shows_what_leaves_in_the_clear(tmp_path):
    federation = Federation(tmp_path)
    for name in SITES:
        answer_by_command(federation, name, "--yes")
    found = answer_by_command(federation, "north", input="y\n")
    assert '"header": ["age", "ward", "died"]' in found.output


def test_a_site_learns_that_its_column_has_another_unit(tmp_path):
    federation = Federation(tmp_path)
    path = tmp_path / "west" / "rows.csv"
    header, *lines = path.read_text().splitlines()
    cells = [line.split(",", 1) for line in lines]
    path.write_text("\n".join([header, *(f"{float(age) / 1000:.6f},{rest}" for age, rest in cells)]))
    with pytest.warns(UserWarning, match=r"column 'age' varies .* times as much at all sites together as at west"):
        federation.run(until=4)


def test_another_folder_than_before_is_an_error(tmp_path):
    federation = Federation(tmp_path)
    federation.run(until=1)
    shutil.move(tmp_path / "board", tmp_path / "other")
    found = answer_by_command(federation, "north", "--yes")
    assert found.exit_code == 1 and "there is no folder" in found.output and not (tmp_path / "board").exists()
    (tmp_path / "board").mkdir()
    found = answer_by_command(federation, "north", input="n\n")
    assert "board has no entry of north, which has sent 2 before: is it the folder of this study?" in found.output
    assert entries_of(tmp_path / "board") == {}
    (tmp_path / "board").rmdir()
    (tmp_path / "board").write_text("")
    found = answer_by_command(federation, "north", "--yes")
    assert found.exit_code == 1 and "board is a file: name the folder that all sites share" in found.output


def test_the_folder_of_another_study_is_an_error_before_an_entry_leaves(at):
    federation = at(2)
    before = entries_of(federation.board.folder)
    federation.text = federation.text.replace("draws = 200", "draws = 201")
    federation.write("south")
    found = answer_by_command(federation, "south", "--yes")
    assert found.exit_code == 1 and "north.json is an entry of another study (" in found.output
    assert entries_of(federation.board.folder) == before


def test_links_pipes_and_large_files_in_the_shared_folder_are_refused(at, monkeypatch):
    federation = at(4)
    place = federation.board.path(4, "north")
    place.parent.mkdir(exist_ok=True)
    secret = federation.folder / "south" / "rows.csv"
    before = secret.read_bytes()
    for make in (lambda: os.mkfifo(place), lambda: place.symlink_to(secret), lambda: place.symlink_to("/dev/zero")):
        make()
        with pytest.raises(ForgedError, match="north.json is no file"):
            federation.board.all(SITES)
        place.unlink()
    place.write_bytes(b"x" * 100)
    monkeypatch.setattr("accord.federation.exchange.MOST_BYTES", 99)
    with pytest.raises(ForgedError, match="has more than 99 bytes"):
        federation.board.read(4, "north")
    place.unlink()
    monkeypatch.undo()
    # a link in the place of a temporary file is not followed
    for name in (".south.json.partial", "south.json.partial"):
        place.with_name(name).symlink_to(secret)
    federation.answer("south")
    assert secret.read_bytes() == before and federation.board.read(4, "south")
    shutil.rmtree(place.parent)
    (federation.folder / "elsewhere").mkdir()
    place.parent.symlink_to(federation.folder / "elsewhere")
    with pytest.raises(ForgedError, match="is a link to another folder"):
        federation.answer("south")
    assert not list((federation.folder / "elsewhere").iterdir())


@pytest.mark.parametrize(
    "content",
    [None, {}, [], 3, "x", {"rows": -5}, {"rows": True}, {"rows": 1.5}, {"rows": float("nan")}, {"rows": 10**15}],
)
def test_a_wrong_value_in_the_clear_names_its_site(at, content):
    federation = at(2)
    for name in SITES:
        federation.answer(name)
    usual = Entry.read(federation.board.read(2, "west"), federation.public, "own").content
    changed = plain({**usual, **content}) if isinstance(content, dict) and content else content
    federation.change(2, "west", content=changed)
    with pytest.raises(DataError, match="the entry of west in step 2 has another content|west: no site has"):
        federation.answer("north")


@pytest.mark.parametrize(
    "change",
    [
        {"accord": "\x1b[2J"},
        {"accord": 3},
        {"masks": "x"},
        {"masks": base64.b64encode(bytes(32)).decode()},
        {"masks": base64.b64encode(bytes(31)).decode()},
    ],
)
def test_a_wrong_key_or_version_names_its_site(at, change):
    federation = at(0)
    for name in SITES:
        federation.answer(name)
    usual = Entry.read(federation.board.read(0, "west"), federation.public, "own").content
    federation.change(0, "west", content=usual | change)
    refused(federation, "the entry of west in step 0 has another content than accord writes", "north")


def test_entries_of_steps_far_ahead_are_not_stored(at):
    federation = at(4)
    ahead = {(step, "north"): federation.store("north").read(3, "north") for step in range(6, 300)}
    federation.answer("south", {**federation.board.all(SITES), **ahead})
    assert len(federation.store("south").all(["north"])) == 4


def test_a_wider_message_is_of_the_same_positions(tmp_path, coarse, monkeypatch):
    """A first site cannot choose other positions for the second message of a step, which has the same noise."""
    federation, asked = coarse[0], []
    usual = SumExchange.integers

    def flagged(self, plan, coder, *rest):
        asked.append(plan)
        total = usual(self, plan, coder, *rest)
        if len([one for one in asked if one.parts]) == 1 and len(asked) == 1:
            total[-1] = 1
        return total

    monkeypatch.setattr(SumExchange, "integers", flagged)
    # with coarse answers the first step has points
    federation = back(federation, tmp_path / "again", PLANNED - 1)
    for name in SITES:
        federation.answer(name)
    for name in SITES:
        asked.clear()
        federation.answer(name)
        assert asked[0].parts and asked[1].what == f"{asked[0].what}, wider, 1" and not asked[1].parts


def test_names_of_sites_differ_in_more_than_case():
    with pytest.raises(ValueError, match="case does not count"):
        StudyDocument(STUDY.replace('"south"', '"North"'))
    with pytest.raises(ValueError, match="at most 64 letters"):
        StudyDocument(STUDY.replace('"south"', f'"{"s" * 65}"'))


def test_a_result_needs_only_names_of_files(finished, tmp_path):
    federation, runs = finished
    (tmp_path / "study.toml").write_text(federation.text)
    found = result(str(tmp_path / "study.toml"), str(federation.board.folder))
    np.testing.assert_array_equal(found.draws, runs["north"].draws)


def test_sites_check_the_model_together_if_the_study_has_a_report(tmp_path):
    federation = Federation(tmp_path, STUDY + "report = true\nfallback = true\n")
    runs, here = federation.run(), federation.here()
    expected = accord.sample(here, accord.Network.star(3), draws=200)
    np.testing.assert_allclose(runs["south"].draws, expected.draws, rtol=1e-9, atol=1e-9)
    # the same number as in one process
    elpd = f"{accord.loo(expected, here, accord.Network.star(3)).elpd:.1f}"
    reports = list(tmp_path.glob("*/kept/*/report.html"))
    assert len(reports) == 3 and all(elpd.replace("-", "") in path.read_text() for path in reports)
    (tmp_path / "study.toml").write_text(federation.text)
    folder, report = str(federation.board.folder), str(tmp_path / "report.html")
    found = CliRunner().invoke(app, ["study", "result", str(tmp_path / "study.toml"), folder, "--report", report])
    assert found.exit_code == 0 and "see the reports of the sites" in found.output
    wrong = [*("study", "result", str(tmp_path / "study.toml"), folder), "--output", str(tmp_path / "none" / "run.nc")]
    assert "its folder does not exist" in CliRunner().invoke(app, wrong).output


def test_dropped_rows_may_be_hidden_at_some_sites(tmp_path):
    federation = Federation(tmp_path, COARSE.replace("[data]", '[data]\nmissing = "drop"'))
    path = tmp_path / "south" / "rows.csv"
    header, first, *rest = path.read_text().splitlines()
    path.write_text("\n".join([header, "," + first.split(",", 1)[1], *rest]))
    federation.run(until=3)
    gathered = [Entry.read(federation.board.read(2, name), federation.public, "own").content for name in SITES]
    assert [own["dropped"] for own in gathered] == [0, "< 3", 0] and [own["rows"] for own in gathered] == [90, 89, 90]


def test_a_refusal_is_known_if_it_comes_after_the_answers_to_it(tmp_path):
    federation = Federation(tmp_path, west={"rows": 500})
    for name in ("west", "north", "south", "north", "west", "north"):
        federation.answer(name)
    assert all(federation.board.read(2, name) for name in ("west", "north")) and not federation.board.read(2, "south")
    # south does not have the refusal of west yet
    board = {place: entry for place, entry in federation.board.all(SITES).items() if place != (2, "west")}
    found = federation.answer("south", board)
    assert found.waits_for == ("west",)
    with pytest.raises(DataError, match="west .*refused, there are fewer than 500 rows.*another seed"):
        federation.answer("south")


def test_a_site_whose_rows_do_not_fit_ends_the_study_for_all(tmp_path):
    federation = Federation(tmp_path, STUDY.replace('"bernoulli"', '"poisson"').replace("positive =", "# positive ="))
    for name in SITES:
        path = tmp_path / name / "rows.csv"
        path.write_text(path.read_text().replace("yes", "1").replace("no", "-1" if name == "west" else "0"))
        federation.write(name)
    said = {}
    for _ in range(8):
        said |= {name: " ".join(answer_by_command(federation, name, "--yes").output.split()) for name in SITES}
    assert "some responses of died at site 'west' are not counts" in said["west"]
    for name in ("north", "south"):
        assert "west: its file does not fit the model; the reason is in its audit file" in said[name], said
        assert "-1" not in said[name]


@pytest.mark.parametrize("found", [5, [5], {"a": 1}, None])
def test_a_refusal_in_another_format_names_its_site(at, found):
    federation = at(3)
    for name in SITES:
        federation.answer(name)
    federation.change(3, "west", content={"refused": found})
    refused(federation, "the entry of west in step 3 has another content than accord writes", "north")


def test_constant_columns_have_no_noise():
    rng = np.random.default_rng(0)
    for value in (0.3, 1e-7, 1e9 + 0.1):
        x = np.full(57, value)
        assert x.std() >= 0.0 and sums_of(x, 0.0, rng) == sums_of(x, 0.0)
