"""The report is one page of its own, made from whatever a run has left, and never runs foreign text."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.monitors.report_pages import EVIL, Page, finish_run, keep_episodes, make_run

from stepwell.core.errors import InputError
from stepwell.monitors.base import LogEntry, RunInfo
from stepwell.monitors.curves import DrawnPanel, draw_training_panels, draw_warm_start_panels
from stepwell.monitors.jsonl import JsonlMonitor
from stepwell.monitors.panel import Panel
from stepwell.monitors.panels import PANELS, WARM_START_PANELS
from stepwell.monitors.report import write_report
from stepwell.monitors.summary import Summary, write_summary


def test_a_finished_run_shows_before_after_baselines_and_its_facts(tmp_path: Path) -> None:
    make_run(tmp_path / "first")
    finish_run(tmp_path / "first")
    path = write_report(tmp_path / "first")
    assert path == tmp_path / "first" / "report.html"
    page = Page(path.read_text())
    text = " ".join(page.text.split())
    assert "0.25 before [0.15, 0.35] → 0.75 after [0.65, 0.85]" in text
    assert "Success on 256 held-out tasks" in text and "(temperature 0)" in text
    assert "environment steps800wall time0:16updates8seed5" in text
    assert "random play" in text and "before training" in text and "after training" in text
    assert "not finished" not in text and "gpu" not in text
    assert "num_updates = 8" in text and "stepwell train" in text


def test_the_page_loads_nothing_and_is_small(tmp_path: Path) -> None:
    make_run(tmp_path)
    finish_run(tmp_path)
    html = write_report(tmp_path).read_text()
    page = Page(html)
    assert page.open == []
    for tag, attributes in page.tags:
        assert tag not in {"link", "iframe", "object", "embed"}
        assert not {"srcset", "data"} & attributes.keys()
        assert re.match("data:(image/gif|video/webm);base64,|$", attributes.get("src") or "")
        assert (attributes.get("href") or "#").startswith("#")
    assert "@import" not in html and "url(" not in html
    addresses = set(re.findall(r"https?://[^\s\"'<]+", html))
    assert addresses == {"http://www.w3.org/2000/svg"}
    assert "default-src 'none'" in html
    assert len(html) < 200_000


def test_text_of_models_and_envs_is_never_markup(tmp_path: Path) -> None:
    make_run(tmp_path, text="# " + EVIL)
    finish_run(tmp_path, EVIL)
    page = Page(write_report(tmp_path).read_text())
    assert [tag for tag, _ in page.tags].count("script") == 2
    assert [attributes for tag, attributes in page.tags if tag == "img"] == [{"alt": ""}]
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    data = json.loads(page.scripts[0])
    assert data["replays"][0]["frames"][0]["reply"] == EVIL
    assert page.text.count(EVIL) >= 4  # the event, the configuration, the note and the machine


def test_the_script_only_makes_text_nodes(tmp_path: Path) -> None:
    make_run(tmp_path)
    finish_run(tmp_path)
    script = Page(write_report(tmp_path).read_text()).scripts[-1]
    assert "textContent" in script
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "fetch("):
        assert way not in script


def test_an_interrupted_run_says_so_and_shows_what_it_has(tmp_path: Path) -> None:
    make_run(tmp_path, num_updates=6)
    text = " ".join(Page(write_report(tmp_path).read_text()).text.split())
    assert "interrupted or still runs. The record ends at update 6 of 8." in text
    assert "0.25 before [0.15, 0.35] → 0.50 so far [0.40, 0.60]" in text
    assert "Replays" not in text


def test_a_run_that_says_it_failed_is_shown_as_failed(tmp_path: Path) -> None:
    make_run(tmp_path, num_updates=3)
    write_summary(tmp_path, Summary(0.25, None, 300, 6.0, 5, "steppo", "frozenlake", status="failed"))
    assert "This run failed at update 3 of 8" in write_report(tmp_path).read_text()


def test_a_run_that_has_only_begun_still_makes_a_page(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    page = Page(write_report(tmp_path).read_text())
    assert page.open == [] and "The record ends at update 0." in page.text


def test_a_damaged_file_is_named_and_does_not_cost_the_rest(tmp_path: Path) -> None:
    make_run(tmp_path)
    finish_run(tmp_path)
    (tmp_path / "replays.json").write_text('{"format"')
    (tmp_path / "config.toml").write_text("seed = ")
    page = Page(write_report(tmp_path).read_text())
    assert "replays.json is damaged" in page.text and "config.toml is not TOML" in page.text
    assert "Learning curve" in page.text and "0.75" in page.text


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a run folder"):
        write_report(tmp_path)


def panels_of(**values: Sequence[float]) -> dict[str, DrawnPanel]:
    """Panels by title, for metrics over updates; `__` stands for a slash."""
    rows = {name.replace("__", "/"): row for name, row in values.items()}
    length = max(map(len, rows.values()))
    entries = [
        LogEntry("update", i + 1, 1.0, 10, {name: row[i] for name, row in rows.items()})
        for i in range(length)
    ]
    return {panel.title: panel for panel in draw_training_panels(entries)}


def test_every_recorded_metric_is_shown_and_an_unknown_one_under_its_raw_name() -> None:
    panels = panels_of(reward=[1, 2], kl=[0.1, 0.5], my__metric=[3, 4], parity__max=[1e-6, 2e-6])
    titles = {
        "Reward",
        "Distance (KL)",
        "my/metric",
        "Engine gap, worst",
    }
    assert panels.keys() == titles and all(panel.svg for panel in panels.values())
    assert panels["my/metric"].meaning == "" and panels["Reward"].meaning


def test_what_never_changes_is_told_as_text_with_its_value_and_not_drawn() -> None:
    panels = panels_of(
        learning_rate=[8e-4] * 3,
        ratio=[1.0, 0.99999994, 1.0000001],
        kl=[math.nan] * 3,
        my__own=[0.0, math.nan, 0.0],
    )
    told = {title: (panel.last, panel.svg) for title, panel in panels.items()}
    assert told == {
        "Distance (KL)": ("not a number", ""),
        "Probability ratio": ("1", ""),
        "Learning rate": ("0.0008", ""),
        "my/own": ("0, measured in 2 of 3", ""),
    }


def test_a_line_that_never_changes_is_drawn_beside_one_that_does_and_told_alone_otherwise() -> None:
    assert "process" in panels_of(reward__task=[0, 1], reward__process=[0, 0])["Parts of the reward"].svg
    alone = panels_of(reward__task=[0.5, 0.5], reward__process=[0, 0])
    assert {title: panel.last for title, panel in alone.items()} == {
        "Parts of the reward: task": "0.5",
        "Parts of the reward: process": "0",
    }


def test_a_failure_of_the_agent_in_one_update_alone_is_drawn_as_a_peak() -> None:
    values: list[dict[str, float]] = [{}, {"agent_failures/raised": 3.0}, {}]
    (panel,) = draw_training_panels([LogEntry("update", i + 1, 1.0, 10, one) for i, one in enumerate(values)])
    assert panel.title == "Failures of the agent: raised" and panel.svg.count("<polyline") == 1


def test_a_single_update_is_told_as_text(tmp_path: Path) -> None:
    make_run(tmp_path, num_updates=1)
    text = " ".join(Page(write_report(tmp_path).read_text()).text.split())
    assert "In its only update" in text and "my/metric3" in text and "Did not change" not in text
    assert "Recorded once" in text  # the warm start, too


def test_a_figure_measured_once_among_many_updates_says_so() -> None:
    (panel,) = panels_of(my__check=[math.nan, 0.25, math.nan]).values()
    assert (panel.last, panel.svg) == ("0.25, measured once", "")


def test_a_single_evaluation_is_a_sentence_and_no_curve_and_no_comparison(tmp_path: Path) -> None:
    make_run(tmp_path, num_updates=2)
    page = Page(write_report(tmp_path).read_text())
    assert "Held-out success was measured once, at update 0: 0.25." in page.text
    assert "The evaluation as a table" in page.text and "What it is worth" not in page.text
    assert not any(attrs.get("name") == "axis" for _, attrs in page.tags)


def test_a_curve_is_not_drawn_over_what_did_not_move(tmp_path: Path) -> None:
    monitor = JsonlMonitor()
    monitor.start(RunInfo(tmp_path, "r", "frozenlake", "steppo", 5, 8))
    for update in (0, 1):
        monitor.record(LogEntry("eval", update, 9.0 * update, 0, {"success": 0.5, "low": 0.4, "high": 0.6}))
    monitor.close()
    page = Page(write_report(tmp_path).read_text())
    ids = [attrs["id"] for _, attrs in page.tags if attrs.get("name") == "axis"]
    assert ids == ["axis-time_s", "axis-update"]  # no step of the environment was made


def test_the_warm_start_is_drawn_over_its_updates_without_charts_of_its_counters() -> None:
    entries = [
        LogEntry(
            "warm_start", 0, 9.0 * i * i, 0, {"loss/policy": 4.0 / i, "step": 10.0 * i, "num_steps": 40.0}
        )
        for i in (1, 2, 3, 4)
    ]
    (loss,) = draw_warm_start_panels(entries)
    assert loss.title == "Imitation loss" and 'data-x="10 40 ' in loss.svg


@pytest.mark.parametrize("panel", [*PANELS, *WARM_START_PANELS], ids=lambda panel: panel.title)
def test_every_panel_says_in_words_what_it_means_and_docs_name_its_metrics(panel: Panel) -> None:
    assert not set("/_") & set(panel.title.removesuffix("/s"))
    assert panel.meaning.endswith(".") and len(panel.meaning) < 160
    docs = (Path(__file__).parents[2] / "docs" / "report.md").read_text()
    assert all(f"`{metric}" in docs for metric in panel.metrics)


def test_no_metric_belongs_to_two_charts() -> None:
    metrics = [metric for panel in PANELS for metric in panel.metrics]
    assert len(set(metrics)) == len(metrics)


def test_a_robot_that_writes_nothing_has_no_box_for_it(tmp_path: Path) -> None:
    make_run(tmp_path)
    keep_episodes(tmp_path)
    text = Page(write_report(tmp_path).read_text()).text
    assert "Does" in text and "Writes" not in text
    keep_episodes(tmp_path, reply="<answer>Left</answer>")
    text = Page(write_report(tmp_path).read_text()).text
    assert "Writes" in text and "Does" not in text


def test_a_robot_has_no_style_of_reasoning_among_its_facts(tmp_path: Path) -> None:
    make_run(tmp_path, text='\n[agent]\nstrategy = "no_think"\n#')
    keep_episodes(tmp_path)
    facts = write_report(tmp_path).read_text().partition('class="facts"')[2].partition("</dl>")[0]
    assert "the answer alone" not in facts
    keep_episodes(tmp_path, reply="<answer>Left</answer>")
    facts = write_report(tmp_path).read_text().partition('class="facts"')[2].partition("</dl>")[0]
    assert "replies" in facts and "the answer alone" in facts


def test_an_agent_of_ones_own_has_no_style_of_replies_among_its_facts(tmp_path: Path) -> None:
    make_run(tmp_path, text='\n[agent]\nstrategy = "no_think"\n[own_agent]\nfunction = "mine:agent"\n#')
    keep_episodes(tmp_path, reply="4")
    facts = write_report(tmp_path).read_text().partition('class="facts"')[2].partition("</dl>")[0]
    assert "the answer alone" not in facts


def test_before_and_after_are_compared_where_there_is_something_simpler_beside_them(tmp_path: Path) -> None:
    make_run(tmp_path)
    finish_run(tmp_path)
    assert "What it is worth" in write_report(tmp_path).read_text()
    summary = json.loads((tmp_path / "summary.json").read_text())
    (tmp_path / "summary.json").write_text(json.dumps({**summary, "baselines": []}))
    assert "What it is worth" not in write_report(tmp_path).read_text()


def test_the_length_of_the_warm_start_is_told_in_its_caption(tmp_path: Path) -> None:
    monitor = JsonlMonitor()
    monitor.start(RunInfo(tmp_path, "r", "lake", "steppo", 0, 8))
    for step in (10, 20):
        values = {"step": float(step), "num_steps": 300.0, "loss/policy": 1.0 / step}
        monitor.record(LogEntry("warm_start", 0, float(step), 0, values))
    monitor.close()
    text = Page(write_report(tmp_path).read_text()).text
    assert "20 of at most 300" in text and "num_steps" not in text and "Planned updates" not in text
