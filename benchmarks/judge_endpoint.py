"""A chat model that was taught to judge, asked over HTTP, beside an outcome model and the checkers.

    labelled roll-outs ─► chats (question, YES or NO) ─► `stepwell sft` ─► `stepwell serve gateway`
                                                                                   │ chat API
    roll-outs of other tasks ─► the questions that a run asks (`outcome.endpoints`) ┴► verdicts ─► figures

    python benchmarks/judge_endpoint.py --taught runs/A runs/B --runs runs/C runs/D --model smollm2-135m \
        --outcome-model runs/orm --folder runs/judge --to FILE.json --device cuda --dtype bfloat16

Truth is what the environment's checker said. Tasks that were taught are left out of the roll-outs that are
judged; of each source at most `--most` count, evenly spread. Training and serving are the package's commands,
and the judges are those that `[outcome]` of a run names. An episode without a verdict is counted, not judged.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stepwell.config.judge import EndpointConfig
from stepwell.config.outcome import OutcomeConfig
from stepwell.core.disk import atomic_write
from stepwell.core.errors import ConfigError
from stepwell.rewards.outcome_model.endpoint import ENDPOINT_LIMITS, write_messages
from stepwell.rewards.outcome_model.judges import combine_answers
from stepwell.rewards.outcome_model.measures import measure_baselines, measure_judge
from stepwell.rewards.outcome_model.question import read_question
from stepwell.runs.build.outcome_judges import build_judge
from stepwell.runs.machine import describe_machine
from stepwell.runs.outcome_model.rollouts import LabelledRollout, read_rollouts

NAME = "taught"
STEPWELL = [sys.executable, "-m", "stepwell"]


def write_chats(rollouts: Sequence[LabelledRollout], file: Path, balanced: bool) -> int:
    """One chat per roll-out; with `balanced`, the rarer verdict comes again until both are as frequent."""
    kinds = [[one for one in rollouts if one.is_success is verdict] for verdict in (True, False)]
    most = max(map(len, kinds))
    chosen = [one for kind in kinds if kind for one in (kind * (most // len(kind) + 1))[:most]]
    with file.open("w", encoding="utf-8") as out:
        for one in chosen if balanced else rollouts:
            question = write_messages(read_question(one.trajectory, ENDPOINT_LIMITS.action_chars))
            verdict = f"<answer>{'YES' if one.is_success else 'NO'}</answer>"
            chat = {"messages": [*question, {"role": "assistant", "content": verdict}]}
            out.write(json.dumps(chat) + "\n")
    return len(chosen) if balanced else len(rollouts)


def teach(args: argparse.Namespace, rollouts: Sequence[LabelledRollout]) -> dict[str, Any]:
    """Train the model on the chats by the command line; what there is already is kept."""
    chats, to = args.folder / "chats.jsonl", args.folder / "model"
    count, start = write_chats(rollouts, chats, args.balanced), time.perf_counter()
    if not (args.folder / "taught.json").exists():
        options = ["--epochs", args.epochs, "--batch-size", args.batch_size, "--learning-rate", args.rate]
        options += ["--dtype", args.dtype, "--device", args.device, "--to", to]
        subprocess.run([*STEPWELL, "sft", args.model, str(chats), *map(str, options)], check=True)
        figures = {
            "model": args.model,
            "episodes": len(rollouts),
            "solved": round(sum(one.is_success for one in rollouts) / len(rollouts), 4),
            "chats": count,
            "epochs": args.epochs,
            "batch_size": args.batch_size,
            "learning_rate": args.rate,
            "taught_in_s": round(time.perf_counter() - start, 1),
        }
        atomic_write(args.folder / "taught.json", json.dumps(figures) + "\n")
    known: dict[str, Any] = json.loads((args.folder / "taught.json").read_text())
    return known


@contextmanager
def serve(args: argparse.Namespace) -> Iterator[str]:
    """The taught model behind the gateway's chat API."""
    model = args.folder / "model"
    options = ["--model", model, "--name", NAME, "--port", 0, "--pool", args.folder / "asked.db"]
    options += ["--dtype", args.dtype, "--device", args.device]
    command = [*STEPWELL, "serve", "gateway", *map(str, options)]
    log = args.folder / "gateway.log"
    with log.open("w") as output:
        server = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ})
    try:
        yield f"{_wait_for_address(server, log)}/v1"
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(timeout=60)


def _wait_for_address(server: subprocess.Popen[bytes], log: Path) -> str:
    for _ in range(1200):
        for line in log.read_text(errors="replace").splitlines():
            if "listening on http" in line:
                return line.split("listening on ")[1].split()[0]
        if server.poll() is not None:
            break
        time.sleep(0.1)
    raise SystemExit(f"the gateway did not start:\n{log.read_text()[-2000:]}")


def judge_source(judges: dict[str, Any], rollouts: Sequence[LabelledRollout]) -> dict[str, Any]:
    """The figures of every judge on the roll-outs of one source, and of both together."""
    trajectories, answers = [one.trajectory for one in rollouts], {}
    seconds = {}
    for name, judge in judges.items():
        start = time.perf_counter()
        answers[name] = judge.judge(trajectories)
        seconds[name] = round(time.perf_counter() - start, 1)
    if len(answers) > 1:
        rows = list(zip(*answers.values(), strict=True))
        answers["mean of both"] = [combine_answers(row, "mean") for row in rows]
    return {"answers": answers, "judged_in_s": seconds}


def describe(rollouts: Sequence[LabelledRollout], answers: dict[str, list[float | None]]) -> dict[str, Any]:
    """Figures beside the checkers' verdicts."""
    labels = [one.is_success for one in rollouts]
    found: dict[str, Any] = {"episodes": len(labels), "solved": round(sum(labels) / len(labels), 4)}
    trivial = measure_baselines([one.trajectory for one in rollouts], labels)
    found["always the more frequent verdict"] = round(trivial["majority"].accuracy, 4)
    for name, given in answers.items():
        known = [(p, label) for p, label in zip(given, labels, strict=True) if p is not None]
        found[name] = {"without_verdict": len(labels) - len(known)}
        if known:
            score = asdict(measure_judge([p for p, _ in known], [label for _, label in known]))
            found[name] |= {key: value and round(value, 4) for key, value in score.items()}
    return found


def measure(args: argparse.Namespace, taught: Sequence[LabelledRollout], how: dict[str, Any]) -> None:
    """Judge every source and write the figures so far after each."""
    seen = {one.trajectory.task.id for one in taught}
    rows: list[dict[str, Any]] = []
    every: list[LabelledRollout] = []
    total: dict[str, list[float | None]] = {}
    with serve(args) as url:
        endpoint = EndpointConfig(url=url, model=NAME, max_tokens=16, max_concurrent=args.concurrent)
        names = {"endpoint": f"endpoint:{NAME}"}
        if args.outcome_model is not None:
            names["outcome model"] = f"model:{args.outcome_model}"
        judges = {
            name: build_judge(OutcomeConfig(judge=(spec,), endpoints={NAME: endpoint}, device=args.device))
            for name, spec in names.items()
        }
        for source in args.runs:
            try:
                rollouts = read_rollouts([source])
            except ConfigError as error:  # a run that failed before its first episode
                print(f"left out: {error}", flush=True)
                continue
            unseen = [one for one in rollouts if one.trajectory.task.id not in seen]
            kept = unseen[:: max(1, -(-len(unseen) // args.most))]
            if not kept:
                continue
            judged = judge_source(judges, kept)
            every += kept
            for name, given in judged["answers"].items():
                total.setdefault(name, []).extend(given)
            rows.append(
                {"source": Path(source).name, "of_unseen_tasks": len(unseen), "of_all": len(rollouts)}
                | describe(kept, judged["answers"])
                | {"judged_in_s": judged["judged_in_s"]}
            )
            print(json.dumps(rows[-1]), flush=True)
            content = {
                "how": __doc__.split("\n", maxsplit=1)[0],
                "machine": describe_machine(),
                "taught": how | {"sources": [Path(name).name for name in args.taught]},
                "sources": rows,
                "all": describe(every, total),
            }
            atomic_write(args.to, json.dumps(content, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--taught", nargs="+", required=True, help="runs or pools to learn from")
    parser.add_argument("--runs", nargs="+", default=[], help="runs or pools to judge")
    parser.add_argument(
        "--teach-only", action="store_true", help="judge nothing; the model stays in --folder"
    )
    parser.add_argument("--model", default="tiny-0.3m")
    parser.add_argument("--outcome-model", type=Path, help="a folder of `stepwell orm train`")
    parser.add_argument("--num-taught", type=int, default=1_000_000, help="of the roll-outs, drawn at random")
    parser.add_argument("--balanced", action="store_true", help="teach as many YES as NO")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--rate", type=float, default=5e-5)
    parser.add_argument("--most", type=int, default=600)
    parser.add_argument("--concurrent", type=int, default=32)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--to", type=Path, required=True)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    known = read_rollouts(args.taught)
    taught = random.Random(0).sample(known, min(args.num_taught, len(known)))
    how = teach(args, taught)
    if not args.teach_only:
        measure(args, taught, how)


if __name__ == "__main__":
    main()
