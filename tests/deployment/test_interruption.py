"""Whatever a site is doing, it can be stopped, and no answer takes longer than the site's limit."""

import threading

import pytest

from fedcopl.deployment.site import interruption
from fedcopl.deployment.site.interruption import InTime
from fedcopl.deployment.wire.terms import Refused


class Endless:
    """Answers never."""

    name, folder_name = "endless", "folder"

    def __init__(self):
        self.began, self.steps = threading.Event(), 0

    def answer(self, ask, terms):
        self.began.set()
        while True:
            self.steps += 1


def test_an_answer_without_end_is_given_up():
    with pytest.raises(Refused, match=r"^the answer takes longer than this site's limit of 0\.1 s$"):
        InTime(Endless(), 0.1, lambda: False).answer(None, None)


def test_a_site_is_stopped_in_the_middle_of_an_answer():
    endless = Endless()
    with pytest.raises(KeyboardInterrupt):
        InTime(endless, 3600, endless.began.is_set).answer(None, None)
    assert endless.steps > 0


def test_an_interruption_that_is_swallowed_is_followed_by_another(monkeypatch):
    monkeypatch.setattr(interruption, "AGAIN", 0.01)

    class Deaf(Endless):
        def answer(self, ask, terms):
            try:
                super().answer(ask, terms)
            except KeyboardInterrupt:
                super().answer(ask, terms)

    with pytest.raises(KeyboardInterrupt):
        InTime(Deaf(), 3600, lambda: True).answer(None, None)


def test_an_answer_in_time_is_given():
    class Quick(Endless):
        def answer(self, ask, terms):
            return ask

    site = InTime(Quick(), 3600, lambda: False)
    assert site.answer("ask", None) == "ask" and (site.name, site.folder_name) == ("endless", "folder")
