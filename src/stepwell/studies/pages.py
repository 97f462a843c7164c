"""The results of a study for people: `table.md`, plots, and one page with everything.

    main table of an environment ─► extra tables (variants with `table`) ─► more tables (`tables.py`)

Everything is made from `Results` alone. Figures are mean ± spread over seeds; with one seed there is no
spread, and the text says so. Where rows of a table have different seeds, a column compares the shared ones;
plots and further tables are made from these alone.

Invariants
* The page is self-contained, and its policy forbids it to load anything (like a run's report).
* A panel of a plot has at most `PER_PANEL` lines, so that each has its own colour, plus the baseline, which
  is grey and dashed in panels of other groups. Bands reach from the lowest to the highest seed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stepwell.core.disk import atomic_write
from stepwell.monitors.charts import Bar, Series, draw_bar_chart, draw_line_chart
from stepwell.monitors.progress import format_duration
from stepwell.monitors.svg import make_element, make_svg, make_text
from stepwell.studies.differences import describe_rows
from stepwell.studies.gate import list_failures
from stepwell.studies.results import Results, mean_curve
from stepwell.studies.rows import Figure, Row, mark_best, select_shared, share_seeds
from stepwell.studies.tables import make_tables

PER_PANEL = 6
GREY = 5
DIFFERENCES = "Differences in success after training, pair by pair over seeds and tasks (95 % interval):"
GATE_FAILED = "**The gate is not passed**; what it concerns cannot be compared:"
STANDINGS = {"best": "best", "close": "not told apart", "unknown": "–", "behind": "", "": ""}
_WIDTH, _PANEL, _TITLE = 860, 320, 26


def write_pages(folder: Path, results: Results) -> None:
    """Write every output file; each is replaced in one step."""
    atomic_write(folder / "results.json", json.dumps(results.as_json(), indent=1, allow_nan=False) + "\n")
    atomic_write(folder / "table.md", write_table(results))
    for env in _select_envs(results):
        atomic_write(folder / f"curves-{env}.svg", draw_curves(results, env))
        for further in make_tables(results, env):
            for plot in further.plots:
                atomic_write(folder / f"{plot.name}.svg", plot.svg)
    atomic_write(folder / "study.html", render_page(results))


def write_table(results: Results) -> str:
    """All environments in markdown."""
    study = results.study
    parts = [f"# {study.title or study.name}", ""]
    parts += [study.note.strip(), ""] if study.note else []
    parts += [" ".join(_explain_terms(results)), ""]
    if failures := list_failures(results):
        parts += [GATE_FAILED, "", *(f"* {line}" for line in failures), ""]
    for env, rows in _select_envs(results).items():
        parts += [f"## {env}", "", _explain_env(results, env), ""]
        for title, head, chosen in _select_tables(results, rows):
            parts += [f"### {title}", ""] if title else []
            parts += [*_format_markdown(head, [_format_row(row, head) for row in chosen]), ""]
        parts += [f"![curves](curves-{env}.svg)", ""]
        if lines := describe_rows(rows):
            parts += [DIFFERENCES, "", *(f"* {line}" for line in lines), ""]
        for further in make_tables(results, env):
            parts += [
                f"### {further.title}",
                "",
                further.note,
                "",
                *_format_markdown(further.head, further.rows),
                "",
            ]
            parts += [f"![{plot.title}]({plot.name}.svg)" for plot in further.plots]
            parts += [""] if further.plots else []
    notes = [f"* **{item.name}**: {item.note}" for item in study.variants if item.note]
    parts += ["## Variants", "", *notes, ""] if notes else []
    remarks = [f"* {line}" for line in _list_remarks(results)]
    parts += ["## Remarks (†)", "", *remarks, ""] if remarks else []
    problems = _list_problems(results)
    parts += ["## Not finished", "", *[f"* {problem}" for problem in problems], ""] if problems else []
    parts += ["## Where and how", "", *[f"* {line}" for line in _describe_setup(results)], ""]
    return "\n".join(parts)


def draw_curves(results: Results, env: str) -> str:
    """One SVG image: a panel of held-out success for every group of variants."""
    panels = _make_panels(results, env)
    parts = []
    for index, (name, series) in enumerate(panels):
        chart = draw_line_chart(
            series,
            title=f"held-out success in {env}, {name or 'all'}",
            x_label="environment steps",
            width=_WIDTH,
            height=_PANEL,
            x_range=(0.0, max(results.horizons[env], 1.0)),
            y_range=(0.0, 1.0),
            legend=True,
        )
        top = index * (_PANEL + _TITLE)
        parts.append(make_text(4, top + 15, f"{env}: {name}" if name else env, more="font-weight:600;"))
        parts.append(make_element("g", chart, transform=f"translate(0 {top + _TITLE})"))
    height = max(1, len(panels)) * (_PANEL + _TITLE)
    return make_svg(_WIDTH, height, f"held-out success in {env} over environment steps", parts)


def render_page(results: Results) -> str:
    """The HTML page."""
    import jinja2

    here = Path(__file__).parent
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([here / "page", here.parent / "monitors" / "page"]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    envs = [
        {
            "name": env,
            "area": _explain_env(results, env),
            "differences": [DIFFERENCES, *lines] if (lines := describe_rows(rows)) else [],
            "tables": [
                (title, head, [(row, _format_row(row, head)) for row in chosen])
                for title, head, chosen in _select_tables(results, rows)
            ],
            "further": make_tables(results, env),
            "bars": draw_bar_chart(
                _make_bars(results, env), title=f"held-out success in {env}", width=_WIDTH, high=1.0
            ),
            "curves": draw_curves(results, env),
        }
        for env, rows in _select_envs(results).items()
    ]
    return environment.get_template("study.html.jinja").render(
        study=results.study,
        is_quick=results.is_quick,
        terms=_explain_terms(results),
        envs=envs,
        problems=_list_problems(results),
        remarks=_list_remarks(results),
        setup=[line.replace("`", "") for line in _describe_setup(results)],
        runs=results.runs,
        facts=_list_facts(results),
        duration=format_duration,
    )


def _select_envs(results: Results) -> dict[str, list[Row]]:
    """The rows of environments in which a run has finished; of all of them before the first has."""
    begun = {env: rows for env, rows in results.rows.items() if any(row.num_seeds for row in rows)}
    return begun or results.rows


_HEAD = ("variant", "seeds", "before", "after", "", "best seen", "area", "updates/min", "env steps")
_SHARED = "after, seeds "


def _select_tables(results: Results, rows: list[Row]) -> list[tuple[str, list[str], list[Row]]]:
    """Title, head and rows: the main table, then the extra tables, each with the row to compare with."""
    elsewhere = list(dict.fromkeys(name for row in rows for name in row.elsewhere))
    tables = [("", [row for row in rows if not row.table])]
    for title in dict.fromkeys(row.table for row in rows if row.table):
        chosen = [row for row in rows if row.table == title]
        names = {row.compared_with for row in chosen}
        beside = [row for row in rows if row.variant in names and row not in chosen]
        runs = [run for run in results.runs if run.env == chosen[0].env]
        tables.append((title, mark_best([*beside, *chosen], runs)))
    return [
        (title, [*_HEAD[:4], *_name_shared_column(chosen), *elsewhere, *_HEAD[4:]], chosen)
        for title, chosen in tables
    ]


def _name_shared_column(rows: list[Row]) -> list[str]:
    """The title of a column of success over shared seeds, if the rows have different seeds."""
    seeds = [row.seeds for row in rows if row.shared]
    if all(mine == seeds[0] for mine in seeds):
        return []
    return [_SHARED + ", ".join(str(seed) for seed in sorted(set.intersection(*map(set, seeds))))]


def _format_row(row: Row, head: list[str]) -> list[str]:
    """A row as texts, in the order of `head`: `_HEAD`, with success elsewhere after success."""
    seeds = (
        str(row.num_seeds) if row.num_seeds == row.num_planned else f"{row.num_seeds} of {row.num_planned}"
    )
    steps = f"{row.env_steps.mean:,.0f}" if row.env_steps else "–"
    if row.budget_share is not None and row.budget_share < 1:
        steps += " (below the budget)"
    if row.env_steps and not row.env_steps.high:
        steps = "none" if row.has_learnt else "not trained"
    more = [name for name in head if name not in _HEAD]
    between = [row.shared if name.startswith(_SHARED) else row.elsewhere.get(name) for name in more]
    return [
        row.variant + (" (baseline)" if row.is_baseline else "") + (" †" if row.remark else ""),
        seeds,
        _format_figure(row.before),
        _format_figure(row.after),
        *[_format_figure(figure) for figure in between],
        STANDINGS[row.standing],
        _format_figure(row.best),
        _format_figure(row.area),
        f"{row.updates_per_min.mean:.1f}" if row.updates_per_min else "–",
        steps,
    ]


def _format_figure(figure: Figure | None) -> str:
    if figure is None:
        return "–"
    return f"{figure.mean:.3f}" + ("" if figure.spread is None else f" ± {figure.spread:.3f}")


def _format_markdown(head: list[str], rows: list[list[str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(cells) + " |" for cells in rows]


def _explain_terms(results: Results) -> list[str]:
    """Sentences that explain the figures."""
    num_seeds = len(results.study.seeds)
    sentences = [
        f"{results.num_done} of {len(results.runs)} runs have finished"
        + (" (the short form of this study)." if results.is_quick else "."),
        "Success is measured on held-out tasks, the same for all runs.",
    ]
    if num_seeds == 1:
        sentences.append("One seed: there is no spread, and no difference can be told from chance.")
    else:
        sentences.append(
            f"Figures are mean ± standard deviation over {num_seeds} seeds, or those that have finished. "
            "Best: the highest mean over the seeds that all rows have. Not told apart: the 95 % interval of "
            "the paired difference to the best, over the seeds that both have, contains 0; blank: it does "
            "not; –: fewer than two such seeds. Each interval is of one comparison, not corrected for their "
            "number. Few seeds make wide intervals: not told apart does not mean equal."
        )
    return [*sentences, "Updates per minute are for runs side by side, evaluations included."]


def _explain_env(results: Results, env: str) -> str:
    """What the figures of one environment are over."""
    sentences = []
    if horizon := results.horizons[env]:
        sentences.append(f"Area: mean success over the first {horizon:,.0f} environment steps.")
    if not results.has_equal_seeds(env):
        named = ", ".join(map(str, share_seeds(run for run in results.runs if run.env == env)))
        sentences.append(
            "Rows have finished different seeds, and seeds differ by their warm start: compare success in "
            "the column of shared seeds. Plots and the further tables are over "
            + (
                f"the seeds that all have: {named}."
                if named
                else "all seeds of each row, since none is shared."
            )
        )
    return " ".join(sentences)


def _list_problems(results: Results) -> list[str]:
    """Each run that failed, and in one line each those that have not finished and not started."""
    lines = [f"{run.name} failed: {run.error}" for run in results.runs if run.status == "failed"]
    for status, words in (("unfinished", "not finished yet"), ("waiting", "not started yet")):
        names = [run.name for run in results.runs if run.status == status]
        lines += [f"{words} ({len(names)}): {', '.join(names)}"] if names else []
    return lines


def _list_remarks(results: Results) -> list[str]:
    """What is to be known about single runs, each remark with the runs that it concerns."""
    remarks = dict.fromkeys(run.remark for run in results.runs if run.remark)
    return [
        f"{', '.join(run.name for run in results.runs if run.remark == remark)}: {remark}"
        for remark in remarks
    ]


def _describe_setup(results: Results) -> list[str]:
    lines = []
    for session in results.sessions:
        lines.append(
            f"`{session['command']}`: {format_duration(session['wall_s'])}, "
            f"{session['workers']} runs side by side, "
            f"{session['threads']} threads each, {session['ending']}"
        )
    for machine in results.machines:
        lines.append(", ".join(f"{name} {value}" for name, value in machine.items() if value is not None))
    return lines


def _list_facts(results: Results) -> list[tuple[str, str]]:
    return [
        ("runs", f"{results.num_done} of {len(results.runs)}"),
        ("seeds", ", ".join(map(str, results.study.seeds))),
        ("environment steps", f"{sum(run.env_steps for run in results.runs):,}"),
        ("time of all runs", format_duration(sum(run.wall_s for run in results.runs))),
    ]


def _make_bars(results: Results, env: str) -> list[Bar]:
    """Held-out success of every variant; whiskers reach from the lowest to the highest seed."""
    shared = select_shared([run for run in results.runs if run.env == env])
    bars = []
    for row in results.rows[env]:
        figure = Figure.of(run.success_after for run in shared if run.variant == row.variant)
        if figure is None:
            continue
        has_range = figure.spread is not None
        bars.append(
            Bar(
                row.variant,
                figure.mean,
                figure.low if has_range else None,
                figure.high if has_range else None,
                note=row.note,
                color=1 if row.is_baseline else 0,
                strong=row.standing == "best" or row.is_baseline,
            )
        )
    return bars


def _make_panels(results: Results, env: str) -> list[tuple[str, list[Series]]]:
    """Lines of an environment in panels: by group, and no more per panel than there are colours."""
    groups: dict[str, list[str]] = {}
    for variant in results.study.variants:
        groups.setdefault(variant.group, []).append(variant.name)
    panels = []
    for group, names in groups.items():
        for start in range(0, len(names), PER_PANEL):
            chosen = names[start : start + PER_PANEL]
            series = [_make_series(results, env, name, index) for index, name in enumerate(chosen)]
            if results.study.first not in chosen:
                series.append(_make_series(results, env, results.study.first, GREY, is_guest=True))
            panels.append((group, [item for item in series if item.x]))
    return [panel for panel in panels if panel[1]] or [("", [])]


def _make_series(results: Results, env: str, variant: str, color: int, *, is_guest: bool = False) -> Series:
    shared = select_shared([run for run in results.runs if run.env == env])
    mine = [run for run in shared if run.variant == variant]
    found: dict[str, Any] = mean_curve([run.curve for run in mine])
    has_band = len(mine) > 1 and not is_guest
    return Series(
        variant,
        found["x"],
        found["mean"],
        low=found["low"] if has_band else None,
        high=found["high"] if has_band else None,
        color=color,
        dashed=is_guest,
    )
