"""The protocol over a grid: order, timeouts, invalid replies, connected sites."""

import io
import json
import math

import numpy as np
import pytest
from flwr.app import Message
from numpy.lib import format as npy

from deployment.toolbox import FakeSite, LoopGrid, NotingReporter, failed, terms
from fakes import NO_PRIORS, START, CoupledLearner, FlakyFederation, NoisyLearner, clients, run, start
from fedcopl.config import RunConfig
from fedcopl.deployment.message_format import read_reply, reply_records
from fedcopl.deployment.server.grid_transport import GridTransport, KnownSites, Timeouts
from fedcopl.deployment.site.pipeline import _public_reason
from fedcopl.deployment.terms import Refused
from fedcopl.errors import DataError, Interrupted, NoClientReplied
from fedcopl.federation.server import evaluate_zero_shot
from fedcopl.messages import (
    Estimate,
    Estimated,
    Evaluate,
    Evaluated,
    KeyShares,
    Select,
    ShareKeys,
    Train,
    Trained,
    digest,
)
from fedcopl.privacy.mask_session import SEALED
from fedcopl.simulation.simulate import LocalTransport

CONFIG = RunConfig.from_mapping({"rounds": 4, "labels": {"refresh_every": 2}, "priors": NO_PRIORS}, "test")
SHARED = {"visual": START["visual"]}
ONE_MINUTE = Timeouts(timeout=60, min_sites=1, poll=0.5)


class Clock:
    """Replaces the module `time` at the server: its time passes only in `sleep`."""

    def __init__(self):
        self.now, self.planned = 0.0, []

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        for when, what in self.planned:
            if self.now - seconds < when <= self.now:
                what()

    def at(self, when, what):
        self.planned.append((when, what))


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("fedcopl.deployment.server.grid_transport.time", clock)
    return clock


def sites(tmp_path, config=CONFIG, count=3):
    return {name: FakeSite(name, client, tmp_path) for name, client in clients(config, NoisyLearner, count).items()}


def federation_of(grid, progress=None, timeouts=ONE_MINUTE, **more):
    return GridTransport(grid, terms(CONFIG), KnownSites({}), timeouts, progress or NotingReporter(), **more)


def run_over(federation, config=CONFIG):
    reports = []
    state = run(config, federation, start(), lambda server, report: reports.append(report))
    return state.shared["visual"].tobytes(), reports


@pytest.fixture
def local():
    return run_over(LocalTransport(clients(CONFIG, NoisyLearner)))


def test_a_run_over_the_grid_ends_with_the_same_bits(tmp_path, local):
    nodes = sites(tmp_path)
    federation = federation_of(LoopGrid(nodes))
    bits, reports = run_over(federation)
    assert bits == local[0]
    assert [report.loss for report in reports] == [report.loss for report in local[1]]
    assert federation.take_drops().summary() == {}


def test_replies_are_in_the_order_of_the_requests(tmp_path):
    federation = federation_of(LoopGrid(sites(tmp_path)))
    assert federation.clients() == ("client-0", "client-1", "client-2")
    requests = {name: Evaluate(0, None) for name in ("client-2", "client-0", "client-1")}
    assert list(federation.request(requests)) == list(requests)


def test_nodes_without_a_registered_name_are_queried(tmp_path, local):
    grid = LoopGrid(sites(tmp_path))
    grid.nameless = True
    bits, _ = run_over(federation_of(grid))
    assert bits == local[0]
    assert grid.sent[:3] == [(f"client-{i}", "query.name") for i in range(3)]
    assert sum(kind == "query.name" for _, kind in grid.sent) == 3  # once each


def test_of_two_nodes_with_the_same_name_only_the_first_is_a_site(tmp_path):
    nodes = sites(tmp_path)
    nodes["twin"] = FakeSite("client-1", nodes["client-1"].client, tmp_path / "twin")
    grid = LoopGrid(nodes)
    grid.nameless, grid.since["twin"] = True, "2"
    federation = federation_of(grid)
    assert federation.clients() == ("client-0", "client-1", "client-2")
    federation.request({"client-1": Evaluate(0, None)})
    assert ("twin", "query.evaluate") not in grid.sent
    assert federation.take_drops().summary() == {
        "client-1": "connect: two sites have this name; the one that connected second is left out"
    }


def test_numbers_are_given_once_in_the_order_of_names_and_kept(tmp_path):
    grid, file = LoopGrid(sites(tmp_path)), tmp_path / "server.json"
    grid.offline = {"client-0"}
    federation = GridTransport(grid, terms(CONFIG), KnownSites({"gone": 0}, file=file), ONE_MINUTE)
    assert federation.clients() == ("client-1", "client-2")
    assert json.loads(file.read_text())["sites"] == {"gone": 0, "client-1": 1, "client-2": 2}
    grid.offline = set()
    assert federation.clients() == ("client-1", "client-2", "client-0")  # the late site is the last
    assert json.loads(file.read_text())["sites"] == {"gone": 0, "client-1": 1, "client-2": 2, "client-0": 3}


def lost(client, *where):
    """Run the protocol in one process without the replies of a client at these (kind, round)."""
    federation = FlakyFederation(clients(CONFIG, NoisyLearner))
    federation.lost = {(client, kind, round) for kind, round in where}
    return run_over(federation)


def test_a_late_site_is_left_out_and_reported(tmp_path):
    nodes = sites(tmp_path)
    silent = nodes["client-1"]
    nodes["client-1"] = lambda message: None if is_request(message, "train", 1) else silent(message)
    progress = NotingReporter()
    federation = federation_of(LoopGrid(nodes), progress)
    bits, reports = run_over(federation)
    assert bits == lost("client-1", ("Train", 0))[0]
    assert reports[0].participants == ("client-0", "client-2")
    assert progress.notes == ["round 1, Train: client-1 is left out: no reply within 60 s"]
    assert federation.take_drops().summary() == {"client-1": "Train: no reply within 60 s"}


@pytest.mark.parametrize("works", [False, True])
def test_a_lost_reply_is_in_no_average_whether_or_not_the_site_has_trained(tmp_path, works):
    def reference(kind):
        federation = FlakyFederation(clients(CONFIG, CoupledLearner))
        getattr(federation, kind).add(("client-1", "Train", 0))
        return run_over(federation)[0]

    nodes = {name: FakeSite(name, one, tmp_path) for name, one in clients(CONFIG, CoupledLearner).items()}
    site = nodes["client-1"]

    def silent(message):
        reply = site(message) if works or not is_request(message, "train", 1) else None
        return None if is_request(message, "train", 1) else reply

    nodes["client-1"] = silent
    bits, reports = run_over(federation_of(LoopGrid(nodes)))
    assert reports[0].participants == ("client-0", "client-2")
    assert bits == reference("late" if works else "lost")
    assert bits != reference("lost" if works else "late")  # a site that has trained has another text prompt


def is_request(message, kind, round):
    return message.metadata.message_type == f"query.{kind}" and message.metadata.group_id == str(round)


TRAIN = Train(0, {"visual": START["visual"]})
NAN = np.full((2, 3), np.nan, np.float32)


def answering(records):
    return lambda message: Message(records, reply_to=message)


def to(message, reply):
    return answering(reply_records(reply, digest(message), "fake"))


def with_shape(shape, data=b""):
    """Return a node that replies with a prompt whose header has this shape."""
    header = io.BytesIO()
    npy.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": shape})
    records = reply_records(Trained(TRAIN.shared, 1, 0.5), digest(TRAIN), "fake")
    records["message"]["arrays"] = [header.getvalue() + data]
    return answering(records)


MALFORMED = {
    "an old reply": (to(Train(7, TRAIN.shared), Trained(TRAIN.shared, 1, 0.5)), "another request"),
    "a huge reply": (
        to(TRAIN, Trained({"visual": np.zeros(400_000, np.float32)}, 1, 0.5)),
        "more than the limit of",
    ),
    "another dtype": (
        to(TRAIN, Trained({"visual": NAN.astype(np.float64)}, 1, 0.5)),
        "field shared of message Trained",
    ),
    "an impossible shape": (with_shape(shape=(0, 2**70)), "an array has a size below 0 or above the limit"),
    "seventy dimensions": (with_shape(shape=(1,) * 70, data=bytes(4)), "an array has a broken header"),
    "text for a count": (
        to(TRAIN, Trained(TRAIN.shared, "many", 0.5)),
        "field examples of message Trained has the wrong type: 'many'",
    ),
    "an exception": (
        lambda message: failed(message, "CLIENT_APP_RAISED_EXCEPTION", "boom\n"),
        "failed: boom",
    ),
}


@pytest.mark.parametrize(("node", "words"), MALFORMED.values(), ids=MALFORMED)
def test_malformed_replies_are_dropped_and_reported(tmp_path, node, words):
    nodes = sites(tmp_path)
    good = nodes["client-1"]
    nodes["client-1"] = lambda message: node(message) if is_request(message, "train", 1) else good(message)
    progress = NotingReporter()
    bits, _ = run_over(federation_of(LoopGrid(nodes), progress))
    assert bits == lost("client-1", ("Train", 0))[0]
    [note] = progress.notes
    assert note.startswith("round 1, Train: client-1 is left out: ") and words in note


WRONG = {
    "not finite": (Trained({"visual": NAN}, 1, 0.5), "not finite"),
    "another shape": (Trained({"visual": NAN[:1]}, 1, 0.5), "instead of float32"),
    "another prompt": (Trained({"text": NAN}, 1, 0.5), "sent the prompts"),
    "a negative number of images": (Trained(TRAIN.shared, -1, 0.5), "not a number of images"),
    "too many images": (Trained(TRAIN.shared, 10**400, 0.5), "more than 2,147,483,648 images"),
    "a prompt with huge values": (Trained({"visual": np.full((2, 3), 1e38, np.float32)}, 1, 0.5), "beyond 32768"),
    "an infinite loss": (Trained(TRAIN.shared, 1, math.inf), "its loss is inf"),
}


@pytest.mark.parametrize(("reply", "words"), WRONG.values(), ids=WRONG)
def test_a_readable_reply_with_invalid_numbers_is_dropped_by_the_protocol(tmp_path, reply, words):
    nodes = sites(tmp_path)
    good = nodes["client-1"]
    # The fake state at round 1 sends the same prompts as TRAIN, so the reply has the digest of the request.
    nodes["client-1"] = lambda message: to(TRAIN, reply)(message) if is_request(message, "train", 1) else good(message)
    bits, reports = run_over(federation_of(LoopGrid(nodes)))
    assert bits == lost("client-1", ("Train", 0))[0]
    assert words in reports[0].dropped["client-1"]


def test_an_exception_while_reading_a_reply_affects_one_site_only(tmp_path, monkeypatch):
    def fail(records, request, max_bytes):
        reply, folder = read_reply(records, request, max_bytes)
        if isinstance(reply, Trained) and reply.loss == -1:
            raise MemoryError
        return reply, folder

    monkeypatch.setattr("fedcopl.deployment.server.grid_transport.read_reply", fail)
    nodes, progress = sites(tmp_path), NotingReporter()
    altered(nodes, ["client-1"], Trained(TRAIN.shared, 1, -1.0))
    _, reports = run_over(federation_of(LoopGrid(nodes), progress))
    assert reports[0].participants == ("client-0", "client-2")
    assert progress.notes == ["round 1, Train: client-1 is left out: the reply cannot be read: MemoryError"]


def test_a_reply_from_another_node_is_dropped(tmp_path):
    nodes = sites(tmp_path)
    grid = LoopGrid(nodes)
    honest = grid._reply

    def forged(message):
        reply = honest(message)
        if is_request(message, "train", 1) and grid.name_of(message.metadata.dst_node_id) == "client-1":
            reply.metadata.__dict__["_src_node_id"] = grid.id_of("client-2")
        return reply

    grid._reply = forged
    progress = NotingReporter()
    bits, _ = run_over(federation_of(grid, progress))
    assert bits == lost("client-1", ("Train", 0))[0]
    assert progress.notes == ["round 1, Train: client-1 is left out: the reply came from another node"]


def test_another_process_with_a_sites_key_is_not_accepted(tmp_path):
    nodes = sites(tmp_path)
    grid = LoopGrid(nodes)
    progress = NotingReporter()
    federation = federation_of(grid, progress)
    federation.request({name: Evaluate(0, None) for name in federation.clients()})
    twin = FakeSite("client-1", nodes["client-1"].client, tmp_path / "twin")
    twin.folder_name = "another"
    grid.nodes["client-1"] = twin  # for Flower the same node, because it has the key
    assert list(federation.request({"client-1": Evaluate(1, None), "client-0": Evaluate(1, None)})) == ["client-0"]
    assert progress.notes == [
        "round 2, Evaluate: client-1 is left out: the reply came from another folder than before: "
        "two sites use this key, or it was moved"
    ]
    grid.keys["client-1"] = b"new"  # the operator has admitted a new key under the old name
    assert list(federation.request({"client-1": Evaluate(2, None)})) == ["client-1"]


def test_a_lost_request_is_sent_again_with_the_same_bits(tmp_path, local):
    nodes = sites(tmp_path)
    grid = LoopGrid(nodes)
    good, fails = nodes["client-1"], iter([True, True, False])

    def flaky(message):
        reply = good(message)  # the reply is computed and lost
        if is_request(message, "train", 1) and next(fails):
            return failed(message, "NODE_UNAVAILABLE", "gone")
        return reply

    grid.nodes["client-1"] = flaky
    bits, _ = run_over(federation_of(grid))
    assert bits == local[0]
    assert grid.sent.count(("client-1", "query.train")) == CONFIG.rounds + 2
    assert (
        good.computed == 2 * 2 + 4 + 4
    )  # two requests at two refreshes, four trainings, four evaluations; nothing twice


def test_disconnection_and_reconnection_are_reported_once(tmp_path):
    grid, progress = LoopGrid(sites(tmp_path)), NotingReporter()
    federation = federation_of(grid, timeouts=Timeouts(90, 1), progress=progress)
    for present in ({"a", "b"}, {"a"}, {"a"}, {"a", "b"}):
        federation._note_connections(("a", "b"), present)
    assert progress.notes == ["b is not connected; waiting for it, up to 90 s", "b is connected again"]


def test_a_reconnected_site_gets_its_request_again(tmp_path, local):
    nodes = sites(tmp_path)
    grid = LoopGrid(nodes)
    good, lost_requests = nodes["client-1"], []

    def kill_once(message):
        if is_request(message, "train", 1) and not lost_requests:
            lost_requests.append(message)  # killed after it got the request, and reconnected
            grid.since["client-1"] = "2"
            return None
        return good(message)

    grid.nodes["client-1"] = kill_once
    bits, _ = run_over(federation_of(grid))
    assert bits == local[0]


def test_the_server_waits_for_min_sites(tmp_path, clock):
    grid = LoopGrid(sites(tmp_path))
    grid.offline = {"client-1", "client-2"}
    progress = NotingReporter()
    clock.at(3600, grid.offline.clear)
    assert len(federation_of(grid, progress, Timeouts(60, 3)).clients()) == 3
    assert clock.now >= 3600
    assert progress.notes == ["waiting: 1 of at least 3 sites are connected"]  # reported once


def test_the_timeout_does_not_apply_before_min_sites_have_replied(tmp_path, clock):
    nodes = sites(tmp_path)
    good = nodes["client-1"]
    nodes["client-1"] = lambda message: good(message) if clock.now > 300 else None
    nodes["client-2"] = lambda message: None
    progress = NotingReporter()
    federation = federation_of(LoopGrid(nodes), progress, Timeouts(60, 2))
    replies = federation.request({name: Estimate(0, SHARED) for name in federation.clients()})
    assert list(replies) == ["client-0", "client-1"]
    assert "waiting: 1 of at least 2 sites have replied" in progress.notes


def test_an_evaluation_neither_waits_nor_ends_the_run(tmp_path):
    nodes = sites(tmp_path)
    nodes["client-0"] = lambda message: None
    nodes["client-1"] = to(Evaluate(3, None), Evaluated(1, 2))
    nodes["client-2"] = to(Evaluate(0, None), Evaluated(11, 10))
    federation = federation_of(LoopGrid(nodes), timeouts=Timeouts(60, 2))
    report = evaluate_zero_shot(federation)
    assert report.scores == {}
    assert report.dropped == {"client-2": "Evaluate: reports more correct predictions than test images"}
    assert federation.take_drops().summary() == {
        "client-0": "Evaluate: no reply within 60 s",
        "client-1": "Evaluate: the reply is to another request: an old one, or one of another round",
    }


def altered(nodes, names, reply):
    """Replace the replies of these sites to their first training."""
    for name in names:
        honest = nodes[name]
        nodes[name] = lambda message, honest=honest: (
            to(TRAIN, reply)(message) if is_request(message, "train", 1) else honest(message)
        )


def test_invalid_replies_do_not_count_towards_min_sites(tmp_path):
    nodes = sites(tmp_path)
    altered(nodes, ["client-1", "client-2"], Trained({"visual": NAN}, 1, 0.5))
    with pytest.raises(
        NoClientReplied,
        match=r"round 1, step Train: 1 usable reply from 3 clients, and at least 2 are needed; "
        r"client-1: prompt visual is not finite.*; client-2: prompt visual is not finite",
    ):
        run_over(federation_of(LoopGrid(nodes), timeouts=Timeouts(60, 2)))


def test_enough_valid_replies_are_enough(tmp_path):
    nodes = sites(tmp_path)
    altered(nodes, ["client-1"], Trained({"visual": NAN}, 1, 0.5))
    _, reports = run_over(federation_of(LoopGrid(nodes), timeouts=Timeouts(60, 2)))
    assert reports[0].participants == ("client-0", "client-2")


def test_too_many_invalid_replies_end_the_run_with_the_reasons(tmp_path):
    nodes = sites(tmp_path)
    for name in ("client-1", "client-2"):
        nodes[name] = to(Estimate(3, SHARED), Estimated(np.ones(3, np.int64)))
    federation = federation_of(LoopGrid(nodes), timeouts=Timeouts(60, 2))
    with pytest.raises(
        NoClientReplied,
        match=r"round 1, step Estimate: 1 usable reply from 3 clients.*client-\d: Estimate: the reply is",
    ):
        federation.request({name: Estimate(0, SHARED) for name in federation.clients()})


def test_a_repeated_error_of_a_site_is_reported_once_and_counted_each_time(tmp_path):
    nodes = sites(tmp_path)
    nodes["client-1"] = to(Estimate(3, SHARED), Estimated(np.ones(3, np.int64)))
    progress = NotingReporter()
    federation = federation_of(LoopGrid(nodes), progress, timeouts=Timeouts(1, 1, 0.01))
    federation.clients()
    for _ in range(3):
        federation.request({"client-1": Evaluate(0, SHARED), "client-0": Evaluate(0, SHARED)})
    assert len(progress.notes) == 1
    assert "(3 times)" in federation.take_drops().summary()["client-1"]


def test_a_waiting_server_can_be_stopped(tmp_path):
    federation = federation_of(LoopGrid({}), should_stop=lambda: True)
    with pytest.raises(Interrupted):
        federation.clients()


def test_details_of_a_sites_error_stay_there(tmp_path):
    secret = tmp_path / "patient-17.png"

    def broken(error):
        try:
            raise error
        except Exception as caught:
            return _public_reason(caught)

    assert broken(DataError(f"{secret}: is broken")) == "its images cannot be read; see the site's own log"
    assert broken(ValueError(f"{secret}")) == "it failed with ValueError; see the site's own log"
    assert broken(Refused("classes: the server has 3, this site has 4")).startswith("classes: ")


def test_a_request_out_of_order_is_refused_with_its_reason(tmp_path):
    progress = NotingReporter()
    federation = federation_of(LoopGrid(sites(tmp_path)), progress, Timeouts(60, 0))
    assert federation.request({name: Select(0, 0, None, 1) for name in federation.clients()}) == {}
    assert progress.notes[0].endswith("is left out: refused: Select request before an Estimate request")


def test_a_site_with_invalid_shares_ends_a_secure_run_and_is_named(tmp_path):
    config = RunConfig.from_mapping({"rounds": 2, "privacy": {"secure_aggregation": True}, "priors": NO_PRIORS}, "test")
    nodes = {name: FakeSite(name, client, tmp_path) for name, client in clients(config, NoisyLearner, 4).items()}
    answer = nodes["client-1"].handle

    def with_junk(message, terms):
        reply = answer(message, terms)
        return KeyShares(dict.fromkeys(reply.sealed, bytes(SEALED))) if isinstance(message, ShareKeys) else reply

    nodes["client-1"].handle = with_junk
    federation = GridTransport(LoopGrid(nodes), terms(config), KnownSites({}), ONE_MINUTE, NotingReporter())
    with pytest.raises(NoClientReplied, match=r"client-1: its masks cannot be removed: .* new run without that client"):
        run_over(federation, config)


def test_secure_aggregation_over_the_grid(tmp_path):
    config = RunConfig.from_mapping({"rounds": 2, "privacy": {"secure_aggregation": True}, "priors": NO_PRIORS}, "test")
    nodes = {name: FakeSite(name, client, tmp_path) for name, client in clients(config, NoisyLearner, 4).items()}
    grid = LoopGrid(nodes)
    federation = GridTransport(grid, terms(config), KnownSites({}), ONE_MINUTE, NotingReporter())
    bits, _ = run_over(federation, config)
    assert bits == run_over(LocalTransport(clients(config, NoisyLearner, 4)), config)[0]
    assert federation.take_drops().summary() == {}
    assert {"query.setupkeys", "query.sharekeys", "query.unmask"} <= {kind for _, kind in grid.sent}
