"""How often the rule judge is right: generated and hand-written descriptions of real states.

Each pair is a state of the environment (random boards, rooms and tables, a few moves on) and a text with a
known answer: YES where it is true and tells the state, NO where it is wrong, vague or hacked. The judge
says YES from a score of 0.7. Precision is the share of its YES that are right, recall the share of the
texts to be accepted that it accepts. Hand-written pairs are counted apart: those of `handwritten` were
looked at while the judge's rules were written, those of `unseen` were written afterwards and changed
nothing, so they say most about new wordings. `failures` lists texts judged wrongly. The generators are
beside this file, in `judge_accuracy/`. Navigation and PrimitiveSkill need MuJoCo and are left out without
it; SVG has no state that could be told, so nothing judges it.

    python benchmarks/judge_accuracy.py            # results/judge_accuracy.json, a minute or two
    python benchmarks/judge_accuracy.py --small    # a quick look; writes nothing
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from stepwell.core import StateForm
from stepwell.envs.registry import make_env
from stepwell.rewards.judge.rule import RuleJudge

HERE = Path(__file__).parent
PARTS = HERE / "judge_accuracy"
RESULT = HERE / "results" / "judge_accuracy.json"
TEXTS = {"handwritten": PARTS / "handwritten.json", "unseen": PARTS / "unseen.json"}
sys.path.insert(0, str(PARTS))

import grids  # noqa: E402
import rooms  # noqa: E402
import tables  # noqa: E402
from common import WORDS, Case  # noqa: E402

GENERATED: dict[str, Callable[[int, int], list[Case]]] = {
    "frozenlake": partial(grids.generated, "frozenlake"),
    "sokoban": partial(grids.generated, "sokoban"),
    "navigation": rooms.generated,
    "primitive_skill": tables.generated,
}
FIXED: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "frozenlake": partial(grids.best_fixed_text, "frozenlake"),
    "sokoban": partial(grids.best_fixed_text, "sokoban"),
    "navigation": rooms.best_fixed_text,
    "primitive_skill": tables.best_fixed_text,
}


def written(world: str, path: Path) -> list[Case]:
    """The hand-written texts of a file about one environment."""
    cases: list[Case] = []
    for board in json.loads(path.read_text()).get(world, []):
        truth = {StateForm(form): text for form, text in board["state"].items()}
        cases += [("written: YES", True, text, truth, WORDS) for text in board["yes"]]
        cases += [("written: NO", False, text, truth, WORDS) for text in board["no"]]
    return cases


def measure(world: str, cases: list[Case]) -> dict[str, Any]:
    judge = RuleJudge(make_env(world).description.vocabulary)
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    failures, refused = [], {}
    yes = hits = wanted = 0
    started = time.perf_counter()
    for kind, is_true, text, truth, form in cases:
        verdict = judge.judge(form, text, truth)
        said = verdict.is_yes()
        counts[kind][0] += 1
        counts[kind][1] += said == is_true
        yes, wanted, hits = yes + said, wanted + is_true, hits + (said and is_true)
        if said != is_true:
            entry = {"kind": kind, "text": text, "state": truth[StateForm.STRUCTURED], "score": verdict.score}
            failures.append(entry)
        elif kind.startswith("hacked") and kind not in refused:
            refused[kind] = {"text": text[:300], "state": truth[StateForm.STRUCTURED], "score": verdict.score}
    return {
        "num_pairs": len(cases),
        "precision": hits / yes if yes else 0.0,
        "recall": hits / wanted if wanted else 0.0,
        "microseconds_per_text": 1e6 * (time.perf_counter() - started) / len(cases),
        "by_kind": {kind: {"num": n, "right": right} for kind, (n, right) in counts.items()},
        "refused": refused,
        "failures": failures[:40],
    }


def show(results: dict[str, Any]) -> None:
    for group in ("generated", *TEXTS):
        table = Table(title=f"{group}: the rule judge's YES and NO")
        for column in ("world", "pairs", "precision", "recall", "kinds with errors"):
            table.add_column(column)
        for world, found in results[group].items():
            kinds = found["by_kind"].items()
            errors = ", ".join(
                f"{k} {v['num'] - v['right']}/{v['num']}" for k, v in kinds if v["right"] < v["num"]
            )
            figures = f"{found['precision']:.4f}", f"{found['recall']:.4f}"
            table.add_row(world, str(found["num_pairs"]), *figures, errors or "none")
        Console(width=110).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--small", action="store_true", help="few boards, for a quick look; writes nothing")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--worlds", nargs="+", choices=GENERATED, help="only these; writes nothing")
    arguments = parser.parse_args()
    has_mujoco = find_spec("mujoco") is not None
    worlds = arguments.worlds or [world for world in GENERATED if has_mujoco or world in grids.OPTIONS]
    num_states, num_texts = (20, 20) if arguments.small else (200, 250)
    results: dict[str, Any] = {"machine": {"cpu": platform.machine(), "python": platform.python_version()}}
    results["generated"] = {w: measure(w, GENERATED[w](num_states, arguments.seed)) for w in worlds}
    for group, path in TEXTS.items():
        results[group] = {w: measure(w, cases) for w in worlds if (cases := written(w, path))}
    results["fixed_text"] = {w: FIXED[w](num_texts, arguments.seed) for w in worlds}
    show(results)
    for world, fixed in results["fixed_text"].items():
        print(f"{world}: best of {num_texts} texts said in every state: {fixed['best_mean_score']:.3f}")
    if arguments.small or len(worlds) < len(GENERATED):
        found = [one for group in ("generated", *TEXTS) for one in results[group].values()]
        for failure in [failure for one in found for failure in one["failures"][:12]]:
            print(json.dumps(failure, indent=1))
    else:
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
