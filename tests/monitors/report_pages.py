"""Run folders to make a report of, and a report read back as its tags and text."""

from __future__ import annotations

import math
from html.parser import HTMLParser
from pathlib import Path

import numpy as np

from stepwell.monitors.base import LogEntry, RunInfo
from stepwell.monitors.jsonl import JsonlMonitor
from stepwell.monitors.replays import Replay, ReplayFrame, encode_png, save_replays
from stepwell.monitors.summary import SuccessScore, Summary, write_summary

EVIL = '</script><script>alert("1")</script><img src=x onerror=alert(2)> & é'


class Page(HTMLParser):
    """What a browser would find: elements, their attributes, the text of scripts and the visible text."""

    VOID = frozenset({"meta", "img", "input", "br", "link"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.scripts: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        elif self.open and self.open[-1] != "style":
            self.text += data


def make_run(folder: Path, *, num_updates: int = 8, text: str = "stopped") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(
        'seed = 5\n[env]\nname = "frozenlake"\n[recipe]\nname = "steppo"\n'
        f"[train]\nnum_updates = 8\n# {text}\n"
    )
    monitor = JsonlMonitor()
    monitor.start(RunInfo(folder, "r", "frozenlake", "steppo", 5, 8))
    monitor.record(LogEntry("warm_start", 0, 1.0, 0, {"loss": 1.5}))
    for update in range(num_updates + 1):
        if update:
            values = {
                "reward": update / 8,
                "entropy": 0.5,
                "kl": math.nan,
                "my/metric": 3.0,
                "infra_errors": 0,
            }
            monitor.record(LogEntry("update", update, 2.0 * update, 100 * update, values))
        if update % 4 == 0:
            success = 0.25 + update / 16
            scores = {"success": success, "low": success - 0.1, "high": success + 0.1}
            monitor.record(LogEntry("eval", update, 2.0 * update, 100 * update, scores))
    monitor.note(text)
    monitor.close()
    return folder


def finish_run(folder: Path, text: str = "fine") -> None:
    summary = Summary(0.25, 0.75, 800, 16.0, 5, "steppo", "frozenlake")
    summary.before, summary.after = SuccessScore(0.25, 0.15, 0.35, 256), SuccessScore(0.75, 0.65, 0.85, 256)
    summary.baselines = [SuccessScore(0.1, 0.05, 0.2, 256, "random play", text)]
    summary.decoding, summary.machine = {"temperature": 0}, {"cpu": text, "gpu": None}
    write_summary(folder, summary)
    board = encode_png(np.full((4, 4, 3), 90, np.uint8))
    frame = ReplayFrame(text, text, [text], 0.5, {"task": -0.5, "outcome": 1.0}, board, 0.25, None, text)
    stages = [
        Replay(text, text, "success", 0.5, [frame], stage, text, board) for stage in ("before", "after")
    ]
    save_replays(folder / "replays.json", stages)


def board(seed: int, side: int = 8) -> bytes:
    """An image that no compression makes small."""
    return encode_png(np.random.default_rng(seed).integers(0, 255, (side, side, 3), dtype=np.uint8))


def keep_episodes(folder: Path, *, num: int = 1, num_steps: int = 3, side: int = 8, reply: str = "") -> None:
    """A run folder with episodes as robots have them: images and actions, and no words of their own."""
    episodes = []
    for index in range(num):
        images = [board(100 * index + step, side) for step in range(num_steps + 1)]
        frames = [
            ReplayFrame("arm at rest", reply, ["+0.10 -0.20"], 0.0, image_png=image) for image in images[:-1]
        ]
        episodes.append(Replay(f"t{index}", EVIL, "success", 1.0, frames, final_image_png=images[-1]))
    save_replays(folder / "replays.json", episodes)
