"""Charts: round ticks, no lost spikes, gaps where values are missing, and text that stays text."""

from __future__ import annotations

import itertools
import math
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.core.errors import InputError
from stepwell.monitors.axes import CHAR_WIDTH, Scale, choose_ticks, format_ticks, round_range
from stepwell.monitors.calibration import draw_calibration
from stepwell.monitors.charts import (
    Bar,
    ReferenceLine,
    Series,
    draw_bar_chart,
    draw_line_chart,
    smooth_values,
    thin_points,
)

SVG = "{http://www.w3.org/2000/svg}"
bounded = st.floats(-1e6, 1e6)
anything = bounded | st.sampled_from([0.0, 1e-300, 1e300, math.nan, math.inf, -math.inf])


def drawn(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def words(root: ElementTree.Element) -> list[str]:
    return [node.text or "" for node in root.iter(f"{SVG}text")]


def read_back(root: ElementTree.Element) -> list[list[tuple[float, float]]]:
    """The values of every line, from pixels by the chart's own scales, as the page's script does it."""
    (x_low, x_high, x_start, x_stop), (y_low, y_high, y_start, y_stop) = (
        tuple(map(float, root.attrib[name].split())) for name in ("data-x", "data-y")
    )
    lines = []
    for line in root.iter(f"{SVG}polyline"):
        pairs = [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]
        lines.append(
            [
                (
                    x_low + (x - x_start) / (x_stop - x_start) * (x_high - x_low),
                    y_low + (y - y_start) / (y_stop - y_start) * (y_high - y_low),
                )
                for x, y in pairs
            ]
        )
    return lines


@given(bounded, bounded, st.integers(2, 8))
def test_ticks_are_round_ordered_and_within_the_range(one: float, other: float, count: int) -> None:
    low, high = min(one, other), max(one, other)
    if high - low < 1e-6:
        return
    ticks = choose_ticks(low, high, count)
    slack = 1e-6 * (high - low)
    assert all(low - slack <= tick <= high + slack for tick in ticks) and ticks == sorted(ticks)
    assert 1 <= len(ticks) <= 2 * count + 1
    below, above = round_range(low, high, count)
    assert below <= low + slack and above >= high - slack
    labels = format_ticks(ticks)
    assert len(set(labels)) == len(labels)


def test_ticks_and_their_labels_read_as_people_write_them() -> None:
    assert format_ticks(choose_ticks(0, 1, 5)) == ["0", "0.2", "0.4", "0.6", "0.8", "1.0"]
    assert format_ticks(choose_ticks(0, 90_000, 4)) == ["0", "20k", "40k", "60k", "80k"]
    assert format_ticks(choose_ticks(0, 3e-5, 3)) == ["0", "1e-5", "2e-5", "3e-5"]
    assert format_ticks(choose_ticks(-1, 1, 4)) == ["-1.0", "-0.5", "0", "0.5", "1.0"]
    assert round_range(0.0003, 0.085, 4) == (0.0, pytest.approx(0.1))


def test_a_line_passes_through_its_values() -> None:
    root = drawn(draw_line_chart([Series("reward", [0, 10, 40], [0.5, -1.0, 2.0])]))
    (line,) = read_back(root)
    assert [x for x, _ in line] == pytest.approx([0, 10, 40], abs=0.05)
    assert [y for _, y in line] == pytest.approx([0.5, -1.0, 2.0], abs=0.01)


def test_a_value_that_is_not_a_number_leaves_a_gap() -> None:
    root = drawn(draw_line_chart([Series("kl", [0, 1, 2, 3, 4], [0, 1, math.nan, 3, math.inf])]))
    assert [[round(x) for x, _ in line] for line in read_back(root)] == [[0, 1], [3]]


def test_no_spike_is_lost_when_a_line_is_thinned() -> None:
    y = [0.0] * 50_000
    y[12_345], y[40_000] = 9.0, -4.0
    root = drawn(draw_line_chart([Series("grad_norm", list(range(50_000)), y)], width=300))
    (line,) = read_back(root)
    assert len(line) < 1300
    assert max(y for _, y in line) == pytest.approx(9.0, abs=0.05)
    assert min(y for _, y in line) == pytest.approx(-4.0, abs=0.05)


@given(st.lists(st.tuples(st.floats(0, 20), bounded), max_size=60))
def test_thinning_keeps_order_ends_and_extremes(points: list[tuple[float, float]]) -> None:
    points.sort(key=lambda point: point[0])
    kept = thin_points(points)
    remaining = iter(points)
    assert all(point in remaining for point in kept)
    if points:
        assert kept[0] == points[0] and kept[-1] == points[-1]
        assert max(y for _, y in kept) == max(y for _, y in points)
        assert min(y for _, y in kept) == min(y for _, y in points)


@settings(max_examples=50)
@given(st.lists(st.tuples(anything, anything, anything, anything), max_size=8), st.text(max_size=12))
def test_whatever_is_drawn_is_well_formed(rows: list[tuple[float, ...]], name: str) -> None:
    x, y, low, high = ([row[i] for row in rows] for i in range(4))
    series = Series(name, x, y, low, high, marks=True, smooth=2)
    root = drawn(
        draw_line_chart([series], title=name, x_label=name, y_label=name, levels=[ReferenceLine(name, 0.5)])
    )
    places = [
        node.attrib[key] for node in root.iter() for key in ("x", "y", "cx", "points") if key in node.attrib
    ]
    assert not any("nan" in place or "inf" in place for place in places)
    drawn(draw_bar_chart([Bar(name, abs(value)) for value in y], title=name))


def test_names_are_text_and_never_markup() -> None:
    bad = '</svg><script>alert("1")</script>'
    for svg in (
        draw_line_chart([Series(bad, [0], [1])] * 2, title=bad),
        draw_bar_chart([Bar(bad, 0.5, note=bad)]),
    ):
        assert "<script" not in svg
        assert bad in words(drawn(svg))


def test_a_chart_without_data_says_so() -> None:
    assert words(drawn(draw_line_chart([]))) == ["no data yet"]
    assert words(drawn(draw_line_chart([Series("kl", [1], [math.nan])]))) == ["no data yet"]
    assert words(drawn(draw_bar_chart([Bar("x", math.nan)]))) == ["no data yet"]


def test_bars_are_as_long_as_their_values_and_carry_their_intervals() -> None:
    bars = [Bar("before", 0.25, 0.2, 0.3), Bar("after", 0.75, 0.7, 0.8)]
    root = drawn(draw_bar_chart(bars, high=1.0))
    short, long = (float(node.attrib["width"]) for node in root.iter(f"{SVG}rect"))
    assert long / short == pytest.approx(3.0, rel=0.01)
    assert {"0.25", "[0.20, 0.30]", "0.75", "[0.70, 0.80]"} <= set(words(root))
    assert len(list(root.iter(f"{SVG}path"))) == 2


def test_a_band_goes_along_the_high_ends_and_back_along_the_low_ones() -> None:
    svg = draw_line_chart([Series("s", [0, 1], [0.5, 0.6], [0.4, 0.5], [0.6, 0.7])], y_range=(0, 1))
    (band,) = drawn(svg).iter(f"{SVG}polygon")
    pairs = [tuple(map(float, pair.split(","))) for pair in band.attrib["points"].split()]
    heights = [y for _, y in pairs]
    assert len(pairs) == 4 and heights[1] < heights[0] < heights[2] < heights[3]


def test_names_of_close_levels_do_not_cover_each_other() -> None:
    levels = [
        ReferenceLine("random play", 0.10),
        ReferenceLine("blind plan", 0.11),
        ReferenceLine("untrained", 0.10),
    ]
    root = drawn(draw_line_chart([Series("s", [0, 1], [0, 1])], levels=levels))
    names = {level.name for level in levels}
    heights = sorted(float(node.attrib["y"]) for node in root.iter(f"{SVG}text") if node.text in names)
    assert all(b - a >= 11.9 for a, b in itertools.pairwise(heights)) and len(heights) == 3


def test_the_running_mean_of_a_constant_is_that_constant_and_gaps_stay() -> None:
    assert smooth_values([2.0] * 9, 3) == [2.0] * 9
    mean = smooth_values([1.0, 3.0, math.nan, 5.0], 1)
    assert mean[:2] == [2.0, 2.0] and math.isnan(mean[2]) and mean[3] == 5.0


@given(st.lists(bounded, min_size=1, max_size=12), st.integers(0, 15))
def test_the_running_mean_is_the_mean_of_the_window(values: list[float], reach: int) -> None:
    windows = [values[max(0, i - reach) : i + reach + 1] for i in range(len(values))]
    assert smooth_values(values, reach) == pytest.approx([sum(w) / len(w) for w in windows], abs=1e-6)


def test_series_of_unequal_lengths_are_refused_by_name() -> None:
    with pytest.raises(InputError, match="'kl' has 2 x but 3"):
        Series("kl", [0, 1], [0, 1, 2])


def test_a_scale_maps_ends_to_ends() -> None:
    scale = Scale(-1, 3, 100, 20)
    assert (scale(-1), scale(3), scale(1)) == (100, 20, 60)


@pytest.mark.parametrize(
    ("low", "high"),
    [(0.99999988, 1.0000001), (6e-6, 1.7e-5), (3.9e-7, 5.1e-7), (12_345.0, 12_345.6), (0, 1e300)],
)
def test_neighbouring_ticks_never_have_the_same_label(low: float, high: float) -> None:
    labels = format_ticks(choose_ticks(low, high, 5))
    assert len(set(labels)) == len(labels) >= 3
    assert max(map(len, labels)) <= 11


def test_small_ticks_read_with_the_digits_they_need() -> None:
    assert format_ticks([8e-6, 1e-5, 1.2e-5]) == ["8e-6", "1.0e-5", "1.2e-5"]
    assert format_ticks([0.9999999, 1.0, 1.0000001]) == ["0.9999999", "1.0000000", "1.0000001"]


def places_of(root: ElementTree.Element) -> list[tuple[float, float, float]]:
    """Left end, right end and height of every text, by the width that charts reckon with."""
    found = []
    for node in root.iter(f"{SVG}text"):
        width, x = CHAR_WIDTH * len(node.text or ""), float(node.attrib["x"])
        left = x - {"start": 0.0, "middle": width / 2, "end": width}[node.attrib["text-anchor"]]
        if node.text:
            found.append((left, left + width, float(node.attrib["y"])))
    return found


def assert_no_overlap(svg: str) -> None:
    for one, other in itertools.combinations(places_of(drawn(svg)), 2):
        is_beside = one[1] <= other[0] or other[1] <= one[0]
        assert is_beside or abs(one[2] - other[2]) >= 9.5, (one, other)


@settings(max_examples=60)
@given(
    st.integers(1, 30), st.integers(1, 30), bounded, st.floats(1e-7, 1e6), st.sampled_from([340, 360, 860])
)
def test_labels_of_a_chart_do_not_overlap(
    num_series: int, num_points: int, base: float, spread: float, width: int
) -> None:
    y = [base + spread * (index % 3) for index in range(num_points)]
    x = [1.0 + index for index in range(num_points)]
    series = [Series(f"series {index}", x, y) for index in range(num_series)]
    assert_no_overlap(draw_line_chart(series, width=width, height=190))


def test_updates_are_counted_in_whole_numbers() -> None:
    labels = words(drawn(draw_line_chart([Series("reward", [1, 2, 3], [0.5, 5.5, 7.5])])))
    assert {"1", "2", "3"} <= set(labels) and "1.5" not in labels


def test_a_first_evaluation_is_at_the_left_of_its_axis_and_nothing_is_before_it() -> None:
    root = drawn(draw_line_chart([Series("held-out", [0.0], [0.5], marks=True)], y_range=(0.0, 1.0)))
    assert root.attrib["data-x"].split()[:2] == ["0", "1"]
    assert "-1" not in words(root)


def test_names_of_levels_near_the_top_stay_inside_the_chart() -> None:
    levels = [ReferenceLine(f"baseline {index}", 0.99) for index in range(4)]
    svg = draw_line_chart([Series("s", [0, 1], [0, 1])], y_range=(0.0, 1.0), levels=levels)
    names = [node for node in drawn(svg).iter(f"{SVG}text") if (node.text or "").startswith("baseline")]
    assert len(names) == 4 and all(float(node.attrib["y"]) >= 10 for node in names)
    assert_no_overlap(svg)


def test_a_long_name_leaves_its_bar_room() -> None:
    name = "supervised training for the same wall time on the same demonstrations, then nothing else"
    (bar,) = drawn(draw_bar_chart([Bar(name, 0.5)], high=1.0)).iter(f"{SVG}rect")
    assert float(bar.attrib["width"]) > 200


def test_a_value_between_gaps_is_a_dot() -> None:
    root = drawn(draw_line_chart([Series("kl", [0, 1, 2, 3, 4], [0, 1, math.nan, 3, math.nan])]))
    (dot,) = root.iter(f"{SVG}circle")
    lone = [line.attrib["points"] for line in root.iter(f"{SVG}polyline")][1]
    assert lone == f"{float(dot.attrib['cx']):.1f},{float(dot.attrib['cy']):.1f}"


def test_an_interval_beyond_the_asked_end_stays_inside_the_chart() -> None:
    root = drawn(draw_bar_chart([Bar("expert", 0.97, 0.87, 1.09)], high=1.0, width=360))
    assert max(right for _, right, _ in places_of(root)) <= 360


def test_a_calibration_plot_has_a_point_per_filled_bin_and_the_diagonal() -> None:
    bins = [
        {"predicted": 0.1, "observed": 0.0, "count": 10},
        {"predicted": 0.5, "observed": 0.0, "count": 0},
        {"predicted": 0.9, "observed": 0.8, "count": 20},
    ]
    drawn = draw_calibration("a judge", bins)
    assert drawn.count("<circle") == draw_calibration("a judge", [bins[0], bins[2]]).count("<circle") == 2
    assert "Calibration of a judge" in drawn and "predicted probability" in drawn
