"""The settings of a study: which runs are compared, under equal conditions.

    name = "recipes"                       a study is environments x variants x seeds
    base = "frozenlake"                    a preset, or a TOML file beside this one; optional
    seeds = [0, 1, 2]
    env_steps = 200_000                    every run ends after this many environment steps

    [settings]                             for all runs, on top of the base
    train.tasks_per_update = 128

    [[environments]]                       optional: by default that of the base
    name = "lake"
    settings = { env.options.size = 4 }

    [[variants]]
    name = "grpo"
    settings = { recipe.name = "grpo" }

    [quick]                                changes for the short form (`--quick`)
    seeds = [0]

    [select]                               what is chosen for each variant first (`--select`)

    base (the environment's, else the study's) < settings < environment < variant < quick.settings:
    later ones win

Invariants
* Names become folder names, so they are plain, and no two runs have the same one.
* Equal conditions: `env_steps` is the same for every variant, and `num_updates` is only a cap that ends a run
  whose agent has stopped acting (less than one action per episode). With `rollouts` every update of every run
  has as many trajectories: fewer tasks if groups are larger.
* A variant whose `train.num_updates` is 0 is not trained: its figures are those of the start.
* Nothing here imports torch.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from stepwell.config.base import Settings
from stepwell.config.loading import describe_toml_error, load_config
from stepwell.config.renamed import merge_tables, rename_study_keys
from stepwell.config.run import RunConfig
from stepwell.config.study_parts import (
    GateConfig,
    NamedSettings,
    QuickConfig,
    SelectConfig,
    StudyEnvConfig,
    SweepConfig,
    Table,
    VariantConfig,
)
from stepwell.config.writing import flatten_tables, format_toml
from stepwell.core.errors import ConfigError
from stepwell.core.names import suggest_name

_BARE = re.compile(r"[A-Za-z0-9_-]+")
QUIET: dict[str, Any] = {
    "monitor": {"tensorboard": False, "report": False},
    "checkpoint": {"trajectories_mb": 0.0, "credit_mb": 0.0, "keep": 1},
}
"""Defaults of a study's runs: without the files that a single run writes for people."""


class StudyConfig(NamedSettings):
    """A whole study."""

    title: str = ""
    note: str = Field("", description="text for the reader, shown above the table")
    base: str | None = Field(None, description="preset or TOML file; None: the defaults")
    seeds: tuple[int, ...] = Field((0, 1, 2), min_length=1)
    env_steps: int | None = Field(None, ge=1, description="environment steps of each run; None: no limit")
    rollouts: int | None = Field(
        None,
        ge=1,
        description="trajectories of every update, whatever the group size; None: as the settings say",
    )
    baseline: str | None = Field(
        None, description="the first variant in tables; None: the first in this file"
    )
    tables: tuple[Table, ...] = Field((), description="tables besides success")
    sweeps: tuple[SweepConfig, ...] = ()
    share_warm_start: bool = Field(True, description="runs with the same warm start make it once")
    keep: Literal["none", "best", "all"] = Field("best", description="checkpoints kept of a finished run")
    environments: tuple[StudyEnvConfig, ...] = ()
    variants: tuple[VariantConfig, ...] = Field(min_length=1)
    quick: QuickConfig = Field(default_factory=QuickConfig)
    gate: GateConfig | None = Field(None, description="what must hold before variants may be compared")
    select: SelectConfig | None = Field(
        None, description="what `--select` chooses for each variant before the runs; `--quick` skips it"
    )

    @model_validator(mode="after")
    def _check_consistency(self) -> StudyConfig:
        _check_distinct("seeds", self.seeds)
        _check_distinct("environments", [env.name for env in self.environments])
        _check_distinct("variants", [variant.name for variant in self.variants])
        known = [variant.name for variant in self.variants]
        _check_known("baseline", [self.baseline] if self.baseline else [], known)
        _check_known("quick.variants", self.quick.variants or (), known)
        envs = [env.name for env in self.environments]
        _check_known("quick.environments", self.quick.environments or (), envs)
        for variant in self.variants:
            _check_known(f"variant {variant.name}, environments", variant.environments or (), envs)
            _check_known(
                f"variant {variant.name}, compare_with",
                [variant.compare_with] if variant.compare_with else [],
                known,
            )
            chosen = [variant.choice_of] if variant.choice_of else []
            _check_known(f"variant {variant.name}, choice_of", chosen, known)
        if self.select is not None:
            _check_distinct("seeds and select.seeds together", [*self.seeds, *self.select.seeds])
            _check_distinct("select.choices", [choice.name for choice in self.select.choices])
        for sweep in self.sweeps:
            _check_known(
                f"sweep {sweep.name}", [name for line in sweep.lines.values() for name in line], known
            )
        return self

    @property
    def first(self) -> str:
        """The variant that others are compared with."""
        names = [variant.name for variant in self.variants]
        return self.baseline if self.baseline in names else names[0]

    def replace_variants(
        self, title: str, seeds: tuple[int, ...], variants: Iterable[VariantConfig]
    ) -> StudyConfig:
        """What runs before the study itself: other variants and seeds, without its tables."""
        changes = {
            "title": f"{self.title or self.name}: {title}",
            "seeds": seeds,
            "tables": (),
            "sweeps": (),
            "keep": "none",
            "environments": tuple(env.model_copy(update={"elsewhere": {}}) for env in self.environments),
            "variants": tuple(variants),
            "select": None,
        }
        return self.model_copy(update=changes)

    def shorten(self) -> StudyConfig:
        """The study that `--quick` runs."""
        quick = self.quick
        kept = quick.environments
        envs = [env for env in self.environments if kept is None or env.name in kept]
        if quick.env_steps is not None:
            envs = [env.model_copy(update={"env_steps": quick.env_steps}) for env in envs]
        variants = [item for item in self.variants if quick.variants is None or item.name in quick.variants]
        variants = [
            v.model_copy(update={"settings": merge_tables(v.settings, quick.settings)}) for v in variants
        ]
        known = {variant.name for variant in variants}
        changes = {
            "seeds": self.seeds if quick.seeds is None else quick.seeds,
            "env_steps": quick.env_steps or self.env_steps,
            "rollouts": quick.rollouts or self.rollouts,
            "sweeps": tuple(
                s for s in self.sweeps if all(known.issuperset(line) for line in s.lines.values())
            ),
            "environments": tuple(envs),
            "variants": tuple(variants),
            "quick": QuickConfig(),
            "select": None,
        }
        return self.model_copy(update=changes)


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run of a study: `lake-grpo-seed1`."""

    env: str
    variant: str
    seed: int
    config: RunConfig
    elsewhere: dict[str, RunConfig] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.env}-{self.variant}-seed{self.seed}"


def load_study(path: Path) -> StudyConfig:
    """The study that a TOML file describes; `ConfigError` lists every problem."""
    if not path.is_file():
        raise ConfigError(f"study file {str(path)!r} does not exist; give the path of a TOML file")
    try:
        text = path.read_text(encoding="utf-8-sig")
        values = tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(describe_toml_error(str(path), text, error)) from None
    try:
        return StudyConfig.model_validate(rename_study_keys(values, f"{path}: "))
    except ValidationError as error:
        problems = list(dict.fromkeys(_describe_problem(found) for found in error.errors(include_url=False)))
        if len(problems) == 1:
            raise ConfigError(f"{path}: {problems[0]}") from None
        lines = "\n".join(f"  {problem}" for problem in problems)
        raise ConfigError(f"{path}: {len(problems)} problems\n{lines}") from None


def plan_runs(
    study: StudyConfig,
    parent: Path,
    folder: Path,
    device: str | None = None,
    *,
    chosen: Mapping[str, Mapping[str, Mapping[str, Any]]] | None = None,
) -> list[PlannedRun]:
    """Every run, seed by seed, so that an unfinished study still compares all variants.

    `parent` is the folder of the study file, `folder` that of the run folders. `chosen` holds settings of an
    environment and a variant that were selected before (`studies/selection.py`).
    """
    envs = study.environments or (_make_base_env(study, _find_base(study.base, parent)),)
    runs = []
    for seed in study.seeds:
        for env in envs:
            base = _find_base(env.base or study.base, parent)
            for variant in study.variants:
                if variant.environments is not None and env.name not in variant.environments:
                    continue
                if chosen is not None:
                    selected = chosen.get(env.name, {}).get(variant.name, {})
                    settings = merge_tables(variant.settings, dict(selected))
                    variant = variant.model_copy(update={"settings": settings})
                name = f"{env.name}-{variant.name}-seed{seed}"
                own = {
                    "seed": seed,
                    "name": name,
                    "folder": str(folder),
                    "monitor": {"console": False},
                    **({"policy": {"device": device}} if device else {}),
                    **(
                        {"warm_start": {"cache": str(folder.parent / "warm")}}
                        if study.share_warm_start
                        else {}
                    ),
                }
                config = _run_config(study, base, env, variant, own)
                others = {
                    place: _run_config(study, base, env, variant, merge_tables(own, settings))
                    for place, settings in env.elsewhere.items()
                }
                runs.append(PlannedRun(env.name, variant.name, seed, config, others))
    _check_distinct("runs", [run.name for run in runs])
    return runs


def _find_base(base: str | None, parent: Path) -> str | None:
    return str(parent / base) if base is not None and (parent / base).exists() else base


def _make_base_env(study: StudyConfig, base: str | None) -> StudyEnvConfig:
    """The environment of a study that names none: that of the base and the shared settings."""
    name = load_config(base, list(_make_overrides(study.settings))).env.name
    return StudyEnvConfig(name=re.sub(r"[^A-Za-z0-9_.+-]+", "-", name))


def _run_config(
    study: StudyConfig, base: str | None, env: StudyEnvConfig, variant: VariantConfig, own: dict[str, Any]
) -> RunConfig:
    settings = merge_tables(merge_tables(merge_tables(QUIET, study.settings), env.settings), variant.settings)
    given = merge_tables(settings, own)
    where = f"study {study.name}, variant {variant.name} on {env.name}"
    budget = env.env_steps or study.env_steps
    try:
        config = load_config(base, list(_make_overrides(given)))
        if study.rollouts is not None:
            given = merge_tables(given, {"train": {"tasks_per_update": _count_tasks(study.rollouts, config)}})
            config = load_config(base, list(_make_overrides(given)))
        if budget is None:
            return config
        if "num_updates" in settings.get("train", {}):
            cap = config.train.num_updates
        elif config.train.schedule != "constant":
            raise ConfigError(
                f"train.schedule {config.train.schedule!r} needs the number of updates, which "
                "env_steps leaves open; set train.num_updates, or train.schedule to constant"
            )
        else:
            cap = math.ceil(budget / (config.train.tasks_per_update * config.train.group_size))
        limits = {"train": {"max_env_steps": budget, "num_updates": cap}}
        return load_config(base, list(_make_overrides(merge_tables(given, limits))))
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _count_tasks(rollouts: int, config: RunConfig) -> int:
    """Tasks of an update that make this many trajectories with this group size."""
    num_tasks, rest = divmod(rollouts, config.train.group_size)
    if rest or not num_tasks:
        raise ConfigError(
            f"rollouts ({rollouts}) cannot be divided into groups of {config.train.group_size} "
            "(train.group_size); give a multiple of it"
        )
    return num_tasks


def _make_overrides(settings: Mapping[str, Any]) -> Iterator[str]:
    """Tables as `key=value`; the text `none` sets a setting to None."""
    for path, value in flatten_tables(settings):
        if value == {}:
            continue
        key = ".".join(part if _BARE.fullmatch(part) else format_toml(part) for part in path)
        yield f"{key}={'none' if value == 'none' else format_toml(value, key)}"


def _check_distinct(what: str, names: Sequence[Any]) -> None:
    twice = sorted({str(name) for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{what}: {', '.join(twice)} appears twice; give each a different name")


def _check_known(what: str, names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            guess = suggest_name(name, known) or f"; there are {', '.join(known) or 'none'}"
            raise ValueError(f"{what}: unknown name {name!r}{guess}")


_TABLES: dict[str, type[Settings]] = {
    "environments": StudyEnvConfig,
    "variants": VariantConfig,
    "quick": QuickConfig,
    "sweeps": SweepConfig,
    "select": SelectConfig,
    "gate": GateConfig,
}


def _describe_problem(found: Any) -> str:
    """One problem in plain words, with its path: `variants 2 settigns: unknown key; did you mean …`."""
    path = found["loc"]
    key = " ".join(str(part + 1) if isinstance(part, int) else part for part in path)
    if found["type"] == "extra_forbidden":
        model = _TABLES.get(str(path[0]), StudyConfig) if len(path) > 1 else StudyConfig
        known = f"; known are {', '.join(model.model_fields)}"
        return f"{key}: unknown key{suggest_name(str(path[-1]), model.model_fields) or known}"
    if found["type"] == "missing":
        return f"{key}: is missing"
    if found["type"] == "value_error":
        return f"{key}: {found['ctx']['error']}" if key else str(found["ctx"]["error"])
    return f"{key}: {found['msg']}, got {found['input']!r}"
