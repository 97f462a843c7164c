"""How commands of the documentation are made small, so that they can be run to their end on a CPU.

A command keeps all that a page says. What is appended, or changed in a copy of a study's file, is how much
there is to do: updates, tasks, demonstrations, workers, seeds, and weights where a page has SmolLM2. What is
small already stays.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stepwell.cli.command import read_settings
from stepwell.cli.main import build_parser
from stepwell.config.loading import load_config
from stepwell.config.writing import format_toml

MOST = {
    "train.num_updates": 1,
    "train.tasks_per_update": 2,
    "train.group_size": 2,
    "train.num_tasks": 8,
    "train.minibatches": 2,
    "eval.num_tasks": 2,
    "eval.samples_per_task": 1,
    "warm_start.num_demos": 8,
    "warm_start.batch_size": 8,
    "warm_start.max_updates": 1,
    "curriculum.tasks_per_phase": 8,
    "workers.simulators.num_workers": 2,
    "workers.simulators.batch_size": 2,
    "workers.generators.num_workers": 1,
}
"""The most that there may be of it; no value at all is too much as well."""
LARGE_MODEL, SMALL_MODEL = "smollm2-135m", "tiny-0.3m"  # an update of the former takes minutes of a core
FEWER_ACTIONS = {"metaworld": ("env.options.max_actions=15",)}
# The training before it, which was made small as well, has left a checkpoint of another number.
STARTS = {"examples/tool_agent.toml": ("policy.model=runs/number-warm-start/checkpoints/update-000001",)}
STUDIED = ("train.num_updates", "train.tasks_per_update", "train.num_tasks", "train.minibatches")
STUDIED += ("eval.num_tasks", "eval.samples_per_task", "warm_start.batch_size", "warm_start.max_updates")


def shrink_training(words: list[str]) -> list[str]:
    """A `train` of a page, with what makes it one small update."""
    args, behind = build_parser().parse_known_args(words)  # settings may also stand behind options
    if args.dry_run:
        return words
    if args.resume:  # it has done one update; other settings must stay
        return [*words, "train.num_updates=2"]
    config = read_settings([*(["own"] if args.env else []), *args.settings, *behind])
    smaller = [f"{key}={most}" for key, most in MOST.items() if _is_more(_get(config, key), most)]
    if config.policy.model == LARGE_MODEL:
        smaller.append(f"policy.model={SMALL_MODEL}")
    return [*words, *smaller, *FEWER_ACTIONS.get(config.env.name, ()), *STARTS.get(words[1], ())]


def shrink_study(file: Path) -> str:
    """The study of this file with one seed and one small update a run, as TOML."""
    values = tomllib.loads(file.read_text())
    values["seeds"] = values.get("seeds", [0])[:1]
    quick = values.setdefault("quick", {})
    quick["seeds"] = quick.get("seeds", values["seeds"])[:1]
    for part in (values, quick, *values.get("environments", [])):
        if "env_steps" in part or part is values:
            part["env_steps"] = 1
        if "rollouts" in part:
            part["rollouts"] = _count_siblings(values)
    if "select" in values:
        select = values["select"]
        select["seeds"], select["choices"] = select["seeds"][:1], select["choices"][:2]
        _cap(select.get("settings", {}))
    settings = values.setdefault("settings", {})
    _cap(settings)
    if "dtype" in settings.get("policy", {}):
        settings["policy"]["dtype"] = "float32"  # the cores have no bfloat16
    for key in STUDIED:
        _put(settings, key, MOST[key])
    for part in (values, *values.get("environments", [])):
        base = part.get("base")
        if base and not (file.parent / base).exists():
            own, config = part.setdefault("settings", {}), load_config(base, [])
            if config.warm_start.num_demos:
                _put(own, "warm_start.num_demos", MOST["warm_start.num_demos"])
            if config.policy.model == LARGE_MODEL:
                _put(own, "policy.model", SMALL_MODEL)
    for part in (quick, *values.get("environments", []), *values.get("variants", [])):
        _cap(part.get("settings", {}))
    return "\n".join(f"{key} = {format_toml(value)}" for key, value in values.items()) + "\n"


def _count_siblings(values: dict[str, Any]) -> int:
    """The largest group of a study: `rollouts` are shared out in whole groups."""
    parts = [values, values["quick"], *values.get("environments", []), *values.get("variants", [])]
    sizes = [part.get("settings", {}).get("train", {}).get("group_size", 1) for part in parts]
    return min(max(sizes), MOST["train.group_size"]) * MOST["train.tasks_per_update"]


def _cap(table: dict[str, Any], path: str = "") -> None:
    """Lower every setting in a table that is above its most."""
    for key, value in table.items():
        name = f"{path}{key}"
        if isinstance(value, dict):
            _cap(value, f"{name}.")
        elif name in MOST and _is_more(value, MOST[name]):
            table[key] = MOST[name]


def _is_more(value: Any, most: int) -> bool:
    return value is None or value > most


def _put(table: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    for part in path:
        table = table.setdefault(part, {})
    table[last] = min(value, table.get(last, value)) if isinstance(value, int) else value


def _get(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = getattr(config, part)
    return config


def list_study_files(root: Path) -> Iterator[tuple[str, Path]]:
    """Where each study lies for a reader in a checkout, and its file.

    A file wins over a built-in name, so that a file `steppo` is what `stepwell study steppo` runs.
    """
    for file in sorted((root / "studies").glob("*.toml")):
        yield f"studies/{file.name}", file
    for file in sorted((root / "src/stepwell/config/studies").glob("*.toml")):
        yield file.stem, file


# --- what is never run ------------------------------------------------------------------------

# Why a command cannot be run on a machine with two cores and no account anywhere.
NEVER_RUN = {
    r"^make test$": "the tests themselves",
    r"^make install$": "comes before any test: every target of make begins with it",
    r"Qwen/Qwen2\.5": "downloads a model from a hub; tests/policies/test_hub.py has a hub of its own",
    r"vllm serve|sglang\.launch_server": "a server for GPUs; scripts/test_extra_vllm.sh runs a real vLLM",
    r"^python benchmarks/peer_trl\.py": "needs TRL in an environment of its own",
    r"workers\.placement=hybrid": "needs a GPU beside the cores; tests/workers/test_placement.py",
    r"weight_transfer=collective": "needs vLLM on a GPU; tests/engines/test_weight_group.py",
}


def find_lasting_reason(words: list[str]) -> str | None:
    """Why a command is never run."""
    line = shlex.join(words)
    return next((reason for pattern, reason in NEVER_RUN.items() if re.search(pattern, line)), None)
