"""Progress on a terminal, in a notebook and in a file."""

import io
import sys

import pytest
from rich.console import Console
from rich.progress import Progress

from fedcopl import RunConfig, progress
from fedcopl.messages import Train
from fedcopl.progress import _BarReporter, _LineReporter, reporting, site_reporting
from fedcopl.run.progress_reporter import ProgressReporter
from fedcopl.run.record import RoundRecord


def play(watcher):
    watcher.preparing("loading the model")
    watcher.prepared(1, 2)
    watcher.note("a <b> note")
    watcher.started(RunConfig(rounds=2), 3, 0)
    watcher.replied("north", Train(0, {}))
    watcher.round_done(RoundRecord(round=0, macro=0.5, loss=0.25))
    watcher.round_done(RoundRecord(round=1))


def test_lines_in_a_file():
    stream = io.StringIO()
    play(_LineReporter(Console(file=stream, width=200), 2))
    lines = stream.getvalue().splitlines()
    assert lines[:3] == ["loading the model", "note: a <b> note", "3 clients, 2 rounds"]
    assert lines[3].startswith("round 1/2, accuracy 50.0 %, loss 0.250, about ")
    assert lines[3].endswith(" left")
    assert lines[4] == "round 2/2"


def test_without_training_no_rounds_are_shown():
    stream = io.StringIO()
    watcher = _LineReporter(Console(file=stream, width=200), 1)
    watcher.started(RunConfig(rounds=1, method="zeroshot"), 3, 0)
    watcher.round_done(RoundRecord(round=0, macro=0.5, kept_old_prompt=True))  # a method without prompts averages none
    assert stream.getvalue().splitlines() == ["3 clients, no training", "predicted, accuracy 50.0 %"]


def test_stderr_is_a_terminal_again_once_the_images_are_prepared(monkeypatch):
    # While rich shows a bar, sys.stderr is not a terminal, and the site would not prompt for consent to a run.
    before, console = sys.stderr, Console(stderr=True, force_terminal=True)
    monkeypatch.setattr(progress, "Console", lambda stderr: console)
    with site_reporting() as watcher:
        watcher.prepared(1, 2)
        assert sys.stderr is not before
        watcher.prepared(2, 2)
        assert sys.stderr is before
        watcher.prepared(1, 2)
    assert sys.stderr is before  # also when the bar is unfinished


def test_a_bar_on_a_terminal():
    stream = io.StringIO()
    console = Console(file=stream, width=200, force_terminal=True)
    with Progress(console=console, auto_refresh=False) as bar:
        play(_BarReporter(bar, 2))
    assert "note: a <b> note" in stream.getvalue()
    assert "round 1/2, accuracy 50.0 %, loss 0.250" in stream.getvalue()


class FakeConsole:
    def __init__(self, is_terminal, is_jupyter):
        self.is_terminal, self.is_jupyter = is_terminal, is_jupyter


@pytest.mark.parametrize(
    ("terminal", "notebook", "widgets", "kind"),
    [
        (False, False, True, _LineReporter),
        (True, False, False, _BarReporter),
        (True, True, True, _BarReporter),
        (True, True, False, _LineReporter),  # without widgets a notebook cannot update a bar
    ],
)
def test_the_reporter_depends_on_terminal_and_notebook(monkeypatch, terminal, notebook, widgets, kind):
    monkeypatch.setattr(progress, "Console", lambda stderr: FakeConsole(terminal, notebook))
    monkeypatch.setattr(progress, "find_spec", lambda name: widgets or None)
    monkeypatch.setattr(progress, "Progress", lambda *_, **__: Progress(console=Console(file=io.StringIO())))
    with reporting(2) as watcher:
        assert isinstance(watcher, kind)


@pytest.mark.parametrize("given", [False, ProgressReporter()])
def test_no_progress_or_given_reporter(given):
    with reporting(2, given) as watcher:
        assert isinstance(watcher, ProgressReporter)
        assert given is False or watcher is given
