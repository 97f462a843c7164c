"""The gate of a study: what must hold before its variants may be compared.

    stepwell study FILE --gate ─► the first updates of every variant, first seed ─► passed, or what is missing

A comparison of credit says nothing while critics explain nothing, and one of rewards for seeing says nothing
while nobody sees. Both are measured in the first update that changes the policy: its rollouts are those of
the start, and its values those of a critic that has not learnt from them (`train.critic_only_updates` teaches
it before, on other rollouts of the same policy).

Invariants
* Every variant with a critic must pass, each in every environment: one that fails fails the study.
* A study that runs without having passed says so in its table, beside every figure it concerns.
"""

from __future__ import annotations

import statistics

from stepwell.config.renamed import merge_tables
from stepwell.config.study import StudyConfig
from stepwell.core.errors import ConfigError
from stepwell.studies.measures import GATE
from stepwell.studies.results import Results

_WORDS = {"explained": "the critic explains", "grounding": "descriptions are right in"}


def make_gate(study: StudyConfig) -> StudyConfig:
    """The study that `--gate` runs: the first seed, and as few updates as `gate.settings` say."""
    gate = study.gate
    if gate is None:
        raise ConfigError(f"study {study.name} has no [gate]; compare its variants without --gate")
    variants = [
        v.model_copy(
            update={"settings": merge_tables(v.settings, gate.settings), "table": "", "compare_with": None}
        )
        for v in study.variants
    ]
    return study.replace_variants("what must hold before variants are compared", study.seeds[:1], variants)


def list_failures(results: Results) -> list[str]:
    """One line per variant and environment that does not pass; empty without a gate, or if all do."""
    gate = results.study.gate
    if gate is None:
        return []
    lines = []
    for env in results.rows:
        for variant in (item.name for item in results.study.variants):
            runs = [run for run in results.runs if (run.env, run.variant) == (env, variant) and run.is_done]
            for name in GATE:
                least = getattr(gate, name)
                found = [run.gate[name] for run in runs if name in run.gate]
                if least is not None and found and (mean := statistics.fmean(found)) < least:
                    lines.append(f"{env}: {variant}: {_WORDS[name]} {mean:.2f}, below {least:g}")
    return lines
