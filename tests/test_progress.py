"""The progress display, and Ctrl-C during a run."""

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
import typer

import accord
from accord.base import progress as progress_module
from accord.base.interruptions import interruptions, let_through, terminations
from accord.base.progress import Progress, _compiler, current, stage, step
from accord.base.text import human_seconds
from accord.cli.errors import users_errors
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
def test_seconds_as_text(seconds, text):
    assert human_seconds(seconds) == text


# --- the line ---


def test_a_line_has_the_stage_its_share_and_the_remaining_time(monkeypatch):
    clock = Clock(monkeypatch)
    with Progress("Importance", False) as line:
        clock.now += 3.0
        assert line.text() == "Importance, 3.0 s"
        line.begin("the mode")
        clock.now += 2.0
        assert line.text() == "Importance: the mode, 5.0 s"
        line.advance(1, 4)
        assert line.text() == "Importance: the mode, 25%, 5.0 s, 6.0 s left"
        line.advance(1, 4, "7 sums")
        assert line.text() == "Importance: the mode, 7 sums, 25%, 5.0 s, 6.0 s left"
        # a new stage has no estimate yet
        line.begin("batches")
        line.advance(3, 4)
        assert line.text() == "Importance: batches, 75%, 5.0 s"


def test_any_function_reports_stages():
    stage("no display")
    with Progress("a run", False) as line:
        stage("the mode")
        step(1, 2)
        assert line.text().startswith("a run: the mode, 50%")
    stage("no display any more")
    assert "the mode" in line.text()


def test_a_nested_display_forwards_its_stages():
    with Progress("a command", None) as outer:
        with Progress("a run", None):
            stage("the mode")
            step(1, 4)
        assert outer.text().startswith("a command: a run: the mode, 25%")
        with Progress("another run", False):
            stage("in silence")
        assert outer.text().startswith("a command: a run: the mode, 25%")


def test_news_lines_are_limited():
    line = Progress("a run", False)
    line.news([str(i) for i in range(30)])
    assert line.lines()[-2:] == ["23", "and 6 more"]


# --- displays ---


def test_a_log_gets_a_line_at_intervals(monkeypatch, capsys):
    monkeypatch.setattr(progress_module._Log, "every", 0.05)
    with Progress("a run"):
        stage("the mode")
        time.sleep(0.3)
        stage("batches")
    lines = capsys.readouterr().err.splitlines()
    # the last line shows the last stage
    assert len(lines) >= 3 and all(line.startswith("a run: the mode, 0.") for line in lines[:2])
    assert lines[-1].startswith("a run: batches, 0.")


def test_a_log_of_a_quick_run_is_empty(capsys):
    with Progress("a run", True):
        stage("the mode")
    assert capsys.readouterr() == ("", "")


def test_a_hidden_display_prints_nothing(monkeypatch, capsys):
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


def test_a_terminal_shows_the_line_at_once(monkeypatch):
    stderr = Terminal()
    monkeypatch.setattr(sys, "stderr", stderr)
    with Progress("a run") as line:
        line.begin("the mode")
        line.advance(1, 2)
        time.sleep(0.4)
    assert "a run: the mode, 50%" in stderr.getvalue() and "━" in stderr.getvalue()


def test_a_notebook_shows_the_line_without_widgets(monkeypatch):
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
        line.begin("the mode")
        time.sleep(0.2)
    # the line vanishes at the end
    assert shown[0] == "a run, 0.0 s" and shown[-2].startswith("a run: the mode, 0.") and shown[-1] == ""


# --- runs ---


def stages(monkeypatch):
    texts = []
    begin = Progress.begin
    monkeypatch.setattr(Progress, "begin", lambda self, text: texts.append(text) or begin(self, text))
    return texts


def test_runs_by_totals_name_their_stages(monkeypatch):
    texts, done = stages(monkeypatch), []
    monkeypatch.setattr(Progress, "advance", lambda self, *numbers: done.append(numbers[:2]))
    accord.sample(regression(), RING, Importance(), draws=1000, chains=4)
    assert texts[:3] == ["reading the data", "finding the mode", "searching tails and modes"]
    assert "checking the draws" in texts
    # parts of a long sum, each reported
    assert any(total > 2 for _, total in done) and all(done <= total for done, total in done)


@pytest.mark.long
def test_runs_of_rounds_name_their_stages(monkeypatch):
    texts = stages(monkeypatch)
    # skewed, so that the Laplace approximation is not accurate enough
    accord.sample(
        regression(rows=9, prior_variance=100.0),
        RING,
        accord.Rounds(accord.samplers.GTBAOAB(), burn_in=20),
        draws=50,
        chains=2,
    )
    assert texts[:2] == ["reading the data", "warm-up: the mode"]
    assert texts[-3:] == ["compiling", "rounds", "checking the draws"]
    assert "warm-up: points around the mode" in texts and any(text.startswith("forecasting") for text in texts)


# --- Ctrl-C ---


def test_a_due_interrupt_is_raised_once():
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
    """Python's default Ctrl-C handler, because background processes may ignore Ctrl-C."""
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
            pytest.fail("not interrupted")
    # no interrupt is due after the run
    let_through()
    chosen = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with terminations():
            callback()
    finally:
        signal.signal(signal.SIGINT, chosen)


@pytest.mark.long
def test_ctrl_c_shows_a_notice_while_compiled_code_runs(monkeypatch, capsys):
    notices = []
    monkeypatch.setattr(Progress, "_note", lambda self, text: notices.append((time.monotonic(), text)))
    with Progress("a command"), Progress("a run"), interruptions() as stopped:
        began = time.monotonic()
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        # one call into compiled code, during which Python's signal handlers do not run
        hashlib.pbkdf2_hmac("sha256", b"", b"", 5_000_000)
        busy = time.monotonic() - began
        while not stopped():
            time.sleep(0.01)
    assert busy > 0.3
    ((at, text),) = notices
    assert text.startswith("Ctrl-C received") and at - began < busy


def test_a_notice_stays_and_the_wakeup_descriptor_is_restored():
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    before = signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
    try:
        with Progress("a run", False) as line:
            with interruptions():
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.2)
            line.begin("another stage")
            assert line.lines()[0].startswith("Ctrl-C received")
        # the signal also reaches the former descriptor
        assert os.read(reads, 8) == bytes([signal.SIGINT]) and signal.set_wakeup_fd(before) == writes
    finally:
        signal.set_wakeup_fd(before)
        os.close(reads)
        os.close(writes)


def pressed_in(monkeypatch, text):
    """Press Ctrl-C in the middle of the first sum of a stage."""
    at = []
    begin, advance = Progress.begin, Progress.advance

    def begun(self, what):
        at.append(what)
        begin(self, what)

    def advanced(self, *numbers):
        advance(self, *numbers)
        if at and re.match(text, at[-1]):
            at.append("pressed")
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Progress, "begin", begun)
    monkeypatch.setattr(Progress, "advance", advanced)
    return at


def test_ctrl_c_in_the_middle_of_a_batch_keeps_the_points(monkeypatch):
    at = pressed_in(monkeypatch, "proposals")
    with pytest.warns(UserWarning, match="interrupted: the run keeps"):
        run = accord.sample(regression(), RING, draws=1000, chains=4)
    assert at[-1] == "pressed" and run.settings["interrupted"]
    assert run.draws.shape[1] > 10 and not run.certificate.holds
    assert "Importance is not certified: interrupted" in run.settings["chosen"]


def test_ctrl_c_before_the_first_point_ends_the_run(monkeypatch):
    at = pressed_in(monkeypatch, "searching tails and modes")
    with pytest.raises(KeyboardInterrupt, match="^interrupted: the run keeps no draws$") as stop:
        accord.sample(regression(), RING, draws=1000, chains=4)
    assert at[-1] == "pressed" and stop.value.__suppress_context__


def test_ctrl_c_before_the_first_round_names_the_checkpoint(monkeypatch, tmp_path, usual):
    monkeypatch.setattr(accord.Rounds, "run", lambda *given: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt, match="keeps no draws. The same call continues from .*kept$"):
        accord.sample(regression(), RING, accord.samplers.DESGLD(0.001), draws=10, checkpoint=tmp_path / "kept")


@pytest.mark.parametrize("text", ["", "interrupted: the run keeps no draws"])
def test_the_command_line_ends_with_one_line_after_ctrl_c(text, capsys):
    with pytest.raises(typer.Exit) as ended, users_errors():
        raise KeyboardInterrupt(*([text] if text else []))
    assert ended.value.exit_code == 130 and capsys.readouterr().err == f"{text or 'interrupted'}\n"


def test_ctrl_c_keeps_the_draws_so_far(monkeypatch):
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
        doubt = Check("doubt", 1.0, 0.0, False, "a failed check")
        return replace(drawn, certificate=Certificate((*drawn.certificate.checks, doubt)))

    monkeypatch.setattr(Importance, "draw", doubted)
    with pytest.warns(UserWarning, match="interrupted: the run keeps 1000 draws per chain"):
        run = accord.sample(regression(), RING, draws=1000, chains=4)
    assert "pressed" in at and run.settings["interrupted"] and not run.certificate.holds
    assert run.settings["chosen"] == (
        "Importance is not certified: a failed check; ChEES was interrupted before its first draw"
    )
    assert run.draws.shape == (4, 1000, 3, 2) and run.points is not None


def test_the_line_shows_compilation(monkeypatch):
    seen = []
    with Progress("fit", show=True) as line:
        stage("the mode")
        # JAX calls listeners in order of registration, this one after the display's
        jax.monitoring.register_event_duration_secs_listener(lambda event, seconds, **_: seen.append(line.text()))
        jax.jit(lambda x: jnp.sin(x) * 3.7)(np.ones(3))
        assert "compiling" not in line.text()
    assert any(text.startswith("fit: the mode, compiling, ") for text in seen)
    # a stage with this name has the word once
    with Progress("fit", show=True) as line:
        stage("compiling")
        monkeypatch.setattr(_compiler, "is_busy", True)
        assert line.text().startswith("fit: compiling, ") and line.text().count("compiling") == 1


def test_the_line_names_the_method_that_runs(monkeypatch):
    titles = []
    draw = Importance.draw
    monkeypatch.setattr(Importance, "draw", lambda *given: (titles.append(current().title), draw(*given))[1])
    accord.sample(regression(), RING, draws=100)
    assert titles == ["Importance"]


def test_queries_of_a_run_show_a_line(monkeypatch):
    run, titles = accord.sample(regression(), RING, draws=100), []
    monkeypatch.setattr("accord.examine.agents._require_density", lambda *_: titles.append(current().title))
    accord.alone(run, regression(), RING)
    assert titles == ["querying the agents"]
