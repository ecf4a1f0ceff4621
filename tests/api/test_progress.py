"""Progress in a notebook, on a terminal and in a file."""

import io
import sys
from types import ModuleType, SimpleNamespace

import pytest

from fedcopl import RunConfig
from fedcopl.api.progress import LinesScreen, NotebookScreen, ScreenWatcher, TerminalScreen, choose_screen, watcher_for
from fedcopl.messages import Train
from fedcopl.run.watcher import SilentWatcher


class Shown:
    """What IPython.display does, as far as it is used."""

    def __init__(self):
        self.pages = []

    def HTML(self, text):
        return text

    def display(self, page, display_id):
        assert display_id
        self.pages.append(page)
        return SimpleNamespace(update=self.pages.append)


def play(screen):
    watcher = ScreenWatcher(screen)
    watcher.preparing("loading the model")
    watcher.noticed("a <b> note")
    watcher.started(RunConfig(rounds=2), 3, 0)
    watcher.answered("north", Train(0, {}))
    watcher.round_done({"round": 0, "macro": 0.5, "loss": 0.25})
    watcher.round_done({"round": 1, "macro": None, "loss": None})


def test_a_notebook_has_one_output_that_is_replaced():
    shown = Shown()
    play(NotebookScreen(shown))
    assert '<progress value="2" max="2"></progress> 2 / 2 nothing to train on' in shown.pages[-1]
    assert "a &lt;b&gt; note" in shown.pages[-1]
    assert any("accuracy 50.0 %, loss 0.250" in page for page in shown.pages)


def test_lines_where_nothing_can_be_written_over():
    stream = io.StringIO()
    play(LinesScreen(stream))
    lines = stream.getvalue().splitlines()
    assert lines[0] == "note: a <b> note"
    assert lines[1].startswith("round 1/2: accuracy 50.0 %, loss 0.250, about ")
    assert len(lines) == 3 and "\r" not in stream.getvalue()


def test_one_line_on_a_terminal():
    stream = io.StringIO()
    play(TerminalScreen(stream))
    assert "[##########          ] 1/2 accuracy 50.0 %, loss 0.250" in stream.getvalue()
    assert stream.getvalue().endswith("\n")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def pretend_ipython(monkeypatch, shell):
    module, display = ModuleType("IPython"), Shown()
    module.get_ipython = lambda: shell
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setitem(sys.modules, "IPython.display", display)


def test_the_screen_suits_the_place(monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert isinstance(choose_screen(io.StringIO()), LinesScreen)
    assert isinstance(choose_screen(Terminal()), TerminalScreen)
    pretend_ipython(monkeypatch, SimpleNamespace(kernel=1))
    assert isinstance(choose_screen(Terminal()), NotebookScreen)
    pretend_ipython(monkeypatch, SimpleNamespace())  # IPython in a terminal
    assert isinstance(choose_screen(Terminal()), TerminalScreen)


@pytest.mark.parametrize("given", [False, SilentWatcher()])
def test_silence_or_somebody_elses_watcher(given):
    assert isinstance(watcher_for(given), SilentWatcher)
