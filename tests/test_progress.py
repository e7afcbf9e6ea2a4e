"""What long work says of itself, and Ctrl-C in the middle of it."""

import hashlib
import io
import os
import re
import signal
import sys
import threading
import time
import types
from contextlib import suppress
from dataclasses import replace

import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import pytest

import accord
from accord.base import progress as progress_module
from accord.base.interruptions import interruptions, let_through, terminations
from accord.base.progress import Progress, stage, step
from accord.base.text import human_seconds
from accord.results.certificate import Certificate, Check
from accord.samplers import ChEES, Importance

RING = accord.Network.ring(3)


def regression(rows=40, dim=2, prior_variance=1.0):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((rows, dim))
    y = (rng.random(rows) < 0.5).astype(float)
    return accord.models.logistic_regression([(X[i::3], y[i::3]) for i in range(3)], prior_variance=prior_variance)


class Clock:
    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (125.0, "2 min 5 s")]
    + [(3599.4, "59 min 59 s"), (3599.6, "1 h 0 min"), (4800.0, "1 h 20 min")],
)
def test_seconds_are_told_as_people_do(seconds, text):
    assert human_seconds(seconds) == text


# --- the line ---


def test_a_line_has_the_stage_what_is_done_and_what_is_left(monkeypatch):
    clock = Clock(monkeypatch)
    with Progress("Importance", False) as line:
        clock.now += 3.0
        assert line.text() == "Importance, 3.0 s"
        line.say("the mode")
        clock.now += 2.0
        assert line.text() == "Importance: the mode, 5.0 s"
        line.advance(1, 4)
        assert line.text() == "Importance: the mode, 25%, 5.0 s, 6.0 s left"
        line.advance(1, 4, "7 sums")
        assert line.text() == "Importance: the mode, 7 sums, 25%, 5.0 s, 6.0 s left"
        # of another stage nothing is known yet
        line.say("batches")
        line.advance(3, 4)
        assert line.text() == "Importance: batches, 75%, 5.0 s"


def test_stages_are_said_by_whoever_works():
    stage("nobody listens")
    with Progress("a run", False) as line:
        stage("the mode")
        step(1, 2)
        assert line.text().startswith("a run: the mode, 50%")
    stage("nobody listens any more")
    assert "the mode" in line.text()


def test_one_within_another_is_told_there():
    with Progress("a command", None) as outer:
        with Progress("a run", None):
            stage("the mode")
            step(1, 4)
        assert outer.text().startswith("a command: a run: the mode, 25%")
        with Progress("another run", False):
            stage("in silence")
        assert outer.text().startswith("a command: a run: the mode, 25%")


def test_many_lines_of_news_are_cut():
    line = Progress("a run", False)
    line.news([str(i) for i in range(30)])
    assert line.lines()[-2:] == ["23", "and 6 more"]


# --- where it is shown ---


def test_a_log_has_a_line_now_and_then(monkeypatch, capsys):
    monkeypatch.setattr(progress_module._Log, "every", 0.05)
    with Progress("a run"):
        stage("the mode")
        time.sleep(0.3)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) >= 2 and all(line.startswith("a run: the mode, 0.") for line in lines)


def test_a_log_of_a_quick_run_is_empty(capsys):
    with Progress("a run", True):
        stage("the mode")
    assert capsys.readouterr() == ("", "")


def test_what_is_off_says_nothing(monkeypatch, capsys):
    monkeypatch.setattr(progress_module._Log, "every", 0.02)
    with Progress("a run", False):
        stage("the mode")
        time.sleep(0.1)
    assert capsys.readouterr() == ("", "")


def test_the_environment_can_turn_it_off(monkeypatch, capsys):
    monkeypatch.setattr(progress_module._Log, "every", 0.02)
    monkeypatch.setenv("ACCORD_PROGRESS", "off")
    for show, shown in ((None, False), (True, True)):
        with Progress("a run", show):
            time.sleep(0.1)
        assert (capsys.readouterr().err != "") == shown


def test_a_terminal_shows_it_at_once(monkeypatch):
    stderr = Terminal()
    monkeypatch.setattr(sys, "stderr", stderr)
    with Progress("a run") as line:
        line.say("the mode")
        line.advance(1, 2)
        time.sleep(0.4)
    assert "a run: the mode, 50%" in stderr.getvalue() and "━" in stderr.getvalue()


def test_a_notebook_shows_it_without_widgets(monkeypatch):
    shown = []

    class Handle:
        def update(self, what):
            shown.append(what)

    display = types.ModuleType("IPython.display")
    display.Pretty = str
    display.display = lambda what, display_id: shown.append(what) or Handle()
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    ipython.display = display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(progress_module._Notebook, "every", 0.05)
    with Progress("a run") as line:
        line.say("the mode")
        time.sleep(0.2)
    assert shown[0] == "a run, 0.0 s" and shown[-1].startswith("a run: the mode, 0.")


# --- runs ---


def stages(monkeypatch):
    said = []
    say = Progress.say
    monkeypatch.setattr(Progress, "say", lambda self, text: said.append(text) or say(self, text))
    return said


def test_runs_by_totals_name_their_stages(monkeypatch):
    said, done = stages(monkeypatch), []
    monkeypatch.setattr(Progress, "advance", lambda self, *numbers: done.append(numbers[:2]))
    accord.sample(regression(), RING, Importance(), draws=1000, chains=4)
    assert said[:3] == ["reading the data", "the mode", "lines from the mode"] and "certificate" in said
    # parts of a sum that is long, of which each is said
    assert any(total > 2 for _, total in done) and all(done <= total for done, total in done)


@pytest.mark.long
def test_runs_of_rounds_name_their_stages(monkeypatch):
    said = stages(monkeypatch)
    # skew, so that the Gaussian nearest to it is not near enough for a warm-up without draws
    accord.sample(
        regression(rows=9, prior_variance=100.0),
        RING,
        accord.Rounds(accord.samplers.GTBAOAB(), burn_in=20),
        draws=50,
        chains=2,
    )
    kinds = [text.split(" in prospect")[0] for text in said]
    assert kinds[:2] == ["reading the data", "warm-up: the mode"]
    assert kinds[-3:] == ["compiling", "rounds", "looking at the draws"]
    assert "warm-up: points around the mode" in kinds and any(text.endswith("in prospect") for text in said)


# --- Ctrl-C ---


def test_what_is_let_through_is_let_through_once():
    with interruptions(anywhere=True) as stopped:
        let_through()
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            let_through()
        let_through()
        assert stopped()
    with interruptions() as stopped:
        os.kill(os.getpid(), signal.SIGINT)
        let_through()
        assert stopped()


@pytest.fixture
def usual():
    """Ctrl-C as Python has it: what runs in the background may ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_that_a_library_swallows_is_raised_again(usual):
    def callback():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)

    with pytest.raises(KeyboardInterrupt), terminations():
        with suppress(KeyboardInterrupt):
            callback()
        let_through()
    with pytest.raises(KeyboardInterrupt), terminations():
        with suppress(KeyboardInterrupt):
            callback()
        with interruptions():
            pytest.fail("it goes on")
    # and not after the run
    let_through()
    chosen = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with terminations():
            callback()
    finally:
        signal.signal(signal.SIGINT, chosen)


@pytest.mark.long
def test_ctrl_c_is_answered_while_nothing_can_be_left(monkeypatch, capsys):
    told = []
    monkeypatch.setattr(Progress, "_note", lambda self, text: told.append((time.monotonic(), text)))
    with Progress("a command"), Progress("a run"), interruptions() as stopped:
        began = time.monotonic()
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        # one call into compiled code, in which no handler of Python runs
        hashlib.pbkdf2_hmac("sha256", b"", b"", 5_000_000)
        busy = time.monotonic() - began
        while not stopped():
            time.sleep(0.01)
    assert busy > 0.3
    assert len(told) == 1 and told[0][1].startswith("Ctrl-C was heard") and told[0][0] - began < busy


def test_a_notice_stays_and_the_descriptor_of_before_is_put_back():
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    before = signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
    try:
        with Progress("a run", False) as line:
            with interruptions():
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.2)
            line.say("another stage")
            assert line.lines()[0].startswith("Ctrl-C was heard")
        # who listened before has heard it too
        assert os.read(reads, 8) == bytes([signal.SIGINT]) and signal.set_wakeup_fd(before) == writes
    finally:
        signal.set_wakeup_fd(before)
        os.close(reads)
        os.close(writes)


def pressed_in(monkeypatch, text):
    """Ctrl-C is pressed in the middle of the first sum of a stage."""
    at = []
    say, advance = Progress.say, Progress.advance

    def said(self, what):
        at.append(what)
        say(self, what)

    def advanced(self, *numbers):
        advance(self, *numbers)
        if at and re.match(text, at[-1]):
            at.append("pressed")
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Progress, "say", said)
    monkeypatch.setattr(Progress, "advance", advanced)
    return at


def test_ctrl_c_in_the_middle_of_a_batch_keeps_the_points(monkeypatch):
    at = pressed_in(monkeypatch, "fitting proposals")
    with pytest.warns(UserWarning, match="interrupted: the run keeps"):
        run = accord.sample(regression(), RING, draws=1000, chains=4)
    assert at[-1] == "pressed" and run.settings["interrupted"]
    assert run.draws.shape[1] > 10 and not run.certificate.holds
    assert "Importance is not certified: interrupted" in run.settings["chosen"]


def test_ctrl_c_before_there_is_a_point_ends_the_run(monkeypatch):
    at = pressed_in(monkeypatch, "lines from the mode")
    with pytest.raises(KeyboardInterrupt):
        accord.sample(regression(), RING, draws=1000, chains=4)
    assert at[-1] == "pressed"


def test_ctrl_c_keeps_the_chains_that_there_are(monkeypatch):
    method = ChEES(lockstep=16, warmup=20)
    at = pressed_in(monkeypatch, r"\d+ chains, 2 of")
    monkeypatch.setattr("accord.posterior.totals._NUMBERS", 64)
    with pytest.warns(UserWarning, match="interrupted: the run keeps"):
        run = accord.sample(regression(), RING, method, draws=100, chains=4)
    assert at[-1] == "pressed" and run.draws.shape[1] >= 2 and not run.certificate.holds


def test_ctrl_c_in_the_fallback_keeps_what_was_drawn_before(monkeypatch):
    at = pressed_in(monkeypatch, "warm-up of")
    monkeypatch.setattr("accord.posterior.totals._NUMBERS", 64)

    draw = Importance.draw

    def doubted(*arguments):
        drawn = draw(*arguments)
        doubt = Check("doubt", 1.0, 0.0, False, "somebody doubts it")
        return replace(drawn, certificate=Certificate((*drawn.certificate.checks, doubt)))

    monkeypatch.setattr(Importance, "draw", doubted)
    with pytest.warns(UserWarning, match="interrupted: the run keeps 1000 draws a chain"):
        run = accord.sample(regression(), RING, draws=1000, chains=4)
    assert "pressed" in at and run.settings["interrupted"] and not run.certificate.holds
    assert run.settings["chosen"] == (
        "Importance is not certified: somebody doubts it; ChEES was interrupted before it had drawn"
    )
    assert run.draws.shape == (4, 1000, 3, 2) and run.points is not None


def test_a_program_that_is_compiled_is_named(monkeypatch):
    seen = []
    with Progress("fit", show=True) as line:
        stage("the mode")
        # listeners hear one after another: this one after the line's own
        jax.monitoring.register_event_duration_secs_listener(lambda event, seconds, **_: seen.append(line.text()))
        jax.jit(lambda x: jnp.sin(x) * 3.7)(np.ones(3))
        assert "compiling" not in line.text()
    assert any(text.startswith("fit: the mode, compiling, ") for text in seen)
