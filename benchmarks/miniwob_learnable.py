"""Why are some click pages of MiniWoB++ not learnt? What imitation learns of one page, by what is shown.

First pages are recorded in Chromium, with the scripts' clicks. Without a browser, a tiny model with the
settings of the preset `miniwob-tiny` then imitates the scripts on one page:

    by heart     ten tasks, 60 updates: can the model and the optimizer hold them at all?
    shown        100 tasks, 80 updates of 16: what is learnt, on these tasks and on held-out ones
    named        the same, where the page also says what the instruction names: the tag of an element
                 (`click-widget`), the coordinates of a point (`grid-coordinate`)

A click counts if it is the script's. Held-out tasks have other seeds.

    python benchmarks/miniwob_learnable.py --record FILE          # 120 first pages of each, in Chromium
    python benchmarks/miniwob_learnable.py --recordings FILE      # results/miniwob/learnable.json
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import sys
import time
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from stepwell.config.base import Settings
from stepwell.config.loading import load_config
from stepwell.config.presets import read_preset_text
from stepwell.core import ActionSpace, EnvDescription, Observation, Split, Task
from stepwell.envs import Effect, Env
from stepwell.envs.fixed_splits import assign_split
from stepwell.envs.registry import make_env
from stepwell.rollout.jobs import Job
from stepwell.runs.build.components import Components
from stepwell.training import imitate

RESULT = Path(__file__).parent / "results" / "miniwob" / "learnable.json"
NUM_TRAIN, NUM_HELD_OUT = 100, 20
PAGES = ("click-button", "click-widget", "grid-coordinate")
sys.path.insert(0, str(Path(__file__).parent))  # the environment below is named by this file's name


class RecordedOptions(Settings):
    """Which recordings are played, and how they are shown."""

    file: str = Field("", description="recordings")
    page: str = Field("click-button", description="of this page alone")
    num_train: int = Field(NUM_TRAIN, description="training tasks")
    is_named: bool = Field(False, description="whether the page says what the instruction names")


class RecordedClicks(Env):
    """A recorded first page, and the one click that is right."""

    name: ClassVar[str] = "recorded_clicks"
    Options: ClassVar[type[Settings]] = RecordedOptions
    options: RecordedOptions

    @property
    def description(self) -> EnvDescription:
        """One click."""
        return EnvDescription(self.name, "Click.", ActionSpace(), 1)

    @classmethod
    def make_task(cls, options: Any, seed: int) -> Task:
        """A recording; the last `NUM_HELD_OUT` numbers are held out."""
        count = options.num_train + NUM_HELD_OUT
        number = seed % count
        task = Task(cls.name, {"number": number}, seed=seed)
        return assign_split(task, Split.TRAIN if number < options.num_train else Split.HELD_OUT)

    def begin(self, task: Task, seed: int) -> None:
        """Show a recording."""
        rows = read_recordings(self.options.file)[self.options.page]
        number = int(task.content["number"])  # type: ignore[arg-type]
        place = number if number < self.options.num_train else number - self.options.num_train + NUM_TRAIN
        self.text, self.right = rows[place]
        if self.options.is_named:
            self.text = name_elements(self.options.page, self.text)

    def act(self, action: str) -> Effect:
        """A click; it is right or wrong."""
        is_right = action.strip() == self.right
        return Effect(float(is_right), terminated=True, success=is_right)

    def observe(self) -> Observation:
        """The page."""
        return Observation(self.text)

    def oracle(self) -> list[str]:
        """The script's click."""
        return [self.right]


@cache
def read_recordings(path: str) -> dict[str, list[tuple[str, str]]]:
    """Text and right click of every recording, by page."""
    rows: dict[str, list[tuple[str, str]]] = {}
    for line in Path(path).read_text().splitlines():
        page, _, text, action, *_ = json.loads(line)
        rows.setdefault(page, []).append((text, action))
    return rows


def name_elements(page: str, text: str) -> str:
    """The page with the words of the instruction beside the elements they mean."""
    if page == "grid-coordinate":

        def name_point(match: re.Match[str]) -> str:
            column, row = divmod(int(match[1]) - 1, 5)
            return f"[{match[1]} ({column - 2},{2 - row})]"

        return re.sub(r"\[(\d+)\]", name_point, text)
    text = re.sub(r"\[(\d+) value=", r"[\1 textarea value=", text)
    text = re.sub(r'\[(\d+) type="input"', r"[\1 text", text)
    # odd ids are the wrappers around the widgets, so a plain id is a button if it is even
    return re.sub(r"\[(\d*[02468])\]", r"[\1 button]", text)


def record_pages(path: Path, count: int) -> None:
    """Record first pages in Chromium."""
    options = tomllib.loads(read_preset_text("miniwob-tiny"))["env"]["options"]
    with make_env("web", options) as env, path.open("w") as file:
        for page in options["miniwob"]["pages"]:
            for seed in range(count):
                content = {"source": "miniwob", "page": page, "seed": seed}
                observation, _ = env.reset(
                    options={"task": Task("web", content, "Do what the page asks for.")}
                )
                file.write(json.dumps([page, seed, observation.text, env.oracle()[0]]) + "\n")


def imitate_page(file: Path, page: str, num_train: int, num_updates: int, is_named: bool) -> dict[str, Any]:
    """Imitate one page; the shares of tasks that are then solved, at temperature 1."""
    options = {"file": str(file), "page": page, "num_train": num_train, "is_named": is_named}
    values = ", ".join(f"{name} = {json.dumps(value)}" for name, value in options.items())
    settings = [
        "env.name=miniwob_learnable:RecordedClicks",
        f"env.options={{{values}}}",
        f"warm_start.num_demos={num_train}",
        f"warm_start.batch_size={min(16, num_train)}",
        f"warm_start.epochs={num_updates}",
        f"warm_start.max_updates={num_updates}",
        "engine.max_batch_size=64",
        "engine.num_slots=64",
        "engine.max_length=640",
    ]
    began = time.process_time()
    config = load_config("miniwob-tiny", settings)
    components = Components(config)
    try:
        demos = components.play_demonstrations(num_train, 0.0, 0)
        for _ in imitate(components.policy, demos, config.warm_start, seed=0):  # type: ignore[arg-type]
            pass
        components.runner.publish(1, components.policy)  # type: ignore[arg-type]
        shares = {
            name: measure_share(components, components.tasks(split, count, 0), times)
            for name, split, count, times in (
                ("train", Split.TRAIN, num_train, 1 if num_train >= NUM_TRAIN else 6),
                ("held_out", Split.HELD_OUT, NUM_HELD_OUT, 5),
            )
        }
    finally:
        components.close()
    return {"page": page, "train_tasks": num_train, "updates": num_updates, "named": is_named} | {
        **shares,
        "cpu_s": round(time.process_time() - began),
    }


def measure_share(components: Components, tasks: list[Task], times: int) -> float:
    """The share of right clicks, each task so many times."""
    jobs = [Job(task, f"{task.id}/{i}", 1000 * i + n) for i in range(times) for n, task in enumerate(tasks)]
    played = components.runner.run(jobs, components.sampling_params(1.0)).trajectories
    return round(sum(one.status.value == "success" for one in played) / len(played), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--record", type=Path, help="only record first pages into this file")
    parser.add_argument("--recordings", type=Path)
    parser.add_argument("--output", type=Path, default=RESULT)
    args = parser.parse_args()
    if args.record:
        record_pages(args.record, NUM_TRAIN + NUM_HELD_OUT)
        return
    whole = [(page, NUM_TRAIN, 80, is_named) for page in PAGES[1:] for is_named in (False, True)]
    ten = [(page, 10, 60, False) for page in PAGES]
    for plan in [*whole, (PAGES[0], NUM_TRAIN, 80, False), *ten]:
        keep_row(args.output, imitate_page(args.recordings, *plan))


def keep_row(path: Path, row: dict[str, Any]) -> None:
    """Write a row in the place of an earlier one of the same plan."""
    print(json.dumps(row), flush=True)
    rows = json.loads(path.read_text())["runs"] if path.exists() else []
    keys = ("page", "train_tasks", "updates", "named")
    rows = [one for one in rows if any(one[key] != row[key] for key in keys)]
    path.write_text(json.dumps({"machine": platform.machine(), "runs": [*rows, row]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
