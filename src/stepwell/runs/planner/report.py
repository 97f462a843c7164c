"""Forecasts as lines, as a chart, and as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stepwell.config.profile import PipelineProfile
from stepwell.monitors.charts import Bar, Series, draw_bar_chart, draw_line_chart
from stepwell.runs.plan.text import format_line
from stepwell.runs.planner.forecast import Forecast, choose_best

_KINDS = ("simulators", "generators", "trainers")
HEADINGS = (
    "devices",
    "placement",
    "workers.mode",
    "turns / s",
    "x sync",
    *(f"{kind} busy" for kind in _KINDS),
    "staleness",
    "batch",
    "limited by",
)


def list_cells(forecast: Forecast, sync_rate: float, *, is_best: bool) -> list[str]:
    """One row of the table."""
    case = forecast.case
    return [
        str(case.num_devices) if case.num_devices else "cores",
        case.placement,
        f"{case.mode} *" if is_best else case.mode,
        f"{forecast.turns_per_s:,.1f}",
        f"{forecast.turns_per_s / sync_rate:.2f}",
        *(f"{100 * forecast.busy.get(kind, 0.0):.0f} %" for kind in _KINDS),
        f"{forecast.mean_staleness:.2f} (max {forecast.max_staleness})",
        f"{forecast.mean_batch:.1f}",
        forecast.bottleneck,
    ]


def list_rows(rows: Sequence[Forecast]) -> Iterator[list[str]]:
    """All rows; the best of each number of devices has a star."""
    for row in rows:
        size = row.case.num_devices
        sync = next(
            one.turns_per_s
            for one in rows
            if one.case.num_devices == size
            and one.case.placement == row.case.placement
            and one.case.mode == "sync"
        )
        yield list_cells(row, sync, is_best=row is choose_best(rows, size))


def describe_profile(profile: PipelineProfile) -> Iterator[str]:
    """The profile in a few lines."""
    simulator, generator, trainer = profile.simulator, profile.generator, profile.trainer
    yield format_line("profile", f"{profile.name}; {profile.machine}")
    one_s = simulator.compute_seconds(1)
    together = ", a batch at once" if simulator.at_once else ""
    yield format_line(
        "", f"a step {1000 * one_s:.3g} ms{together}, a reset {1000 * simulator.reset_s:.3g} ms, each"
    )
    calls = ", ".join(f"{count:g}: {1000 * seconds:.3g}" for count, seconds in generator.times)
    yield format_line("", f"an inference call, ms by samples: {calls}")
    updates = ", ".join(f"{count:g} turns: {seconds:.3g}" for count, seconds in trainer.times)
    yield format_line("", f"an update, s: {updates}; {100 * trainer.stale_share:.0f} % more for stale data")
    weights = profile.weights
    yield format_line(
        "",
        f"weights {weights.num_bytes / 1e6:.3g} MB: copied in {1000 * weights.copy_s:.3g} ms, marked in "
        f"{1000 * weights.mark_s:.3g}, checked in {1000 * weights.load_s:.3g}, swapped in "
        f"{1000 * weights.swap_s:.3g}",
    )
    yield format_line("", f"driver {1e6 * profile.controller_s:.0f} µs per turn")


def describe_limits(forecast: Forecast) -> Iterator[str]:
    """What would help most, in order."""
    ordered = sorted(forecast.gains.items(), key=lambda item: -item[1])
    shown = [f"{part} {ratio:.2f}" for part, ratio in ordered if ratio > 1.01][:4]
    text = ", ".join(shown) if shown else "no single part: all of them are balanced"
    yield format_line("limits", f"times the throughput if a part took no time: {text}")


def describe_weight_syncs(ways: Mapping[str, Forecast]) -> Iterator[str]:
    """What new weights cost with either setting of `workers.weight_sync`."""
    pause_s = next(iter(ways.values())).hardware.profile.weights.swap_s
    for number, (way, row) in enumerate(ways.items()):
        yield format_line(
            "" if number else "new weights",
            f"{way}: the trainer waits {1000 * row.sync_wait_s:,.3g} ms for each "
            f"({100 * row.sync_share:.1f} % of the time), {row.turns_per_s:,.1f} turns per second",
        )
    yield format_line("", f"a generator cannot sample for {1000 * pause_s:,.3g} ms of each, either way")


def describe_settings(best: Forecast, chosen: Mapping[str, object]) -> Iterator[str]:
    """The recommended settings, ready to copy."""
    settings = {"workers.mode": best.case.mode, "workers.placement": best.case.placement} | dict(chosen)
    text = " ".join(f"{name}={value}" for name, value in settings.items())
    yield format_line("recommended", text)
    yield format_line("", f"modelled: {best.turns_per_s:,.1f} turns per second")


def draw_forecast(rows: Sequence[Forecast], title: str) -> str:
    """Throughput over the number of devices, or bars if there is only one number."""
    sizes = sorted({row.case.num_devices for row in rows})
    if len(sizes) == 1:
        bars = [
            Bar(
                f"{row.case.placement}, {row.case.mode}",
                row.turns_per_s,
                note=f"limited by {row.bottleneck}",
                color=number % 4,
                strong=row is choose_best(rows, sizes[0]),
            )
            for number, row in enumerate(rows)
        ]
        return draw_bar_chart(bars, title=title)
    lines: dict[str, list[Forecast]] = {}
    for row in rows:
        lines.setdefault(f"{row.case.placement}, {row.case.mode}", []).append(row)
    series = [
        Series(
            name,
            [float(row.case.num_devices) for row in mine],
            [row.turns_per_s for row in mine],
            color=number,
            marks=True,
            dashed=number >= 6,
        )
        for number, (name, mine) in enumerate(lines.items())
    ]
    return draw_line_chart(series, title=title, x_label="devices", y_label="environment turns per second")


def dump_forecast(forecast: Forecast) -> dict[str, Any]:
    """A row as plain data."""
    case = forecast.case
    return {
        "num_devices": case.num_devices,
        "placement": case.placement,
        "mode": case.mode,
        "turns_per_s": round(forecast.turns_per_s, 3),
        "busy": {kind: round(share, 3) for kind, share in forecast.busy.items()},
        "mean_staleness": round(forecast.mean_staleness, 3),
        "max_staleness": forecast.max_staleness,
        "mean_batch": round(forecast.mean_batch, 2),
        "weight_sync": forecast.hardware.weight_sync,
        "sync_share": round(forecast.sync_share, 4),
        "sync_wait_s": round(forecast.sync_wait_s, 6),
        "bottleneck": forecast.bottleneck,
        "gains": {part: round(ratio, 3) for part, ratio in forecast.gains.items()},
    }
