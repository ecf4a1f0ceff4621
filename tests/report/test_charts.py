import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcopl.report import words
from fedcopl.report.charts import Line, bar_chart, line_chart, tick_texts, ticks, whole_ticks


def chart(values, rounds=None, **options):
    rounds = range(len(values)) if rounds is None else rounds
    return line_chart("c", rounds, [Line("macro", "macro", values)], str, bounds=(0, 100), **options)


def test_ticks_by_hand():
    assert ticks(76.2, 84.1) == [76, 78, 80, 82, 84, 86]
    assert ticks(0, 156) == [0, 50, 100, 150, 200]
    assert ticks(0, 1) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert tick_texts([0.0, 0.25, 0.5]) == ["0.0", "0.2", "0.5"]
    assert tick_texts([0, 500, 1000]) == ["0", "500", "1,000"]
    assert whole_ticks(0, 9) == list(range(10))
    assert whole_ticks(0, 49) == list(range(0, 50, 5))
    assert whole_ticks(7, 7) == [7]


@settings(deadline=None)
@given(st.floats(0, 1e6), st.floats(1e-6, 1e6))
def test_ticks_reach_around_and_are_few(low, span):
    found, slack = ticks(low, low + span), span * 1e-3 + low * 1e-9
    assert 2 <= len(found) <= 7
    assert found[0] <= low + slack
    assert found[-1] >= low + span - slack


@settings(deadline=None)
@given(st.lists(st.floats(0, 100) | st.none(), min_size=1, max_size=60))
def test_every_measurement_has_its_place_in_the_picture(values):
    drawn = chart(values)
    measured = [value for value in values if value is not None]
    if not measured:
        assert drawn is None
        return
    places = drawn.lines[0].places
    assert len(places) == len(measured)
    assert len(drawn.strips) == len(values)
    assert all(drawn.left <= x <= drawn.right and drawn.top - 0.1 <= y <= drawn.bottom + 0.1 for x, y in places)
    assert [x for x, _ in places] == sorted(x for x, _ in places)
    for (_, y1), (_, y2), a, b in zip(places, places[1:], measured, measured[1:], strict=False):
        assert (y1 >= y2) if a <= b else (y1 <= y2)  # higher is further up


def test_level_and_refreshes_stand_where_their_values_stand():
    drawn = chart([10.0, 20.0, 30.0], level=20.0, refreshed=[0, 2])
    (x0, _), (_, y1), (x2, _) = drawn.lines[0].places
    assert drawn.level.at == y1
    assert drawn.refreshes == [x0, x2]
    assert [strip.text for strip in drawn.strips] == [
        "round 0\nmacro 10.0\npseudo labels refreshed",
        "round 1\nmacro 20.0",
        "round 2\nmacro 30.0\npseudo labels refreshed",
    ]


def test_bars_are_as_high_as_their_numbers():
    drawn = bar_chart("b", ["x", "y"], [("had", "a", [50, 0]), ("got", "b", [25, 100])], level=50)
    had, got = drawn.groups[0].bars
    none, full = drawn.groups[1].bars
    assert (had.height, got.height, none.height) == pytest.approx((full.height / 2, full.height / 4, 0), abs=0.1)
    assert had.top == drawn.level
    assert drawn.groups[1].text == "y\nhad 0\ngot 100"


def test_words():
    space = words.SPACE
    assert words.percent(0.8634) == f"86.3{space}%"
    assert words.percent(0.0) == f"0.0{space}%"
    assert [words.points(p) for p in (3.44, -0.5, -0.01, 0.0)] == ["+3.4", "\N{MINUS SIGN}0.5", "0.0", "0.0"]
    assert [words.change(n) for n in (12, -1234, 0)] == ["+12", "\N{MINUS SIGN}1,234", "0"]
    assert words.difference(0.83, 0.8) == pytest.approx(3)
    assert words.difference(None, 0.8) is words.difference(0.8, None) is None
    sizes = {
        0: "0 bytes",
        999: "999 bytes",
        1000: "1.0 kB",
        999_949: "999.9 kB",
        999_950: "1.0 MB",
        3e12: "3.0 TB",
    }
    assert {n: words.size(n).replace(space, " ") for n in sizes} == sizes
    times = {4.06: "4.1 s", 41.2: "41 s", 59.6: "1 min 00 s", 205: "3 min 25 s", 7500: "2 h 05 min"}
    assert {s: words.duration(s).replace(space, " ") for s in times} == times
    assert words.shortened("abcdef", 6) == "abcdef"
    assert words.shortened("abcdefg", 6) == "abcde…"
