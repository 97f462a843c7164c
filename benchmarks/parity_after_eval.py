"""Does an evaluation change what the engine computes next, or what the parity check sees?

Two stops of WebRL's study have no known cause (`docs/engine.md`); both were the first update after an
evaluation. So its two arms are trained again, RLOO also without CUDA graphs, and with matrix products that
never add in bfloat16. Four things are asked of every run:

    replays    around every second evaluation, the next update's episodes are played twice before it and once
               after it, with the same weights: tokens and logprobs should be equal, bit for bit
    figures    the gaps of each update, and the share of all its tokens in which the engine is farther from
               float32 than the trainer, for updates right after an evaluation and for the others
    again      an update whose share is far above one half is played again with the same weights: by the
               engine as it is, after publishing them once more, and by a new engine. If all have that share,
               it comes with these weights (rounding); if the new engine has not, with the engine's state
    rows       in the replays, both errors by the number of rows that decoded together: products of few rows
               run other kernels

Nothing stops these runs; the verdict of the check is written down. Eight runs on one GPU take eight minutes:

    nvidia-cuda-mps-control -d
    python benchmarks/parity_after_eval.py --name h200

The same on a CPU, small and in float32, where rounding cannot hide a fault:

    python benchmarks/parity_after_eval.py --name cpu --runs 1 --set policy.device=cpu \\
        --set policy.dtype=float32 --set policy.model=tiny-0.3m --set agent.guide=false \\
        --set warm_start.num_demos=0 --set sampling.max_tokens=24 --set env.options.max_turns=3 \\
        --set train.num_updates=3 --set train.tasks_per_update=4 --set train.group_size=4 \\
        --set eval.every=1 --set eval.num_tasks=8
"""

from __future__ import annotations

import argparse
import copy
import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from side_by_side import add_result_options, run_side_by_side, write_result

from stepwell.config.loading import load_config
from stepwell.core import LogprobErrors, LogprobGaps, Step
from stepwell.core.logprob_gaps import MeasureErrors
from stepwell.engines import EmbeddedEngine
from stepwell.engines.core import EngineCore
from stepwell.engines.parity import ParityMonitor
from stepwell.monitors import Monitor
from stepwell.policies.numerics import set_numerics
from stepwell.rollout import Rollout
from stepwell.runs.build.components import Components
from stepwell.runs.build.runner import EpisodeRunner, LocalRunner
from stepwell.runs.evaluation.result import EvalResult
from stepwell.runs.loop.parity_check import ParityCheck
from stepwell.runs.loop.sources import PlayedSource
from stepwell.runs.loop.training_loop import TrainingLoop
from stepwell.training.rounding_error import measure_errors

SETTINGS = (  # those of RLOO in studies/webrl_smollm2.toml
    "policy.model=smollm2-135m",
    "policy.dtype=bfloat16",
    "policy.device=cuda",
    "policy.critic=none",
    "num_threads=1",
    'env.options={size="tiny",sites=["shop","admin"],num_worlds=16,page_form="short",show_url=false,max_turns=8}',
    "engine={num_slots=128,max_batch_size=128,max_length=640,prefill_tokens=32768}",
    "warm_start.stop_at=0.25",
    "warm_start.check_every=4",
    "warm_start.value_coef=0.0",
    'recipe={name="rloo",kl_coef=0.001,reward_parts=["outcome"]}',
    "rewards.scale=1.0",
    "curriculum.enabled=false",
    "train.num_updates=40",
    "train.tasks_per_update=16",
    "train.group_size=8",
    "train.num_tasks=128",
    "train.minibatches=4",
    'train.schedule="linear"',
    "train.warmup_updates=2",
    'train.optimizer={kind="adamw",learning_rate=5e-5}',
    "checkpoint={every=0,trajectories_mb=0}",
    "monitor={tensorboard=false,report=false}",
    "eval={every=4,num_tasks=128}",
)
WEBRL = (
    "policy.critic=own",
    "warm_start.value_coef=0.5",
    'recipe={name="webrl",kl_coef=0.0,reward_parts=["outcome"],credit={gamma=1.0},'
    "loss={beta=0.3,max_residual=1.0}}",
    'curriculum={enabled=true,generator="fresh",num_phases=10,tasks_per_phase=128,max_tries=4}',
    "replay.max_scored=512",
    "train.tasks_per_update=128",
    "train.group_size=1",
    "train.critic_only_updates=2",
    "train.critic_learning_rate=1e-4",
)
FLOAT32_SUMS = "sums in float32"
VARIANTS: dict[str, tuple[str, ...]] = {
    "rloo": (),
    "without graphs": ("engine.cuda_graphs=false",),
    FLOAT32_SUMS: (),
    "webrl": WEBRL,
}


class OutOfTimeError(Exception):
    """The run has no time left for another update."""


@dataclass(eq=False)
class WatchedLoop(TrainingLoop):
    """The training loop; writes down what the check sees, and replays episodes around evaluations."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    replays: list[dict[str, Any]] = field(default_factory=list)
    deadline: float = float("inf")
    num_evals: int = 0
    suspicious: float = float("inf")
    _rows_of: dict[bytes, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._parity = WatchedParity(self)

    def _update(self) -> bool:
        if time.perf_counter() > self.deadline:
            raise OutOfTimeError
        return super()._update()

    def _evaluate(self) -> EvalResult | None:
        self.num_evals += 1
        if self.num_evals % 2:
            return super()._evaluate()
        first, again = self._replay_steps(), self._replay_steps()
        result = super()._evaluate()
        with count_rows(self.components.engine._core) as self._rows_of:
            after = self._replay_steps()
        row = {"update": self.state.update, "steps": len(first)}
        row |= {"differ_again": count_differing(first, again), "differ_after": count_differing(first, after)}
        for name, steps in (("before", first), ("after", after)):
            errors = measure_errors(self.components.policy, steps) if self.is_rounded else None
            row |= {f"{name}_{key}": value for key, value in describe_errors(errors).items()}
        row["by_rows"] = (
            describe_rows(self.components.policy, after, self._rows_of) if self.is_rounded else {}
        )
        self.replays.append(row)
        return result

    @property
    def is_rounded(self) -> bool:
        return bool(self.components.policy.model.dtype == torch.bfloat16)

    def play_again(self) -> dict[str, Any]:
        """Play the episodes of this update with other states of the engine; figures of each."""
        components, steps = self.components, self._replay_steps()
        found = {"as it is": self._describe_steps(steps, steps)}
        self._publish()
        found["published again"] = self._describe_steps(steps, self._replay_steps())
        engine = components.engine
        fresh = EmbeddedEngine(components.policy.model, engine.tokenizer, self.config.engine)
        with fresh:
            runner = LocalRunner(fresh, Rollout(components.envs, components.backend.player, fresh))
            found["a new engine"] = self._describe_steps(steps, self._replay_steps(runner))
        return found

    def _describe_steps(self, first: Sequence[Step], steps: Sequence[Step]) -> dict[str, float]:
        errors = measure_errors(self.components.policy, steps)
        return {"differ": count_differing(first, steps)} | describe_errors(errors)

    def _replay_steps(self, runner: EpisodeRunner | None = None) -> list[Step]:
        """Play the next update's episodes with the present weights; they are not kept."""
        assert isinstance(self._source, PlayedSource)
        runner = runner or self.runner
        runner.forget()
        params = self.components.sampling_params(self.config.sampling.temperature)
        rolled = runner.run(self._source.jobs(self.state.update + 1), params)
        return [step for trajectory in rolled.trajectories for step in trajectory.steps]


def count_differing(first: Sequence[Step], second: Sequence[Step]) -> int:
    """Steps whose tokens or logprobs are not the same, bit for bit."""
    pairs = zip(first, second, strict=False)
    same = sum(
        a.action == b.action and a.behavior_logprobs.tobytes() == b.behavior_logprobs.tobytes()
        for a, b in pairs
    )
    return max(len(first), len(second)) - same


def describe_errors(errors: LogprobErrors | None) -> dict[str, float]:
    """How the errors of engine and trainer compare, all tokens of an update together."""
    if errors is None or not errors.num_tokens:
        return {}
    return {
        "engine_farther": errors.engine_farther,
        "standard_error": min(errors.standard_error, 1.0),
        "compared": errors.num_tokens,
        "engine_error": float(errors.engine.mean()),
        "trainer_error": float(errors.trainer.mean()),
    }


@contextmanager
def count_rows(core: EngineCore) -> Iterator[dict[bytes, list[int]]]:
    """How many rows decoded together for each token of an action; actions are named by their logprobs."""
    record, build = core._record_tokens, core._build_result
    counts: dict[int, list[int]] = {}
    found: dict[bytes, list[int]] = {}

    def note(slots: Any, tokens: Any, logprobs: Any) -> None:
        for slot in slots:
            counts.setdefault(int(slot), []).append(len(slots))
        record(slots, tokens, logprobs)

    def keep(sequence: Any, reason: Any, ids: Any, logprobs: Any) -> Any:
        found[logprobs.tobytes()] = counts.pop(sequence.slot, [])
        return build(sequence, reason, ids, logprobs)

    core._record_tokens, core._build_result = note, keep  # type: ignore[method-assign]
    try:
        yield found
    finally:
        del core._record_tokens, core._build_result


def describe_rows(policy: Any, steps: Sequence[Step], rows_of: Mapping[bytes, list[int]]) -> dict[str, Any]:
    """Both errors against float32 by the number of rows that decoded together."""
    wide = copy.copy(policy)
    wide.model = copy.deepcopy(policy.model).float()
    sides = {}
    for name, scorer in (("truth", wide), ("trainer", policy)):
        parts = [scorer.score(steps[i : i + 64]) for i in range(0, len(steps), 64)]
        sides[name] = np.concatenate([logprobs for part in parts for logprobs in part])
    engine = np.concatenate([step.behavior_logprobs for step in steps])
    rows = np.concatenate([np.array(rows_of[step.behavior_logprobs.tobytes()]) for step in steps])
    errors = LogprobErrors.against(sides["truth"], engine=engine, trainer=sides["trainer"], token_ids=rows)
    found, least = {}, 0
    for most in (1, 4, 16, 64, 128):
        chosen = (errors.token_ids > least) & (errors.token_ids <= most)
        if chosen.any():
            part = LogprobErrors(errors.engine[chosen], errors.trainer[chosen], errors.token_ids[chosen])
            found[f"{least + 1} to {most}"] = describe_errors(part)
        least = most
    return found


class WatchedParity(ParityCheck):
    """The check of a run; it writes down what it would have decided, and stops nothing."""

    def __init__(self, loop: WatchedLoop) -> None:
        super().__init__(loop.config.parity, lambda: loop.runner, loop.monitor.note)
        self._loop = loop

    def judge_gaps(self, place: str, gaps: LogprobGaps, measure_errors: MeasureErrors) -> None:
        state = self._loop.state
        row = {"update": state.update + 1, "after_eval": state.is_evaluated, "mean": gaps.mean_abs}
        row |= {"max": gaps.max_abs, "tokens": gaps.num_tokens}
        if self._loop.is_rounded:
            row |= describe_errors(measure_errors(1.0))
            if row["engine_farther"] - 0.5 > self._loop.suspicious * row["standard_error"]:
                row["again"] = self._loop.play_again()
                print(json.dumps(row), flush=True)
        if self._monitor is None:
            self._monitor = ParityMonitor(str(self._loop.runner.dtype).removeprefix("torch."))
        self._loop.rows.append(row | {"fault": self._monitor.judge_gaps(gaps, measure_errors).fault})


class PrintedNotes(Monitor):
    """Notes on standard output, figures nowhere."""

    def note(self, text: str) -> None:
        print(text, flush=True)


def train_one(args: argparse.Namespace, variant: str, seed: int, output: Path) -> None:
    """Train one run until its updates or its time are over; write what was seen to `output`."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        own = (*SETTINGS, *VARIANTS[variant], *args.set, f"seed={seed}", f"folder={folder}")
        config = load_config(args.config, own)
        set_numerics(config.num_threads)
        torch.manual_seed(seed)
        if variant == FLOAT32_SUMS:
            torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        components = Components(config, Path(folder))
        loop = WatchedLoop(config, Path(folder), components, PrintedNotes())
        loop.deadline, loop.suspicious = began + 60.0 * args.minutes, args.suspicious
        try:
            loop.run()
        except OutOfTimeError:
            print(f"out of time after {loop.state.update} updates", flush=True)
        finally:
            components.close()
    found = {"variant": variant, "seed": seed, "seconds": round(time.perf_counter() - began, 1)}
    output.write_text(json.dumps(found | {"replays": loop.replays, "updates": loop.rows}))


def train_side_by_side(args: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """One process per variant and seed; what each of them saw."""
    chosen = [(variant, seed) for variant in args.variants for seed in range(args.runs)]
    outputs = [folder / f"{variant}-{seed}.json" for variant, seed in chosen]
    return run_side_by_side(train_one, [(args, *each) for each in chosen], outputs)


def summarize(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row per variant for updates after an evaluation and for the others, and one for the replays."""
    rows = []
    for variant, group in groupby(runs, key=lambda run: run["variant"]):
        members = list(group)
        updates = [row for run in members for row in run["updates"]]
        for name, is_after in (("after an evaluation", True), ("others", False)):
            chosen = [row for row in updates if row["after_eval"] is is_after]
            rows.append({"variant": variant, "what": name} | summarize_updates(chosen))
        replays = [row for run in members for row in run["replays"]]
        totals = {key: sum(row[key] for row in replays) for key in ("steps", "differ_again", "differ_after")}
        rows.append({"variant": variant, "what": "replays", "replays": len(replays)} | totals)
        for name in dict.fromkeys(name for row in replays for name in row["by_rows"]):
            chosen = [row["by_rows"][name] for row in replays if name in row["by_rows"]]
            rows.append({"variant": variant, "what": f"{name} rows"} | average_errors(chosen))
    return rows


def summarize_updates(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Means and the largest values over some updates."""
    compared = [row for row in rows if "engine_farther" in row]
    found: dict[str, Any] = {"updates": len(rows), "stops": sum(row["fault"] is not None for row in rows)}
    if rows:
        found |= {
            "mean_gap": float(np.mean([row["mean"] for row in rows])),
            "max_gap": max(row["max"] for row in rows),
        }
    if compared:
        shares = np.array([row["engine_farther"] for row in compared])
        errors = (shares - 0.5) / np.array([row["standard_error"] for row in compared])
        ratios = [row["engine_error"] / row["trainer_error"] for row in compared]
        found |= {
            "share": float(shares.mean()),
            "share_sd": float(shares.std()),
            "share_max": float(shares.max()),
        }
        found |= {"z_mean": float(errors.mean()), "z_sd": float(errors.std()), "z_max": float(errors.max())}
        found |= {
            "error_ratio": float(np.mean(ratios)),
            "tokens": float(np.mean([row["compared"] for row in compared])),
        }
    return found


def average_errors(rows: list[dict[str, float]]) -> dict[str, float]:
    """The mean of figures, weighted by the tokens that were compared."""
    weights = [row["compared"] for row in rows]
    names = ("engine_farther", "engine_error", "trainer_error")
    means = {name: float(np.average([row[name] for row in rows], weights=weights)) for name in names}
    return means | {"compared": sum(weights)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", default="webrl", help="a preset or a TOML file")
    parser.add_argument("--set", action="append", default=[], metavar="key=value")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--runs", type=int, default=2, help="seeds of each variant, all side by side")
    parser.add_argument(
        "--suspicious", type=float, default=4.0, help="standard errors above which an update is played again"
    )
    parser.add_argument("--minutes", type=float, default=7.0, help="after which no update begins")
    add_result_options(parser, "parity_after_eval")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = train_side_by_side(args, Path(folder))
    summary = summarize(runs)
    for row in summary:
        print(json.dumps({key: round(v, 5) if isinstance(v, float) else v for key, v in row.items()}))
    write_result(args, "parity_after_eval", [*SETTINGS, *args.set], summary, runs)


if __name__ == "__main__":
    main()
