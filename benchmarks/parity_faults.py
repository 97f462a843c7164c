"""Does the parity check stop a faulty run at once, and a healthy one never?

Runs are trained side by side in bfloat16. At one update of each, faults are planted in the engine, one after
the other, and the update is tried: it should stop before any weight changes. A fault that is not seen at
once stays for up to four updates. Then the engine is whole again and the run goes on. Every update without a
planted fault must pass. Weights, positions and rotary tables are compared exactly, a temperature by logprobs.

    nvidia-cuda-mps-control -d
    export PYTHONPATH=.               # some of the faults are those of the tests
    python benchmarks/parity_faults.py --minutes 8 --name h200    # ten runs of SmolLM2-135M on one GPU
    python benchmarks/parity_faults.py --runs 1 --name x --no-write --set policy.device=cpu \\
        --set policy.dtype=float32 --set policy.model=tiny-0.3m --set train.num_updates=4   # not in bfloat16

`--minutes` is when runs end at the latest, their warm starts included. The result has for every healthy
update the mean gap between engine and trainer, and the share of tokens in which the engine is farther from
float32 than the trainer, so that the distance to the limit can be seen. `--errors FOLDER` also keeps those
errors.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from side_by_side import add_result_options, run_side_by_side, write_result
from tests.engines.faulty_positions import INDEX_FAULTS, shift_tables

from stepwell.config.loading import load_config
from stepwell.core import LogprobGaps, ParityError
from stepwell.core.logprob_gaps import MeasureErrors
from stepwell.engines import EmbeddedEngine
from stepwell.monitors import Monitor
from stepwell.runs.build.components import Components
from stepwell.runs.loop.parity_check import ParityCheck
from stepwell.runs.loop.sources import PlayedSource
from stepwell.runs.loop.training_loop import TrainingLoop

WRONG_TEMPERATURE = 1.1
PATIENCE = 4
"""Updates that a fault stays planted if it is not seen."""
SETTINGS = (
    "policy.model=smollm2-135m",
    "policy.dtype=bfloat16",
    "policy.device=cuda",
    "policy.critic=none",
    "num_threads=1",
    "agent.guide=true",
    "sampling.max_tokens=24",
    "engine={max_length=1024,max_batch_size=96,num_slots=96,prefill_tokens=8192}",
    "warm_start={num_demos=256,noise=0.3,stop_at=0.2,check_every=16,epochs=2,batch_size=16,value_coef=0.0,"
    'optimizer={kind="adamw",learning_rate=1e-4}}',
    "recipe.name=rloo",
    "recipe.kl_coef=0.0",
    "recipe.entropy_coef=0.001",
    "train.optimizer.kind=adamw",
    "train.optimizer.learning_rate=3e-5",
    "train.group_size=8",
    "train.tasks_per_update=12",
    "train.minibatches=4",
    "train.token_budget=3072",
    "train.num_updates=60",
    "checkpoint.every=0",
    "checkpoint.trajectories_mb=0",
    "monitor.tensorboard=false",
    "eval.every=0",
    "eval.num_tasks=8",
)
Weights = dict[str, torch.Tensor]


class OutOfTimeError(Exception):
    """The run has no time left for another update."""


@dataclass(eq=False)
class FaultyLoop(TrainingLoop):
    """The training loop, with faults planted before the updates in `plant_at`."""

    plant_at: frozenset[int] = frozenset()
    rows: list[dict[str, float]] = field(default_factory=list)
    planted: list[dict[str, Any]] = field(default_factory=list)
    errors: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    deadline: float = float("inf")
    _fault: str = "healthy"
    _previous: Weights | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._parity = RecordedParity(self)

    def _update(self) -> bool:
        if time.perf_counter() > self.deadline:
            raise OutOfTimeError
        if self.state.update in self.plant_at:
            for name, plant in FAULTS.items():
                self._try_fault(name, plant)
        previous = {name: tensor.clone() for name, tensor in self.components.policy.model_weights().items()}
        is_done = super()._update()
        self._previous = previous
        return is_done

    def _try_fault(self, name: str, plant: Callable[[FaultyLoop], Any]) -> None:
        update, source = self.state.update, self._source
        groups = f"{self.folder.name}-fault-{len(self.planted)}"  # a group of siblings is named once
        self._source = PlayedSource(self.config, self.components, groups, self._feed)
        self._fault = name
        kept, self.rows = self.rows, []
        message = None
        with plant(self):
            for _ in range(PATIENCE):
                try:
                    super()._update()
                except ParityError as error:
                    message = str(error)
                    break
        self._fault = "healthy"
        checked, self.rows = self.rows, kept
        found = {"is_caught": message is not None, "checks": len(checked)}
        self.planted.append({"update": update + 1, "fault": name} | found | checked[-1])
        if message is not None:
            self.planted[-1]["message"] = message.split("; ", 1)[-1].split(". The ratio")[0]
        self._source = source
        self._parity = RecordedParity(self)  # does not remember the faulty updates
        self._publish()


class RecordedParity(ParityCheck):
    """The check of a run; writes down what it saw for the loop."""

    def __init__(self, loop: FaultyLoop) -> None:
        super().__init__(loop.config.parity, lambda: loop.runner, loop.monitor.note)
        self._loop = loop

    def judge_weights(self, place: str) -> None:
        try:
            super().judge_weights(place)
        except ParityError:
            self._loop.rows.append({})
            raise

    def judge_positions(self, place: str, fault: str) -> None:
        self._loop.rows.append({})  # it stops before any logprob is computed
        super().judge_positions(place, fault)

    def judge_gaps(self, place: str, gaps: LogprobGaps, measure_errors: MeasureErrors) -> None:
        row = {"mean": gaps.mean_abs, "max": gaps.max_abs, "tokens": gaps.num_tokens}
        began = time.perf_counter()
        try:
            super().judge_gaps(place, gaps, measure_errors)
        finally:
            row["seconds"] = round(time.perf_counter() - began, 4)
            if self._monitor is not None and (errors := self._monitor.errors) is not None:
                row |= {"engine_farther": errors.engine_farther, "compared": errors.num_tokens}
                row["standard_error"] = errors.standard_error
                kept = np.stack([errors.engine, errors.trainer, errors.token_ids]).astype(np.float32)
                self._loop.errors[f"{self._loop.state.update}/{self._loop._fault}"] = kept
            self._loop.rows.append(row)


def _plant_in_engine(plant: Callable[[EmbeddedEngine], Any], loop: FaultyLoop) -> Any:
    return plant(loop.components.engine)


class PrintedNotes(Monitor):
    """Notes on standard output, figures nowhere."""

    def note(self, text: str) -> None:
        print(text, flush=True)


@contextmanager
def load_other(loop: FaultyLoop, change: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """The engine runs on changed weights under the version that was published."""
    weights = {name: change(tensor) for name, tensor in loop.components.policy.model_weights().items()}
    if "lm_head.weight" in weights and loop.components.policy.model.config.tie_word_embeddings:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    loop.components.engine.load_weights(loop.state.update, weights)
    yield


def scale(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.float() * 1.01).to(tensor.dtype)


def add_noise(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.float() * (1.0 + 0.01 * torch.randn_like(tensor.float()))).to(tensor.dtype)


@contextmanager
def load_previous(loop: FaultyLoop) -> Iterator[None]:
    """The engine keeps the weights of the update before."""
    assert loop._previous is not None, "plant faults after the first update"
    loop.components.engine.load_weights(loop.state.update, loop._previous)
    yield


@contextmanager
def record_other_temperature(loop: FaultyLoop) -> Iterator[None]:
    """The trainer is told another temperature than the engine sampled with."""
    trainer = loop.components.trainer
    update = trainer.update

    def mislead(trajectories: Any, **options: Any) -> Any:
        for step in (step for trajectory in trajectories for step in trajectory.steps):
            step.sampling = replace(step.sampling, temperature=WRONG_TEMPERATURE)
        return update(trajectories, **options)

    trainer.update = mislead  # type: ignore[method-assign]
    yield
    trainer.update = update  # type: ignore[method-assign]


FAULTS: dict[str, Callable[[FaultyLoop], Any]] = {
    "weights times 1.01": lambda loop: load_other(loop, scale),
    "weights with 1 % noise": lambda loop: load_other(loop, add_noise),
    "weights of the update before": load_previous,
    "rotary tables shifted by 1": lambda loop: shift_tables(loop.components.engine, 1),
    "rotary tables shifted by 16": lambda loop: shift_tables(loop.components.engine, 16),
    "temperature 1.1 instead of 1": record_other_temperature,
}
FAULTS |= {name: partial(_plant_in_engine, plant) for name, plant in INDEX_FAULTS.items()}


def train_one(args: argparse.Namespace, seed: int, output: Path) -> None:
    """Train one run with faults until its updates or its time are over; write what was seen to `output`."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        config = load_config(args.config, [*SETTINGS, *args.set, f"seed={seed}", f"folder={folder}"])
        total = config.train.num_updates
        place = seed - args.first_seed
        plant_at = frozenset({total // 6 + place * total // (3 * args.runs) + 1})
        components = Components(config, Path(folder))
        loop = FaultyLoop(config, Path(folder), components, PrintedNotes(), plant_at=plant_at)
        loop.deadline = began + 60.0 * args.minutes
        stopped = None
        try:
            loop.run()
        except OutOfTimeError:
            print(f"out of time after {loop.state.update} updates", flush=True)
        except ParityError as error:
            stopped = str(error)
        finally:
            components.close()
    if args.errors is not None:
        np.savez_compressed(args.errors / f"seed{seed}.npz", **loop.errors)
    found = {
        "seed": seed,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "updates": loop.state.update,
        "seconds": round(time.perf_counter() - began, 1),
        "false_stop": stopped,
        "planted": loop.planted,
        "healthy": loop.rows,
    }
    output.write_text(json.dumps(found))


def train_side_by_side(args: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """One process per run; what each of them saw."""
    seeds = range(args.first_seed, args.first_seed + args.runs)
    outputs = [folder / f"seed{seed}.json" for seed in seeds]
    return run_side_by_side(train_one, [(args, seed) for seed in seeds], outputs)


def summarize(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """How many healthy updates passed, and how many checks each fault took."""
    healthy = [row for run in runs for row in run["healthy"]]
    faults = {
        name: [
            row["checks"] if row["is_caught"] else None
            for run in runs
            for row in run["planted"]
            if row["fault"] == name
        ]
        for name in FAULTS
    }
    return {
        "healthy_updates": len(healthy),
        "false_stops": [run["false_stop"] for run in runs if run["false_stop"] is not None],
        "planted": sum(map(len, faults.values())),
        "caught_at_once": sum(checks.count(1) for checks in faults.values()),
        "checks_until_caught": faults,
        "largest_share_farther": max((row.get("engine_farther", 0.0) for row in healthy), default=0.0),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", default="household-tiny", help="a preset or a TOML file")
    parser.add_argument("--set", action="append", default=[], metavar="key=value")
    parser.add_argument("--runs", type=int, default=10, help="side by side, each with a seed of its own")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--errors", type=Path, help="a folder for all errors against float32")
    add_result_options(parser, "parity_faults")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = train_side_by_side(args, Path(folder))
    summary = summarize(runs)
    print(json.dumps(summary, indent=1))
    for run in runs:
        for row in run["planted"]:
            place, told = f"seed {run['seed']}, update {row['update']}", row.get("message", "NOT CAUGHT")
            print(f"  {place}: {row['fault']}: check {row['checks']}: {told}")
    write_result(args, "parity_faults", [*SETTINGS, *args.set], summary, runs)


if __name__ == "__main__":
    main()
