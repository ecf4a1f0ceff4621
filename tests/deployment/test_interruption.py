"""A site can be stopped at any time, and no reply exceeds the site's time limit."""

import threading

import pytest

from fedcopl.deployment.site import site_process
from fedcopl.deployment.site.site_process import _time_limit
from fedcopl.deployment.terms import Refused


class EndlessWork:
    """Work that takes far longer than any limit of these tests, and ends if it is not interrupted."""

    def __init__(self):
        self.began, self.steps = threading.Event(), 0

    def work(self):
        self.began.set()
        while self.steps < 10**8:
            self.steps += 1


def test_a_reply_beyond_the_time_limit_is_interrupted():
    with (
        pytest.raises(Refused, match=r"^the reply takes longer than this site's limit of 0\.1 s$"),
        _time_limit(0.1, lambda: False),
    ):
        EndlessWork().work()


def test_a_site_can_be_stopped_during_a_computation():
    endless = EndlessWork()
    with pytest.raises(KeyboardInterrupt), _time_limit(3600, endless.began.is_set):
        endless.work()
    assert endless.steps > 0


def test_an_interruption_that_is_swallowed_is_followed_by_another(monkeypatch):
    monkeypatch.setattr(site_process, "_INTERRUPT_AGAIN", 0.01)

    def ignore_first_interruption():
        try:
            EndlessWork().work()
        except KeyboardInterrupt:
            EndlessWork().work()

    with pytest.raises(KeyboardInterrupt), _time_limit(3600, lambda: True):
        ignore_first_interruption()


def test_a_reply_within_the_time_limit_is_sent():
    done = False
    with _time_limit(3600, lambda: False):
        done = True
    assert done
