"""WebRL killed at random moments: three commands that end, bit for bit, as if they had never been killed.

A small run on our own web: its first phase, judged by the checker; an outcome model trained on its pool; then
three phases of evolved tasks with replay, whose episodes that model judges. The three commands are given once
without interruption. Then they are given again and again, and their whole process group gets SIGKILL at a
random moment of a stage: each stage in turn, so that none is missed. The stage that a kill really met is
recorded. At the end the two must be equal:

    weights, optimizer, record │ outcome model │ tasks with lineage │ episodes, outcomes │ what was replayed

and no task and no episode may be lost, or used twice.

    python benchmarks/webrl_kills.py                     # 20 kills or more; results/webrl_kills.json
    python benchmarks/webrl_kills.py --kills 4 --no-write
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import random
import resource
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from multiprocessing.sharedctypes import RawArray
from pathlib import Path
from typing import Any, NamedTuple

import torch
from kills import kill_group, newest_update, start_or_resume, start_process
from webrl_kill_audit import EPISODES, MODEL, NUM_PHASES, RUN, UPDATES, UPDATES_PER_PHASE, audit, compare

from stepwell.cli.main import main as run_stepwell
from stepwell.config.loading import load_config
from stepwell.config.run import RunConfig
from stepwell.curriculum import PhasedFeed, ReplayBuffer
from stepwell.runs.loop.batch_learning import BatchLearner
from stepwell.runs.loop.outcome_judging import OutcomeJudging
from stepwell.runs.loop.sources import PlayedSource
from stepwell.runs.loop.task_screen import OracleScreen
from stepwell.runs.loop.training_loop import TrainingLoop
from stepwell.runs.loop.warm_start import WarmStart
from stepwell.runs.machine import describe_machine
from stepwell.runs.outcome_model import training as outcome_training
from stepwell.runs.run import train
from stepwell.training import checkpoint

RESULTS = Path(__file__).parent / "results"
SETTINGS = (
    "num_threads=1",
    "env.name=web",
    "env.options={size='tiny', num_worlds=8, page_form='short', max_turns=3, show_url=false}",
    "env.options.templates=['admin.dashboard', 'admin.missing_order', 'admin.review_author']",
    "agent={strategy='no_think', guide=false, context='observation', max_history_chars=0}",
    "policy={model='tiny-0.3m', critic='own'}",
    "engine={max_batch_size=32, num_slots=32, max_length=512, prefill_tokens=8192}",
    "sampling={max_tokens=44, temperature=0.5}",
    "warm_start={num_demos=32, noise=0.05, batch_size=8, epochs=12, value_coef=0.5}",
    "warm_start.optimizer={kind='muon', learning_rate=3e-3, muon_learning_rate=0.01}",
    "recipe={name='webrl', credit={gamma=1.0}, loss={beta=0.3, max_residual=1.0}}",
    f"curriculum={{updates_per_phase={UPDATES_PER_PHASE}, tasks_per_phase={EPISODES}}}",
    "rewards.scale=1",
    f"train={{tasks_per_update={EPISODES}, num_tasks={EPISODES * NUM_PHASES}, group_size=1}}",
    "train.critic_learning_rate=3e-3",
    "train.optimizer={kind='adamw', learning_rate=1e-3}",
    "eval={num_tasks=4, every=4}",
    "checkpoint={every=1, keep=2}",
    "monitor={console=false, tensorboard=false, report=false}",
)
MODEL_OPTIONS = {"epochs": 3, "batch-size": 8, "max-tokens": 256, "page-tokens": 128, "validation": 0.4}


ENOUGH = 20  # more are planned: a command may come to its end before it can be killed


class Kill(NamedTuple):
    """A kill in a stage of one of the commands; at the latest after this update."""

    command: int
    stage: str
    latest: int


STAGES: dict[str, tuple[Any, str]] = {  # the innermost first: what is called in each
    "feasibility filter": (OracleScreen, "__call__"),
    "evolution": (PhasedFeed, "_make_phase"),
    "rollouts": (PlayedSource, "_play_jobs"),
    "outcome-model labelling": (OutcomeJudging, "_assign_outcomes"),
    "replay scoring": (ReplayBuffer, "_load_period"),
    "learning": (BatchLearner, "_update_weights"),
    "held-out evaluation": (TrainingLoop, "_evaluate"),
    "warm start": (WarmStart, "run"),
    "outcome-model training": (outcome_training, "train_outcome_model"),
    "between stages": (TrainingLoop, "run"),
}
WRITING = "checkpoint writing"  # beside the others, in a thread
KILLS = (
    *(Kill(0, stage, 0) for stage in ("warm start", "warm start", WRITING)),
    *(Kill(0, stage, 1) for stage in ("rollouts", "learning")),
    *(Kill(1, "outcome-model training", 99) for _ in range(3)),
    *(Kill(2, stage, 3) for stage in ("evolution", "outcome-model labelling", "replay scoring", WRITING)),
    *(Kill(2, stage, 5) for stage in ("feasibility filter", "rollouts", "outcome-model labelling")),
    *(Kill(2, stage, 5) for stage in ("replay scoring",)),
    *(Kill(2, stage, 7) for stage in ("evolution", "rollouts", "outcome-model labelling", "replay scoring")),
    *(Kill(2, stage, 7) for stage in ("learning", WRITING)),
)


class StageWatch:
    """Which stages forked processes are in, in memory that they share with this one."""

    def __init__(self) -> None:
        self.names = [*STAGES, WRITING]
        self._depths, self._counts = RawArray("i", len(self.names)), RawArray("i", len(self.names))
        self._seconds = RawArray("d", len(self.names))
        for name, (owner, attribute) in {**STAGES, WRITING: (checkpoint, "write_checkpoint")}.items():
            setattr(owner, attribute, self._watch(self.names.index(name), getattr(owner, attribute)))

    def _watch(self, place: int, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def watched(*args: Any, **kwargs: Any) -> Any:
            self._depths[place] += 1
            began = time.process_time()
            try:
                return call(*args, **kwargs)
            finally:
                self._depths[place] -= 1
                self._counts[place] += 1
                self._seconds[place] += time.process_time() - began

        return watched

    def is_in(self, name: str) -> bool:
        return int(self._depths[self.names.index(name)]) > 0

    def name_moment(self) -> str:
        """The innermost stage now, and whether a checkpoint is being written."""
        inner = next(filter(self.is_in, STAGES), "start of the command")
        return WRITING if self.is_in(WRITING) and inner == "between stages" else inner

    def forget(self) -> None:
        """A killed process left its stages open."""
        for place in range(len(self.names)):
            self._depths[place] = 0

    def mean_s(self) -> dict[str, float]:
        """The mean length of each stage so far, in processor time: other work does not count."""
        figures = zip(self.names, self._seconds, self._counts, strict=True)
        return {name: seconds / max(1, count) for name, seconds, count in figures}


def load_settings(place: Path, *more: str) -> RunConfig:
    return load_config(None, [*SETTINGS, f"folder={place}", f"name={RUN}", *more])


def make_commands(place: Path) -> list[Callable[[], object]]:
    """What a person would give one after the other; each again after a kill, until it ends by itself."""
    first = load_settings(place, f"train.num_updates={UPDATES_PER_PHASE}")
    rest = load_settings(
        place,
        f"train.num_updates={len(UPDATES)}",
        f"outcome.judge=model:{place / MODEL}",
        "outcome.from_phase=2",
    )
    options = [f"--{name}={value}" for name, value in MODEL_OPTIONS.items()]
    training = ["orm", "train", str(place / RUN), "--to", str(place / MODEL), *options]
    return [
        lambda: start_or_resume(first),
        lambda: raise_unless_zero(run_stepwell(training)),
        lambda: train(rest, resume=place / RUN),
    ]


def raise_unless_zero(code: int) -> None:
    assert code == 0, f"the command ended with {code}"


def wait_for_cpu_s(child: Any, seconds: float) -> None:
    """Wait until a process has used so much more processor time, or has ended."""
    end = read_cpu_s(child.pid) + seconds
    while child.is_alive() and read_cpu_s(child.pid) < end:
        time.sleep(0.002)


def read_cpu_s(pid: int) -> float:
    """Processor time of a process; infinite once it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return math.inf
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run_whole(place: Path) -> None:
    for command in make_commands(place):
        child = start_process(command)
        child.join()
        assert child.exitcode == 0, "a command without kills failed"


def run_killed(
    place: Path, planned: Sequence[Kill], watch: StageWatch, mean_s: dict[str, float], rng: random.Random
) -> list[dict[str, Any]]:
    """Come to the end in spite of the kills; returns where each one fell."""
    met: list[dict[str, Any]] = []
    for number, command in enumerate(make_commands(place)):
        for kill in (each for each in planned if each.command == number):
            watch.forget()
            child = start_process(command)
            latest = max(kill.latest, newest_update(place / RUN) + 1)
            while child.is_alive() and not watch.is_in(kill.stage) and newest_update(place / RUN) < latest:
                time.sleep(0.002)
            wait_for_cpu_s(child, rng.uniform(0.0, 0.9 * mean_s[kill.stage]))
            if not kill_group(child):
                assert child.exitcode == 0, f"command {number} failed after {len(met)} kills"
                break  # it came to its end
            update = max(0, newest_update(place / RUN))
            met.append({"aimed": kill.stage, "stage": watch.name_moment(), "checkpoint": update})
            met[-1]["writing"] = watch.is_in(WRITING)
            print(json.dumps(met[-1]), flush=True)
        else:
            child = start_process(command)
            child.join()
            assert child.exitcode == 0, f"command {number} did not come to its end"
    return met


def count_child_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=len(KILLS), help="the first of them (all)")
    parser.add_argument("--stages", nargs="+", choices=[*STAGES, WRITING], help="only kills aimed at these")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="keep both runs here; one without kills is used again")
    parser.add_argument("--name", default="", help="added to the name of the result")
    parser.add_argument("--no-write", action="store_true", help="print only")
    args = parser.parse_args()
    torch.set_num_threads(1)
    watch = StageWatch()
    with tempfile.TemporaryDirectory() as temporary:
        place = args.folder or Path(temporary)
        whole, killed = place / "whole", place / "_".join(["killed", *([args.name] if args.name else [])])
        lengths = whole / "mean_s.json"
        if not lengths.exists():
            run_whole(whole)
            lengths.write_text(json.dumps(watch.mean_s()))
        cpu_s, mean_s = count_child_cpu_s(), json.loads(lengths.read_text())
        planned = [each for each in KILLS if args.stages is None or each.stage in args.stages][: args.kills]
        met = run_killed(killed, planned, watch, mean_s, random.Random(args.seed))
        differences = compare(whole, killed)
        result: dict[str, Any] = {
            "machine": describe_machine(),
            "kills": len(met),
            "planned": len(planned),
            "by_stage": dict(Counter(WRITING if each["writing"] else each["stage"] for each in met)),
            "met": met,
            "bit-equal": not any(differences.values()),
            "differences": {kind: found[:10] for kind, found in differences.items()},
            "without_kills": audit(whole / RUN),
            "with_kills": audit(killed / RUN),
            "cpu_s_with_kills": round(count_child_cpu_s() - cpu_s),
        }
    print(json.dumps(result, indent=2))
    if not args.no_write:
        name = "_".join(["webrl_kills", *([args.name] if args.name else [])])
        (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")
    assert result["bit-equal"] and len(met) == args.kills and not result["with_kills"]["faults"], (
        "see the result"
    )


if __name__ == "__main__":
    main()
