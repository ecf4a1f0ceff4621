"""A run's folder, watched: while it grows, when it vanishes, and when it makes no sense."""

import json
import os
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedcopl.config import RunConfig
from fedcopl.report.curves import chosen_share, unchanged_share
from fedcopl.run.record import Outcome, RoundRecord
from fedcopl.watch.feed import LONGER, PATIENCE, Feed, Snapshot
from fedcopl.watch.page import render
from local_page.run_folder import progress, round_line, write_rounds


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "settings.toml").write_text(RunConfig(name="try", rounds=4).to_toml())
    return folder


def test_before_the_first_round(folder):
    snapshot = Feed(folder).look()
    assert (snapshot.name, snapshot.planned, snapshot.done) == ("try", 4, 0)
    assert snapshot.state(snapshot.changed + 1) == "waiting"


def test_rounds_come_in(folder):
    feed = Feed(folder)
    feed.look()
    write_rounds(folder, [round_line(0), round_line(1)])
    snapshot = feed.look()
    assert snapshot.done == 2
    assert snapshot.state(snapshot.changed + 1) == "running"
    [first, second] = snapshot.outcome.rounds
    assert (first.number, first.refreshed, first.examples, first.loss) == (1, True, 40, 1.0)
    assert (second.macro, second.weighted, second.everywhere) == (0.51, 0.5, None)
    assert snapshot.seconds_per_round == 3.0


def test_nothing_is_read_again_while_nothing_changes(folder):
    feed = Feed(folder)
    write_rounds(folder, [round_line(0)])
    assert feed.look() is feed.look()
    write_rounds(folder, [round_line(0), round_line(1)])
    assert feed.look().done == 2


def test_nothing_is_ever_written(folder):
    write_rounds(folder, [round_line(0)])
    (folder / "progress.json").write_text(json.dumps(progress([round_line(0)])))
    before = {path.name: (path.stat().st_mtime_ns, path.stat().st_ino) for path in folder.iterdir()}
    os.chmod(folder, 0o500)
    feed = Feed(folder)
    feed.look()
    feed.look()
    os.chmod(folder, 0o700)
    assert {path.name: (path.stat().st_mtime_ns, path.stat().st_ino) for path in folder.iterdir()} == before


def test_a_simulation_tells_of_counts_and_clients(folder):
    write_rounds(folder, [round_line(0)])
    (folder / "progress.json").write_text(json.dumps(progress([round_line(0)])))
    snapshot = Feed(folder).look()
    [refresh] = snapshot.refreshes
    # the sums over both clients
    assert (refresh.estimated, refresh.allocated, refresh.selected) == ((12, 12), (10, 12), (9, 11))
    assert snapshot.clients == ("north", "south")
    assert snapshot.zero_shot == 0.45
    assert snapshot.outcome.rounds[0].sites == ("north", "south")  # both of two took part


def test_a_real_federation_tells_names_and_sums(folder):
    late = round_line(1, participants=1, sites=["b"], dropped={"a": "no answer in time"}, clients=[0.5])
    write_rounds(folder, [round_line(0, sites=["a", "b"], totals=[5, 7]), late])
    (folder / "server.json").write_text(json.dumps({"run": "x", "starts": 2, "sites": {"a": 0, "b": 1, "c": 2}}))
    snapshot = Feed(folder).look()
    assert snapshot.clients == ("a", "b", "c")
    assert [record.sites for record in snapshot.outcome.rounds] == [("a", "b"), ("b",)]
    assert snapshot.outcome.rounds[1].dropped == {"a": "no answer in time"}
    assert [(refresh.round, refresh.estimated, refresh.allocated) for refresh in snapshot.refreshes] == [
        (1, (5, 7), ())
    ]


def test_the_end(folder):
    rounds = [round_line(number) for number in range(4)]
    write_rounds(folder, rounds)
    (folder / "results.json").write_text(json.dumps(progress(rounds)))
    snapshot = Feed(folder).look()
    assert snapshot.state(snapshot.changed + 10**6) == "finished"


def test_a_folder_that_goes_and_comes_back(folder):
    feed = Feed(folder)
    write_rounds(folder, [round_line(0), round_line(1)])
    assert feed.look().done == 2
    away = folder.with_name("away")
    folder.rename(away)
    gone = feed.look()
    assert gone.state(gone.changed) == "gone"
    assert gone.done == 2  # what was last seen
    away.rename(folder)
    back = feed.look()
    assert (back.state(back.changed + 1), back.done) == ("running", 2)


def test_a_folder_that_is_begun_again(folder):
    feed = Feed(folder)
    write_rounds(folder, [round_line(0), round_line(1)])
    feed.look()
    shutil.rmtree(folder)
    folder.mkdir()
    empty = feed.look()
    assert (empty.state(empty.changed + 1), empty.done) == ("waiting", 0)
    (folder / "settings.toml").write_text(RunConfig(name="other", rounds=9).to_toml())
    write_rounds(folder, [round_line(0)])
    again = feed.look()
    assert (again.name, again.planned, again.done) == ("other", 9, 1)


def test_a_restarted_run_that_plays_a_round_again(folder):
    feed = Feed(folder)
    write_rounds(folder, [round_line(0), round_line(1), round_line(2)])
    feed.look()
    write_rounds(folder, [round_line(0), round_line(1, loss=0.125)])
    assert [record.loss for record in feed.look().outcome.rounds] == [1.0, 0.125]


def test_a_half_written_line_is_left_out(folder):
    whole = json.dumps(round_line(0)) + "\n"
    (folder / "rounds.jsonl").write_text(whole + json.dumps(round_line(1))[:40])
    assert Feed(folder).look().done == 1


@pytest.mark.parametrize("name", ["settings.toml", "rounds.jsonl", "progress.json", "results.json", "server.json"])
@pytest.mark.parametrize("content", [b"", b"\xff\xfe\0", b"[1, 2]", b'{"a": ', b"null", b'"x"', b"[" * 100_000])
def test_a_file_that_is_something_else_stops_nothing(folder, name, content):
    write_rounds(folder, [round_line(0)])
    (folder / name).write_bytes(content)
    snapshot = Feed(folder).look()
    assert snapshot.done in (0, 1)
    assert snapshot.state(snapshot.changed) in ("running", "waiting")


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
KEYS = [*round_line(0), "sites", "totals", "pseudo_label_accuracy"]


def shown(folder):
    """What the page makes of it, which must be fit to be sent."""
    snapshot = Feed(folder).look()
    for part in render(snapshot, snapshot.state(snapshot.changed)).values():
        part.encode()
    return snapshot


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(KEYS), anything), st.integers(0, 10**6))
def test_a_round_of_anything_is_read(folder, line, number):
    write_rounds(folder, [{**line, "round": number}])
    [record] = shown(folder).outcome.rounds
    assert record.number == number + 1
    shares = (record.macro, record.weighted, record.everywhere, record.pseudo_label_accuracy, *record.clients)
    assert all(share is None or 0 <= share <= 1 for share in shares)
    assert record.loss is None or abs(record.loss) < 1e15


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(["rounds", *progress([])]), anything))
def test_an_outcome_of_anything_is_read(folder, plain):
    (folder / "progress.json").write_text(json.dumps(plain))
    assert shown(folder).done >= 0


@pytest.mark.parametrize("broken", [{"images": 9, "chosen": 10**400}, {"images": -1, "chosen": 2}])
def test_shares_of_labels_stay_shares(folder, broken):
    write_rounds(folder, [round_line(0, labelling={"compared": 3, "unchanged": -1, **broken})])
    [record] = shown(folder).outcome.rounds
    assert chosen_share(record) in (None, 1.0)
    assert unchanged_share(record) in (None, 0.0)


def test_names_that_are_no_text_are_shown_as_they_can(folder):
    line = round_line(0, sites=["\udcff"], dropped={"b\udcff": "late"})
    write_rounds(folder, [line])
    (folder / "progress.json").write_text(json.dumps(progress([line], classes=("cat", "\udc80"))))
    snapshot = shown(folder)
    assert snapshot.clients == ("north", "south", "\\udcff", "b\\udcff")
    assert snapshot.outcome.classes == ("cat", "\\udc80")


def after(*seconds):
    rounds = tuple(RoundRecord(round=number, seconds=second) for number, second in enumerate(seconds))
    return Snapshot(Outcome(name="x", rounds=rounds))


def test_silence_is_measured_by_the_usual_round():
    quick, slow = after(1, 2, 3), after(100, 200, 300)
    assert quick.state(PATIENCE - 1) == "running"
    assert quick.state(PATIENCE + 1) == "silent"
    assert slow.state(LONGER * 100 - 1) == "running"
    assert slow.state(LONGER * 100 + 1) == "silent"
