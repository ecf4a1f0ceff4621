import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcopl.report import formatting as fmt
from fedcopl.report.charts import Series, Unit, _ticks, _whole_ticks, bar_chart, line_chart
from fedcopl.report.curves import PERCENT

PLAIN = Unit(str)


def chart(values, rounds=None, **options):
    rounds = range(len(values)) if rounds is None else rounds
    return line_chart("c", rounds, [Series("macro", "macro", values)], Unit(str, bounds=(0, 100)), **options)


def test_ticks_by_hand():
    assert _ticks(76.2, 84.1) == [76, 78, 80, 82, 84, 86]
    assert _ticks(0, 156) == [0, 50, 100, 150, 200]
    assert _ticks(0, 1) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert fmt.tick_texts([0.0, 0.25, 0.5]) == ["0.0", "0.2", "0.5"]
    assert fmt.tick_texts([0, 500, 1000]) == ["0", "500", "1,000"]
    assert _whole_ticks(0, 9) == list(range(10))
    assert _whole_ticks(0, 49) == list(range(0, 50, 5))
    assert _whole_ticks(7, 7) == [7]


@given(st.floats(0, 1e6), st.floats(1e-6, 1e6))
def test_ticks_reach_around_and_are_few(low, span):
    found, slack = _ticks(low, low + span), span * 1e-3 + low * 1e-9
    assert 2 <= len(found) <= 7
    assert found[0] <= low + slack
    assert found[-1] >= low + span - slack


@given(st.lists(st.floats(0, 100) | st.none(), min_size=1, max_size=60))
def test_every_measurement_has_its_place_in_the_picture(values):
    drawn = chart(values)
    measured = [value for value in values if value is not None]
    if not measured:
        assert drawn is None
        return
    spots = drawn.lines[0].spots
    assert len(spots) == len(measured)
    assert len(drawn.strips) == len(values)
    assert all(drawn.left <= x <= drawn.right and drawn.top - 0.1 <= y <= drawn.bottom + 0.1 for x, y in spots)
    assert [x for x, _ in spots] == sorted(x for x, _ in spots)
    for (_, y1), (_, y2), a, b in zip(spots, spots[1:], measured, measured[1:], strict=False):
        assert (y1 >= y2) if a <= b else (y1 <= y2)  # higher is further up


def test_levels_and_refreshes_are_drawn_at_their_values():
    drawn = chart([10.0, 20.0, 30.0], levels={"zero-shot": 20.0, "unknown": None, "best": 30.0}, refreshed=[0, 2])
    (x0, _), (_, y1), (x2, y2) = drawn.lines[0].spots
    assert [(level.at, level.text) for level in drawn.levels] == [(y1, "zero-shot, 20.0"), (y2, "best, 30.0")]
    assert drawn.refreshes == [x0, x2]
    assert [strip.text for strip in drawn.strips] == [
        "round 0\nmacro 10.0\npseudo labels refreshed",
        "round 1\nmacro 20.0",
        "round 2\nmacro 30.0\npseudo labels refreshed",
    ]


@pytest.mark.parametrize(
    ("values", "lowest", "highest"),
    [([99.826, 99.834], 95, 100), ([50.0, 50.1], 47, 53), ([0.1, 0.2], 0, 5), ([80.0, 90.0], 80, 90)],
)
def test_an_accuracy_axis_spans_at_least_five_points(values, lowest, highest):
    drawn = line_chart("Accuracy", [1, 2], [Series("macro", "s1", values)], PERCENT)
    assert [float(tick.text.split()[0]) for tick in (drawn.y_ticks[0], drawn.y_ticks[-1])] == [lowest, highest]


def test_the_text_alternative_of_a_chart_has_first_and_last_values():
    lines = [Series("up", "s1", [1.0, None, 3.0]), Series("down", "s2", [9.0, 8.0, None])]
    drawn = line_chart("Both", [1, 2, 3], lines, PLAIN)
    assert drawn.label == "Both: up from 1.0 to 3.0; down from 9.0 to 8.0"


def corners(line):
    return [tuple(map(float, corner.split(","))) for corner in line.band.split()]


def test_a_band_reaches_one_deviation_up_and_down():
    line = Series("mean", "s1", [10.0, 20.0], [10.0, 5.0])
    drawn = line_chart("c", [1, 2], [line], PLAIN)  # the axis reaches from 0 to 25
    (x1, y1), (x2, y2) = drawn.lines[0].spots
    height = drawn.bottom - drawn.top
    assert [tick.text for tick in drawn.y_ticks] == ["0", "5", "10", "15", "20", "25"]
    over1, over2, under2, under1 = corners(drawn.lines[0])
    assert over1 == pytest.approx((x1, y1 - height * 10 / 25), abs=0.15)
    assert under1 == pytest.approx((x1, drawn.bottom), abs=0.15)
    assert over2 == pytest.approx((x2, drawn.top), abs=0.15)
    assert under2 == pytest.approx((x2, y2 + height * 5 / 25), abs=0.15)
    assert drawn.strips[1].values == ["20.0 ± 5.0"]


def test_a_band_is_clipped_to_the_bounds_of_its_unit():
    drawn = line_chart("c", [1, 2], [Series("mean", "s1", [99.0, 95.0], [5.0, 1.0])], Unit(str, bounds=(0, 100)))
    assert drawn.y_ticks[-1].text == "100"
    assert min(y for _, y in corners(drawn.lines[0])) == drawn.top


def test_a_line_of_a_single_run_has_no_band():
    assert chart([1.0, 2.0]).lines[0].band == ""


def test_powers_of_ten_are_evenly_spaced():
    drawn = line_chart(
        "c", [1, 2, 3], [Series("x", "s1", [1.0, 10.0, 100.0])], Unit(str, fmt.log_ticks, transform=math.log10)
    )
    assert [tick.text for tick in drawn.y_ticks] == ["1", "3.2", "10", "32", "100"]
    (_, low), (_, middle), (_, high) = drawn.lines[0].spots
    assert middle == pytest.approx((low + high) / 2, abs=0.15)


def test_a_chart_that_includes_zero_begins_there():
    steady = line_chart("c", [1, 2], [Series("x", "s1", [76_800.0] * 2)], Unit(str, fmt.size_ticks, include=(0,)))
    assert [tick.text.replace(fmt.SPACE, " ") for tick in steady.y_ticks] == [
        "0 kB",
        "20 kB",
        "40 kB",
        "60 kB",
        "80 kB",
    ]
    height = steady.bottom - (steady.bottom - steady.top) * 76.8 / 80
    assert [y for _, y in steady.lines[0].spots] == pytest.approx([height] * 2, abs=0.06)


def test_a_line_of_zeros_has_an_axis():
    nothing = line_chart("c", [1, 2], [Series("x", "s1", [0.0, 0.0])], PLAIN)
    assert {y for _, y in nothing.lines[0].spots} == {nothing.bottom}


def test_bars_are_as_high_as_their_numbers():
    series = [Series("had", "a", [50, 0]), Series("got", "b", [25, 100])]
    drawn = bar_chart("b", ["x", "y"], series, PLAIN, level=("half", 50))
    had, got = drawn.groups[0].bars
    none, full = drawn.groups[1].bars
    assert (had.height, got.height, none.height) == pytest.approx((full.height / 2, full.height / 4, 0), abs=0.1)
    assert (had.top, drawn.level.text) == (drawn.level.at, "half")
    assert drawn.groups[1].text == "y\nhad 0\ngot 100"


def test_a_missing_number_has_no_bar():
    drawn = bar_chart("b", ["x", "y"], [Series("had", "a", [None, 5]), Series("got", "b", [4, 5])], PLAIN)
    assert [[bar.style for bar in group.bars] for group in drawn.groups] == [["b"], ["a", "b"]]
    assert drawn.groups[0].text == f"x\nhad {fmt.NOTHING}\ngot 4"
    assert drawn.level is None


def test_number_formats_by_hand():
    space = fmt.SPACE
    assert fmt.percent(0.8634) == f"86.3{space}%"
    assert fmt.percent(0.0) == f"0.0{space}%"
    assert [fmt.points(p) for p in (3.44, -0.5, -0.01, 0.0)] == ["+3.4", "\N{MINUS SIGN}0.5", "0.0", "0.0"]
    assert [fmt.change(n) for n in (12, -1234, 0)] == ["+12", "\N{MINUS SIGN}1,234", "0"]
    assert fmt.difference(0.83, 0.8) == pytest.approx(3)
    assert fmt.difference(None, 0.8) is fmt.difference(0.8, None) is None
    sizes = {
        0: "0 bytes",
        999: "999 bytes",
        1000: "1.0 kB",
        999_949: "999.9 kB",
        999_950: "1.0 MB",
        3e12: "3.0 TB",
    }
    assert {n: fmt.size(n).replace(space, " ") for n in sizes} == sizes
    times = {4.06: "4.1 s", 41.2: "41 s", 59.6: "1 min 00 s", 205: "3 min 25 s", 7500: "2 h 05 min"}
    assert {s: fmt.duration(s).replace(space, " ") for s in times} == times
    assert [fmt.ratio(value) for value in (0.5, 99.994, 20_111.8, None)] == ["0.50", "99.99", "20,112", fmt.NOTHING]
    assert fmt.log_ticks([-1, -0.5, 0, 0.5, 1, 4]) == ["0.1", "0.32", "1", "3.2", "10", "10,000"]
    assert fmt.log_ticks([5, 5.5, 6, 12]) == ["10⁵", "3·10⁵", "10⁶", "10¹²"]
    assert fmt.size_ticks([0, 500, 1000])[-1] == f"1.0{space}kB"
    assert fmt.size_ticks([0, 0.5, 1])[-1] == f"1.0{space}bytes"
    assert fmt.size_ticks([0, 2e9, 4e9])[1] == f"2{space}GB"
    assert fmt.count(None) == fmt.NOTHING
    assert fmt.shortened("abcdef", 6) == "abcdef"
    assert fmt.shortened("abcdefg", 6) == "abcde…"


@given(st.integers(0, 12), st.integers(1, 400_000), st.integers(2, 30))
def test_no_number_beside_an_axis_is_cut_off(power, first, many):
    unit, rounds = Unit(lambda value: f"{value:,.0f}"), list(range(first, first + many))
    chart = line_chart("x", rounds, [Series("a", "macro", [float(10**power)] * many)], unit)
    digit = 8.2  # dots, of the widest digit at the size of a tick
    assert all(chart.left - 8 - digit * len(tick.text) >= 0 for tick in chart.y_ticks)
    edges = [(tick.at - digit * len(tick.text) / 2, tick.at + digit * len(tick.text) / 2) for tick in chart.x_ticks]
    assert edges[-1][1] <= chart.width
    assert all(end <= start for (_, end), (start, _) in pairwise(edges))
    bars = bar_chart("x", ["a", "b"], [Series("n", "s1", [10.0**power, 1.0])], unit)
    assert all(bars.left - 8 - digit * len(tick.text) >= 0 for tick in bars.y_ticks)
    assert bars.groups[0].bars[0].at >= bars.left
