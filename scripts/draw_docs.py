"""Draws the images of the documentation from committed results.

python scripts/draw_docs.py                              draw docs/images/*.svg again
python scripts/draw_docs.py --record RUN NAME COMMAND    keep the curve and the replays of a run for them

Curves come from `benchmarks/results/`. `--record` writes `benchmarks/results/tutorials/NAME.json`: the
command, the machine, the evaluations of one real run and one board that it played before and after training.

Invariants
* Nothing is drawn that is not in a committed file; tests/test_docs_images.py compares every image with it.
* Every image has its own background, so that it can be read on a dark page.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from stepwell.config.loading import load_config
from stepwell.core import Split, StateForm
from stepwell.envs import draw_tasks, make_env
from stepwell.monitors.charts import ReferenceLine, Series, draw_line_chart
from stepwell.monitors.jsonl import read_entries
from stepwell.monitors.replays import Replay, load_replays
from stepwell.monitors.summary import read_summary
from stepwell.monitors.svg import escape_text, make_element, make_svg, make_text
from stepwell.runs.build.components import HELD_OUT_SEED

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
IMAGES = ROOT / "docs" / "images"
WIDTH, HEIGHT, MARGIN = 640, 260, 14
CELL, TURN_S, HOLD_S = 44, 0.9, 2.0
TILES = {"O": "#33527a", "X": "#33527a"} | dict.fromkeys("G*DS", "#f2c14e")
PLAYERS, PARCELS = "PX*QHS", {"B": 0.3, "Q": 0.3, "H": 0.16}  # half the side of a parcel, in cells
Curve = list[tuple[float, float]]


def draw_all() -> dict[str, str]:
    """Every image by its file name."""
    return {
        "demo.svg": draw_seeds("demo_seeds", "the demo: held-out success"),
        "frozenlake_easy.svg": draw_seeds("frozenlake_easy_seeds", "frozenlake-easy: held-out success"),
        "before_after.svg": draw_before_after(read_recorded("text_agent"), "FrozenLake board"),
        "courier.svg": draw_before_after(read_recorded("courier"), "delivery"),
        "seeing_agent.svg": draw_study(
            "vagen", "frozenlake", {"no-think": "no words", "vagen-full": "VAGEN-Full"}
        ),
        "own_agent.svg": draw_study(
            "gateway_learning",
            "frozenlake",
            {"gateway": "own agent, through the gateway", "native": "built-in agent"},
        ),
        "own_credit.svg": draw_study(
            "recipes", "frozenlake", {"steppo": "step_gae (StepPO)", "rloo": "rloo", "grpo": "grpo"}
        ),
        "web_agent.svg": draw_study("web_tiny", "shop", {"rloo-large": "web-tiny, three seeds"}),
        "web_smollm2.svg": draw_smollm2(),
        "robot.svg": draw_robot(),
        "ray.svg": draw_ray(),
        "planner_scaling.svg": draw_scaling(),
        "own_env.svg": draw_recorded(read_recorded("own_env"), "number_line: held-out success"),
    }


def draw_seeds(name: str, title: str) -> str:
    """The seeds of one preset, with their baselines."""
    runs = json.loads((RESULTS / f"{name}.json").read_text())
    curves = [[(point["env_steps"], point["success"]) for point in run["curve"]] for run in runs]
    names = [name for name in ("SFT, same wall time", "random play") if name in runs[0]["baselines"]]
    levels = [ReferenceLine(name, mean(run["baselines"][name] for run in runs)) for name in names]
    return draw_curves({f"mean of {len(runs)} seeds": curves}, title, levels)


def draw_study(folder: str, env: str, names: dict[str, str]) -> str:
    """Variants of one environment of a study."""
    results = json.loads((RESULTS / folder / "results.json").read_text())
    curves = {
        name: [
            [(x, y) for x, y in run["curve"]]
            for run in results["runs"]
            if run.get("env", run.get("world")) == env and run["variant"] == variant
        ]
        for variant, name in names.items()
    }
    return draw_curves(curves, f"{folder}: held-out success in {env}")


def draw_smollm2() -> str:
    """SmolLM2 on the shop of our own web."""
    runs = json.loads((RESULTS / "web" / "smollm2.json").read_text())["runs"]
    curves = [
        [(point["env_steps"], point["success"]) for point in run["held_out"]]
        for run in runs
        if "-learnt-" in run["run"]
    ]
    return draw_curves({f"mean of {len(curves)} seeds": curves}, "SmolLM2 on the full shop: held-out success")


def draw_robot() -> str:
    """Meta-World reach with a flow head, in step and streaming."""
    modes = {"stream": "workers.mode=stream", "sync": "in step"}
    curves = {name: read_reach_curves(mode) for mode, name in modes.items()}
    return draw_curves(curves, "Meta-World reach: held-out success")


def draw_ray() -> str:
    """The same, streaming: one run on a Ray cluster beside three of one machine."""
    run = json.loads((RESULTS / "ray_learning.json").read_text())
    curves = {
        "two Ray nodes, one seed": [[(point["env_steps"], point["success"]) for point in run["curve"]]],
        "one machine, three seeds": read_reach_curves("stream"),
    }
    return draw_curves(curves, "Meta-World reach, streaming: held-out success")


def read_reach_curves(mode: str) -> list[Curve]:
    """Every seed of Meta-World reach with a flow head."""
    results = json.loads((RESULTS / "async_learning" / "results.json").read_text())
    return [
        list(zip(run["steps"], run["success"], strict=True))
        for run in results["runs"]
        if run["world"] == "reach-flow" and run["mode"] == mode
    ]


def draw_scaling() -> str:
    """Modelled throughput over the number of GPUs, by placement and mode."""
    rows = json.loads((RESULTS / "planner" / "papers.json").read_text())["figure7"]
    names = {"sync": "in step", "stream": "streaming"}
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in sorted(rows, key=lambda row: row["num_devices"]):
        if not row["controller_s"]:
            name = f"{row['placement']}, {names[row['mode']]}"
            lines.setdefault(name, []).append((row["num_devices"], row["turns_per_s"]))
    title = "LIBERO + GR00T N1.5, simulated: environment turns per second over GPUs"
    series = [
        Series(name, [x for x, _ in points], [y for _, y in points], color=number, marks=True)
        for number, (name, points) in enumerate(lines.items())
    ]
    chart = draw_line_chart(
        series, title=title, x_label="GPUs", y_label="turns per second", width=WIDTH, height=HEIGHT
    )
    return add_background(chart, title)


def draw_recorded(record: dict[str, Any], title: str) -> str:
    """The evaluations of one recorded run."""
    curve = [(point["env_steps"], point["success"]) for point in record["curve"]]
    return draw_curves({f"seed {record['seed']}": [curve]}, title)


def draw_curves(groups: dict[str, list[Curve]], title: str, levels: list[ReferenceLine] | None = None) -> str:
    """One line per group: the mean over its runs, with a band from the lowest to the highest."""
    series = []
    for color, (name, curves) in enumerate(groups.items()):
        assert curves, f"{title}: no run of {name}"
        x = [x for x, _ in min(curves, key=lambda curve: curve[-1][0])]  # as far as all runs go
        ys = [[float(np.interp(at, *zip(*curve, strict=True))) for curve in curves] for at in x]
        has_band = len(curves) > 1
        series.append(
            Series(
                name,
                x,
                [mean(y) for y in ys],
                [min(y) for y in ys] if has_band else None,
                [max(y) for y in ys] if has_band else None,
                color=color,
                marks=True,
            )
        )
    chart = draw_line_chart(
        series,
        title=title,
        x_label="environment steps",
        y_label="held-out success",
        width=WIDTH,
        height=HEIGHT,
        y_range=(0.0, 1.0),
        levels=levels or (),
        legend=True,
    )
    return add_background(chart, title)


def add_background(chart: str, title: str) -> str:
    """The chart on a white card with its title."""
    height = int(chart.split('height="', 1)[1].split('"', 1)[0])
    width, whole = WIDTH + 2 * MARGIN, height + 2 * MARGIN + 22
    card = make_element("rect", width=width, height=whole, rx=8, fill="#ffffff", stroke="#e4e0d8")
    heading = make_text(MARGIN, 24, title, fill="#1c1b19", more="font-size:13px;font-weight:600;")
    inner = make_element("g", chart, transform=f"translate({MARGIN} {MARGIN + 22})")
    return make_svg(width, whole, title, [card, heading, inner]) + "\n"


def read_recorded(name: str) -> dict[str, Any]:
    """What `--record` kept of a run."""
    record: dict[str, Any] = json.loads((RESULTS / "tutorials" / f"{name}.json").read_text())
    return record


def record_run(run: Path, name: str, command: str) -> Path:
    """Keep the curve of a run, and one task that it failed before training and solved after it."""
    summary = read_summary(run)
    if summary is None:
        sys.exit(f"{run} has no summary.json: give the folder of a finished run")
    record = {
        "command": command,
        "machine": summary.machine,
        "seed": summary.seed,
        "success_before": summary.success_before,
        "success_after": summary.success_after,
        "curve": [
            {"update": e.update, "env_steps": e.env_steps, "success": e.values["success"]}
            for e in read_entries(run / "metrics.jsonl")
            if e.kind == "eval"
        ],
        "episodes": choose_episodes(run, load_replays(run / "replays.json")),
    }
    path = RESULTS / "tutorials" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return path


def choose_episodes(run: Path, replays: list[Replay]) -> dict[str, Any]:
    """The longest success on a task that was failed before training, both as text; {} if there is none."""
    before = {r.task_id: r for r in replays if r.stage == "before" and r.status != "success"}
    pairs = [(before[r.task_id], r) for r in replays if r.status == "success" and r.task_id in before]
    pairs = [pair for pair in pairs if pair[1].stage == "after"]
    if not pairs:
        return {}
    chosen = max(pairs, key=lambda pair: sum(len(frame.actions) for frame in pair[1].frames))
    return {replay.stage: describe_episode(run, replay) for replay in chosen}


def describe_episode(run: Path, replay: Replay) -> dict[str, Any]:
    """The boards that an episode went through, and its replies."""
    boards = play_boards(run, replay)
    turns = [
        {"board": board, "seen": frame.observation, "reply": frame.reply, "actions": frame.actions}
        for board, frame in zip(boards, replay.frames, strict=False)
    ]
    return {
        "task": replay.task_id,
        "status": replay.status,
        "turns": turns,
        "final_board": boards[-1],
    }


def play_boards(run: Path, replay: Replay) -> list[str]:
    """The boards of an episode before each turn and after the last one, from its actions played again."""
    config = load_config(str(run / "config.toml"))
    name, options, share = config.env.name, config.env.options, config.env.held_out_share
    tasks = draw_tasks(name, options, Split.HELD_OUT, config.eval.num_tasks, HELD_OUT_SEED, share)
    with make_env(name, options) as env:
        env.reset(options={"task": next(task for task in tasks if task.id == replay.task_id)})
        boards = [env.state()[StateForm.SYMBOLIC]]
        for frame in replay.frames:
            env.step(frame.actions)
            boards.append(env.state()[StateForm.SYMBOLIC])
    return boards


def draw_before_after(record: dict[str, Any], thing: str) -> str:
    """One board twice, animated: the agent before training and after it."""
    before, after = record["episodes"]["before"], record["episodes"]["after"]
    num_frames = 1 + max(len(before["turns"]), len(after["turns"]))
    duration = num_frames * TURN_S + HOLD_S
    size = len(read_board(before["turns"][0]["board"])) * CELL
    width, height = 2 * size + 3 * MARGIN, size + 3 * MARGIN + 42
    parts = [make_element("rect", width=width, height=height, rx=8, fill="#ffffff", stroke="#e4e0d8")]
    for column, (title, episode) in enumerate((("before", before), ("after", after))):
        left = MARGIN + column * (size + MARGIN)
        parts.append(make_text(left, 24, title, fill="#1c1b19", more="font-size:14px;font-weight:600;"))
        parts.append(draw_episode(episode, num_frames, duration, left))
    title = f"one held-out {thing}, played before and after training"
    return make_svg(width, height, title, parts) + "\n"


def draw_episode(episode: dict[str, Any], num_frames: int, duration: float, left: float) -> str:
    """An episode as frames that follow each other; the last one stays until the loop starts again."""
    boards = [turn["board"] for turn in episode["turns"]] + [episode["final_board"]]
    words = ["start", *(", ".join(turn["actions"]) or "unreadable reply" for turn in episode["turns"])]
    words[-1] += "  (solved)" if episode["status"] == "success" else "  (failed)"
    frames = []
    for index, (board, text) in enumerate(zip(boards, words, strict=True)):
        is_last = index == len(boards) - 1
        start = index * TURN_S / duration
        stop = 1.0 if is_last else (index + 1) * TURN_S / duration
        frames.append(draw_frame(read_board(board), text, (start, stop), duration))
    return make_element("g", *frames, transform=f"translate({left:g} 34)")


def draw_frame(board: list[str], text: str, shown: tuple[float, float], duration: float) -> str:
    """One board with what was done, visible for a share of the loop. Without animation the last one shows."""
    cells = [
        draw_cell(char, column, row) for row, line in enumerate(board) for column, char in enumerate(line)
    ]
    label = make_text(0, len(board) * CELL + 22, text, fill="#1c1b19", more="font-size:13px;")
    start, stop = shown
    times, values = (
        [0.0, start, stop],
        ["none" if start else "inline", "inline", "none" if stop < 1 else "inline"],
    )
    animation = make_element(
        "animate",
        attributeName="display",
        calcMode="discrete",
        dur=f"{duration:g}s",
        keyTimes=";".join(f"{time:.4f}" for time in times),
        values=";".join(values),
        repeatCount="indefinite",
    )
    return make_element("g", animation, *cells, label, display="inline" if stop == 1.0 else "none")


def draw_cell(char: str, column: int, row: int) -> str:
    """A tile, and player and parcel on it."""
    x, y = column * CELL, row * CELL
    fill = TILES.get(char, "#dcecf7")
    tile = make_element("rect", x=x, y=y, width=CELL, height=CELL, fill=fill, stroke="#ffffff")
    if char in PLAYERS:
        color = "#c2365f" if char == "X" else "#0d8a6a"
        tile += make_element("circle", cx=x + CELL / 2, cy=y + CELL / 2, r=CELL / 3.2, fill=color)
    if char in PARCELS:
        left, side = (0.5 - PARCELS[char]) * CELL, 2 * PARCELS[char] * CELL
        parcel = {"x": f"{x + left:g}", "y": f"{y + left:g}", "width": f"{side:g}", "height": f"{side:g}"}
        tile += make_element(
            "rect", **parcel, rx=3, fill="none" if char == "Q" else "#a5692a", stroke="#6b4216"
        )
    return tile


def read_board(observation: str) -> list[str]:
    """The rows of a board, or of one in an observation."""
    rows = [
        line
        for line in observation.splitlines()
        if line and set(line) <= {"_", "G", *TILES, *PLAYERS, *PARCELS}
    ]
    assert rows and len(rows) == len(rows[0]), f"no board in {escape_text(observation)!r}"
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", nargs=3, metavar=("RUN", "NAME", "COMMAND"), help="keep a run")
    args = parser.parse_args()
    if args.record:
        print(record_run(Path(args.record[0]), *args.record[1:]))
        return
    IMAGES.mkdir(exist_ok=True)
    for name, svg in draw_all().items():
        (IMAGES / name).write_text(svg, encoding="utf-8")
        print(IMAGES / name)


if __name__ == "__main__":
    main()
