"""The connection of a site, against a SuperLink made of a few dictionaries."""

import subprocess
import sys
import threading
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from deployment.toolbox import set_sender
from fedcopl.deployment.flower_internals import site_connection
from fedcopl.deployment.flower_internals.site_connection import ConnectionLost, SiteConnection
from fedcopl.deployment.site.site_process import _poll_interval


def records(number):
    return RecordDict({"say": ConfigRecord({"what": "x"}), "arrays": ArrayRecord([np.full(3, float(number))])})


def failing(status):
    request = httpx.Request("POST", "https://x")
    return httpx.HTTPStatusError("no", request=request, response=httpx.Response(status, request=request))


class SmallLink:
    """One message in its store, and whatever a site sends."""

    def __init__(self, fleet):
        self.fleet, self.sent, self.confirmed, self.failure = fleet, {}, [], None
        set_sender(1, 1, 1)
        self.message = Message(records(1), 7, "query.train", group_id="2")
        self.message.metadata.__dict__["_message_id"] = self.message.object_id
        self.pieces = {name: one.deflate() for name, one in fleet.get_all_nested_objects(self.message).items()}
        self.late = 1  # polls until the pieces are available

    def PullMessages(self, request):
        if self.failure:
            raise self.failure
        if self.confirmed:
            return SimpleNamespace(messages_list=[])
        tree = self.fleet.get_object_tree(self.message)
        return SimpleNamespace(
            messages_list=[SimpleNamespace(metadata=SimpleNamespace(run_id=5))], message_object_trees=[tree]
        )

    def PullObject(self, request):
        self.late -= 1
        content = self.pieces.get(request.object_id)
        return SimpleNamespace(object_found=content is not None, object_available=self.late < 0, object_content=content)

    def ConfirmMessageReceived(self, request):
        self.confirmed.append(request.message_object_id)

    def PushMessages(self, request):
        wanted = [one.object_id for one in self.fleet.iterate_object_tree(request.message_object_trees[0])]
        self.root, self.runtimes = wanted[-1], list(request.clientapp_runtime_list)
        return SimpleNamespace(objects_to_push=wanted, session_id="s")

    def PushObject(self, request):
        self.sent[request.object_id] = request.object_content
        return SimpleNamespace(stored=True)

    def SendNodeHeartbeat(self, request):
        return SimpleNamespace(success=False)


@pytest.fixture
def link():
    return SmallLink(site_connection)


@pytest.fixture
def connection(link):
    return SiteConnection(link, site_connection.node_pb2.Node(node_id=7))


def test_a_request_and_its_reply_are_complete(link, connection):
    message = connection.next()
    assert message.content["say"]["what"] == "x"
    assert message.metadata.group_id == "2"
    assert link.confirmed == [link.message.object_id]
    connection.send(Message(records(4), reply_to=message))
    reply = link.fleet.inflate_object_from_contents(link.root, dict(link.sent))
    assert [array.numpy().tolist() for array in reply.content["arrays"].values()] == [[4.0, 4.0, 4.0]]
    assert reply.metadata.reply_to_message_id == link.message.object_id
    assert link.runtimes == [0.0]  # the duration is not sent
    assert connection.next() is None


@pytest.mark.parametrize("failure", [httpx.ConnectError("gone"), failing(503)], ids=["gone", "behind a proxy"])
def test_a_server_that_is_away_is_waited_for(link, connection, failure):
    link.failure = failure
    assert connection.next() is None and connection.error is link.failure
    link.failure = None
    assert connection.next() is not None and connection.error is None


def test_an_unknown_connection_is_made_again(link, connection):
    link.failure = failing(403)
    with pytest.raises(ConnectionLost, match="status 403"):
        connection.next()


def test_a_rejected_heartbeat_ends_the_connection(link, connection, monkeypatch):
    monkeypatch.setattr("fedcopl.deployment.flower_internals.site_connection._SEND_INTERVAL", 0.0)
    connection.send_heartbeats(threading.Event())  # returns at the first that is rejected
    with pytest.raises(ConnectionLost, match="no longer knows this connection"):
        connection.next()


def test_a_piece_that_is_missing_loses_the_connection_not_the_site(link, connection):
    link.pieces.popitem()
    with pytest.raises(ConnectionLost, match="ObjectPullError"):
        connection.next()


def test_an_object_other_than_a_message_is_refused(link, connection):
    array = Array(np.zeros(2))
    link.message = array
    link.pieces = {name: one.deflate() for name, one in link.fleet.get_all_nested_objects(array).items()}
    with pytest.raises(ConnectionLost, match="received a Array instead of a request"):
        connection.next()


def test_polls_become_rare_but_never_stop():
    waits = [_poll_interval(seconds, 0.002, 0.0) for seconds in (0, 1, 10, 60, 10**6)]
    assert waits == [0.1, 0.1, 1.0, 5.0, 5.0]


def test_a_slow_server_is_polled_less_often():
    assert [_poll_interval(0, took, 0.0) for took in (0.01, 0.05, 0.2, 60)] == [
        0.1,
        0.5,
        2.0,
        5.0,
    ]  # ten times as long, 5 s at most


def test_a_site_loads_nothing_of_a_superlink():
    """Its database and its grid would need 40 MB in every site."""
    loaded = "import sys, fedcopl.deployment.site.site_process; print('sqlalchemy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def polls_until(until, gap):
    """Return the number of polls until a request arrives after `until` seconds, and the delay of the request."""
    now, count = 0.0, 1
    while now < until:
        now, count = now + _poll_interval(now, 0.004, gap), count + 1
    return count, now - until


def test_a_site_among_many_polls_a_dozen_times_per_request():
    first, _ = polls_until(6.0, 0.0)
    count, late = polls_until(6.0, 6.0)
    assert first > 25 and count <= 12 and late <= 0.6
    assert polls_until(0.3, 3600.0)[1] <= 2.0  # a request soon after a long pause does not wait long
