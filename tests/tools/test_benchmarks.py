"""Benchmarks show only valid measurements. Clock and /proc are faked, and expected numbers calculated by hand."""

import math

import pytest
from benchmarks import history_page
from benchmarks.counted_work import step_flop
from benchmarks.history import FILE, PastRun, read_history, record
from benchmarks.machine_load import Load, Machine
from benchmarks.measure import (
    Line,
    Measured,
    NotMeasured,
    PairedTurns,
    counted,
    measure_alternately,
    share_of_peak,
    summary,
)
from benchmarks.training_step import roofline

from documents import page

OWN, CHILD, GRANDCHILD, OTHER = 10, 11, 12, 20


class FakeMachine:
    """A fake /proc and clock; `pass_time` adds CPU ticks to processes."""

    def __init__(self, folder):
        self.folder, self.clock = folder, 100.0
        self.ticks = {OWN: 0, CHILD: 0, GRANDCHILD: 0, OTHER: 0}
        self.stolen = 0
        self.write()

    def pass_time(self, seconds, stolen=0, **worked):
        self.clock += seconds
        self.stolen += stolen
        for name, ticks in worked.items():
            self.ticks[globals()[name]] += ticks
        self.write()

    def write(self):
        total = sum(self.ticks.values())
        # user nice system idle iowait irq softirq steal guest guest_nice
        (self.folder / "stat").write_text(f"cpu {total} 0 0 5000 70 0 0 {self.stolen} 9 9\ncpu0 1 2 3\n")
        for number, parent in ((OWN, 1), (CHILD, OWN), (GRANDCHILD, CHILD), (OTHER, 1)):
            (self.folder / str(number)).mkdir(exist_ok=True)
            before = "0 " * 9
            text = f"{number} (a ) b) S {parent} {before}{self.ticks[number]} 0 0 0 20 0"
            (self.folder / str(number) / "stat").write_text(text)

    @property
    def machine(self):
        return Machine(self.folder, processors=2, ticks=100, process_id=OWN, clock=lambda: self.clock)


@pytest.fixture
def fake(tmp_path):
    return FakeMachine(tmp_path)


def test_load_of_other_processes(fake):
    before = fake.machine.now()
    fake.pass_time(4, stolen=20, OWN=300, CHILD=100, GRANDCHILD=40, OTHER=200)
    load = fake.machine.since(before)
    # 2 s of another process and 0.2 s stolen in 4 s; 2 ticks of 2 processors are uncertain: 0.04 s of 4 s
    assert (load.others, load.stolen, load.uncertainty) == pytest.approx((0.5, 0.05, 0.01))
    assert not load.is_quiet
    assert str(load) == "others used 0.50 of 2 processors, 0.05 stolen"


@pytest.mark.parametrize(("other", "stolen", "quiet"), [(0, 0, True), (44, 0, True), (45, 0, False), (22, 23, False)])
def test_a_twentieth_of_the_processors_is_the_limit(fake, other, stolen, quiet):
    """In 4 s on 2 processors the limit is 0.4 s and an uncertainty of 0.04 s."""
    before = fake.machine.now()
    fake.pass_time(4, stolen=stolen, OWN=800, OTHER=other)
    assert fake.machine.since(before).is_quiet == quiet


def test_a_process_that_has_ended_is_ignored(fake):
    (fake.folder / str(OTHER) / "stat").unlink()
    assert fake.machine.now().own == 0


def test_the_model_of_the_processor(fake):
    (fake.folder / "cpuinfo").write_text("processor : 0\nmodel name\t: Abacus 7\nmodel name\t: Abacus 7\n")
    assert fake.machine.model == "Abacus 7"


def fake_work(fake, seconds, busy=()):
    """Return work of a fixed duration; another process runs during the calls whose numbers are in `busy`."""
    calls = iter(range(100))

    def work():
        fake.pass_time(seconds, OWN=100 * seconds, OTHER=50 * seconds if next(calls) in busy else 0)
        return float(seconds)

    return work


def test_pairs_are_measured_alternately(fake):
    turns = measure_alternately(fake_work(fake, 2), fake_work(fake, 3), 5, fake.machine)
    assert turns.ratio == Measured(1.5, 1.5, 1.5, 5)
    assert turns.in_seconds == "2.00 s against 3.00 s"
    assert fake.clock == 100 + 5 * (2 + 3)


def test_a_busy_turn_is_repeated(fake):
    turns = measure_alternately(fake_work(fake, 2, busy={0, 3}), fake_work(fake, 4), 3, fake.machine)
    assert turns.ratio == Measured(2.0, 2.0, 2.0, 3)
    assert fake.clock == 100 + 5 * (2 + 4)


def test_on_a_busy_machine_there_is_no_number_after_two_turns(fake):
    turns = measure_alternately(fake_work(fake, 2, busy=range(100)), fake_work(fake, 4), 5, fake.machine)
    # another process for 1 s in 6 s
    assert turns.ratio == NotMeasured("machine busy, not a measurement: others used 0.17 of 2 processors, 0.00 stolen")
    assert fake.clock == 100 + 2 * (2 + 4)
    assert all(math.isnan(number) for number in turns.medians)


def test_median_and_quartiles_by_hand():
    assert summary([2.0, 2.2, 1.9, 2.1, 2.05]) == Measured(2.05, 2.0, 2.1, 5)
    assert str(summary([2.0, 2.2, 1.9, 2.1, 2.05])) == "2.05x (2.00–2.10)"
    assert summary([1.0, 1.0, 2.0, 2.0, 2.0]) == NotMeasured("unsteady, not a measurement: 1.00 to 2.00 in 5 turns")


def test_a_share_above_the_peak_is_invalid():
    assert share_of_peak([60.0, 62.0, 61.0], [70.0, 80.0, 75.0]) == Measured(61 / 80, 60.5 / 80, 61.5 / 80, 3)
    assert "1.45 of the machine's measured peak" in share_of_peak([116.0, 116.0], [80.0, 70.0]).why


RATIO = counted(1.3)


def line(ratio=RATIO, reach=1.2, at_most=False):
    return Line("k", "a thing", "another", ratio, reach, at_most, "1 s, 2 s")


def test_whether_a_target_is_reached():
    assert line().reached
    assert line(at_most=True).reached is False
    assert line(reach=None).reached is None
    assert line(ratio=PairedTurns((), 5, Load(1, 0, 2)).ratio).reached is None


def test_the_history_is_read_back_unchanged(tmp_path):
    run = PastRun("abc", "2026-01-01", "Abacus 7", 2, 2, "2.13", {"k": line(Measured(1.3, 1.25, 1.4, 5))})
    for _ in range(2):
        record(run, tmp_path / "history.jsonl")
    assert read_history(tmp_path / "history.jsonl") == [run, run]


def test_table_and_picture_by_hand():
    def run(date, at_most):
        measured = line(Measured(1.3, 1.25, 1.4, 5), 1.2, at_most)
        return PastRun("abc", date, "Abacus 7", 2, 2, "2.13", {"k": measured})

    history = [run("2026-01-01", False), run("2026-02-02", True)]
    assert history_page.table(history).splitlines()[2:] == [
        "| a thing | another | **1.30x (1.25–1.40), not reached** | at most 1.2 | 1 s, 2 s | 2026-02-02, `abc` |",
        "",
        "On: Abacus 7, 2 threads, torch 2.13.",
    ]
    drawn = history_page.picture(history)
    # the axis ends at 1.15 x 1.4 = 1.61: 1.3 is at 24 + 86 (1 - 1.3 / 1.61) = 40.6; two runs at 40 + 260 / 4 and 3/4
    assert '<circle class="ours" cx="105.0" cy="40.6"' in drawn and 'cx="235.0" cy="40.6"' in drawn
    assert 'class="far" d="M40 45.9H300"' in drawn  # 24 + 86 (1 - 1.2 / 1.61)


def test_the_page_and_the_picture_are_up_to_date():
    history = read_history(FILE)
    assert page("benchmarks/README.md") == history_page.page(history), "python -m benchmarks.history_page"
    assert page("benchmarks/benchmarks.svg") == history_page.picture(history), "python -m benchmarks.history_page"
    assert all(isinstance(past.ratio, Measured) for run in history for past in run.lines.values())


def test_the_roofline_by_hand():
    """A step of 60 GFLOP in 2 s, at most 40 GFLOP/s: 1.5 s at the peak, where the plain one takes 4.5 s."""
    peaks, against = PairedTurns([(2.0, 40e9), (2.0, 38e9)], 2), PairedTurns([(2.1, 4.5), (2.2, 4.5)], 2)
    assert roofline(60e9, peaks, against) == "30 of 40 GFLOP/s; with all of them it would be 3.00x of plain"


def test_the_fast_step_takes_fewer_flop():
    fast, plain = step_flop(47)
    assert plain > 1.5 * fast
