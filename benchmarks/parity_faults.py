"""Does the parity check stop a faulty run at once, and a healthy one never?

One run is trained for many updates in bfloat16. At some of them a fault is planted in the engine, one
after the other, and the update is tried: it should stop before any weight changes. A fault that is not
seen at once stays for up to four updates. Then the engine is whole again and the run goes on. Every update
without a planted fault must pass. Weights are compared exactly. Positions are too where the engine runs on a
CPU; on a GPU, as below, they are left to the logprobs, like the temperature.

    python benchmarks/parity_faults.py household-tiny policy.model=smollm2-135m policy.dtype=bfloat16 \\
        policy.device=cuda train.num_updates=100 --name h200_seed0

The result holds, for every healthy update, the mean gap between engine and trainer, and the share of
tokens in which the engine is farther from float32 than the trainer, so that the distance to the limit
can be seen.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stepwell.config.loading import load_config
from stepwell.core import LogprobGaps, ParityError
from stepwell.core.logprob_gaps import MeasureErrors
from stepwell.monitors import Monitor
from stepwell.runs.build.components import Components
from stepwell.runs.loop.parity_check import ParityCheck
from stepwell.runs.loop.sources import PlayedSource
from stepwell.runs.loop.training_loop import TrainingLoop

RESULTS = Path(__file__).parent / "results"
JUMP_AT = 64
WRONG_TEMPERATURE = 1.1
PATIENCE = 4
"""Updates that a fault stays planted if it is not seen."""
Weights = dict[str, torch.Tensor]


@dataclass(eq=False)
class FaultyLoop(TrainingLoop):
    """The training loop, with faults planted before the updates in `plant_at`."""

    plant_at: frozenset[int] = frozenset()
    rows: list[dict[str, float]] = field(default_factory=list)
    planted: list[dict[str, Any]] = field(default_factory=list)
    errors: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    _fault: str = "healthy"
    _previous: Weights | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._parity = RecordedParity(self)

    def _update(self) -> bool:
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
            self.planted[-1]["message"] = message.split("; ", 1)[-1].split(". The data")[0]
        self._source = source
        self._parity = RecordedParity(self)  # does not remember the faulty updates
        self._publish()


class RecordedParity(ParityCheck):
    """The check of a run; writes down what it saw for the loop."""

    def __init__(self, loop: FaultyLoop) -> None:
        super().__init__(loop.config.parity, lambda: loop.runner, loop.monitor.note)
        self._loop = loop

    def judge_positions(self, place: str, fault: str) -> None:
        self._loop.rows.append({})  # it stops before any logprob is computed
        super().judge_positions(place, fault)

    def judge_gaps(self, place: str, gaps: LogprobGaps, measure_errors: MeasureErrors) -> None:
        row = {"mean": gaps.mean_abs, "max": gaps.max_abs, "tokens": gaps.num_tokens}
        if self._monitor is not None:
            self._monitor.errors = None
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
def shift_positions(loop: FaultyLoop, by: int) -> Iterator[None]:
    """From position 64 on, the engine rotates queries and keys as if every token stood `by` places later."""
    rotation = loop.components.engine._core.runner.forward.read_tables()
    tables = (rotation.cos, rotation.sin, rotation.signed_sin)
    kept = [table.clone() for table in tables]
    loop.components.engine.forget()
    for table in tables:
        table[JUMP_AT:-by] = table[JUMP_AT + by :].clone()
    yield
    for table, original in zip(tables, kept, strict=True):
        table.copy_(original)
    loop.components.engine.forget()


class ShiftedForward:
    """A forward pass that counts one token twice: from position 64 on, every position is one too high."""

    def __init__(self, inner: Any, uses_plan: bool) -> None:
        self._inner, self._uses_plan = inner, uses_plan

    def __call__(
        self, ids: torch.Tensor, positions: torch.Tensor, plan: Any, *args: Any, **options: Any
    ) -> Any:
        if self._uses_plan:  # the kernel looks up the plan's positions, and stores the key there too
            plan = copy.copy(plan)
            last = plan.store.max_length - 1
            plan.positions = (plan.positions + (plan.positions >= JUMP_AT)).clamp(max=last)
        return self._inner(ids, positions + (positions >= JUMP_AT), plan, *args, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@contextmanager
def count_token_twice(loop: FaultyLoop) -> Iterator[None]:
    """The engine looks up other rows of correct tables."""
    engine, runner = loop.components.engine, loop.components.engine._core.runner
    own = runner.forward
    runner.forward = ShiftedForward(own, runner.use_triton)
    _drop_graphs(runner)
    engine.forget()
    yield
    runner.forward = own
    _drop_graphs(runner)
    engine.forget()


def _drop_graphs(runner: Any) -> None:
    """Let decoding steps be captured again, with the forward pass that there is now."""
    if hasattr(runner, "_graphs"):
        runner._graphs.clear()


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
    "positions shifted by 1": lambda loop: shift_positions(loop, 1),
    "positions shifted by 16": lambda loop: shift_positions(loop, 16),
    "a token counted twice": count_token_twice,
    "temperature 1.1 instead of 1": record_other_temperature,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", help="a preset or a TOML file")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--plants", type=int, default=3, help="updates at which every fault is planted")
    parser.add_argument("--errors", type=Path, help="an .npz file for all errors against float32")
    parser.add_argument("--name", required=True, help="of the result: parity_faults_NAME.json")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = load_config(args.config, [*args.overrides, f"folder={folder}"])
        total = config.train.num_updates
        places = frozenset(max(1, total * (i + 1) // args.plants - 1) for i in range(args.plants))
        components = Components(config, Path(folder))
        loop = FaultyLoop(config, Path(folder), components, PrintedNotes(), plant_at=places)
        stopped = None
        try:
            loop.run()
        except ParityError as error:
            stopped = str(error)
        finally:
            components.close()
    if args.errors is not None:
        np.savez_compressed(args.errors, **loop.errors)
    missed = [row for row in loop.planted if not row["is_caught"]]
    result = {
        "machine": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine(),
        "overrides": args.overrides,
        "num_updates": loop.state.update,
        "false_stop": stopped,
        "num_planted": len(loop.planted),
        "num_missed": len(missed),
        "planted": loop.planted,
        "healthy": loop.rows,
    }
    (RESULTS / f"parity_faults_{args.name}.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"{loop.state.update} updates, false stop: {stopped}")
    print(f"{len(missed)} of {len(loop.planted)} faults missed")
    for row in loop.planted:
        told = row.get("message", "NOT CAUGHT")
        print(f"  update {row['update']}: {row['fault']}: check {row['checks']}: {told}")


if __name__ == "__main__":
    main()
