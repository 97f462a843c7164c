"""Titles and abstracts of generated papers, from sentence patterns with slots.

Slots are the forms of a paper's facets (`{domain}`, `{task}`, ...), the form of a value that it only compares
with (`{other}`), and filler words without relevance. A paper uses one form of each facet throughout. Facets
without a value are written in words that fit any value (`VAGUE`). The tiny style has no sentences: the title
is the words of the facets, the abstract the words that are only mentioned.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

TITLES = (
    "{method} for {task} in {domain}",
    "{task} of {domain} under {setting}",
    "{method} meet {domain}: {task} with {setting}",
    "On {task} of {domain} using {method}",
    "{adjective} {task} for {domain} through {method}",
    "Towards {adjective} {task} in {domain}: the case of {setting}",
    "{domain} revisited: {method} and {setting}",
    "Learning from {domain} by {method}",
    "{setting} in {task}: lessons from {domain}",
    "{name}: {adjective} {method} for {domain}",
    "{name}: {task} in {domain} despite {setting}",
    "Do {method} help {task} of {domain}?",
)
SURVEY_TITLES = (
    "A survey of {task} in {domain}",
    "{task} for {domain}: a review of the last decade",
    "Challenges of {task} in {domain}, an overview",
)
OPENINGS = (
    "Work on {domain} has long asked for {adjective} {task}.",
    "{task} is a {adjective} step wherever {domain} are studied.",
    "Interest in {domain} grows, and {task} remains {adjective}.",
    "Practitioners who deal with {domain} rely on {task} every day.",
    "We study {task} in the context of {domain}.",
)
GAPS = (
    "Existing answers break down with {setting}.",
    "What is missing is an account of {setting}.",
    "Yet most systems ignore {setting}, which limits their use.",
    "The difficulty lies in {setting}.",
    "Our concern is {setting}, rarely treated so far.",
)
APPROACHES = (
    "We propose {name}, which builds on {method} and {loose}.",
    "The approach combines {method} with {loose}.",
    "We show how {method} can be adapted by means of {loose}.",
    "{name} rests on {method}; its parts are trained with {loose}.",
    "Starting from {method}, we derive a procedure with {loose}.",
)
COMPARISONS = (
    "We also compare against {other}.",
    "Beside {other}, a common choice, the gain is {size}.",
    "An appendix discusses {other} as an alternative.",
)
DATA = (
    "On {dataset} the error falls by {percent} percent.",
    "Experiments with {dataset} show a {size} improvement of {percent} points.",
    "Measured on {dataset}, the score rises to {percent}.",
    "The evaluation uses {dataset} and {loose}.",
)
BRIDGES = ("Some authors speak of {alias} instead.", "This is also known as {alias}.")
CLOSINGS = (
    "Code and trained weights are released.",
    "Ablations confirm the role of {loose}.",
    "The findings hold across {count} seeds.",
    "Limits of the study are discussed.",
    "We close with {count} open questions.",
    "Costs stay {size} throughout.",
)
SURVEYS = (
    "We review {count} publications on {task} in {domain} and order them by {loose}.",
    "This overview of {task} for {domain} covers {count} approaches and their {loose}.",
)
ADJECTIVES = """robust scalable reliable careful principled practical adaptive consistent rapid honest
modular unified lightweight faithful stable coherent flexible precise thorough simple"""
SIZES = "small moderate clear large modest notable marginal substantial"
LOOSE_FIRST = """auxiliary shared weighted staged cyclic blockwise layered pruned cached anchored mirrored
randomised balanced warm frozen parallel stratified coarse fine shallow"""
LOOSE_LAST = """objectives schedules buffers regularisers priors ablations templates checkpoints batches
windows thresholds penalties initialisation baselines budgets partitions protocols metrics"""
VAGUE = {
    "task": ("analysis", "automatic treatment", "data driven study"),
    "method": ("learned models", "dedicated procedures", "modern techniques"),
    "setting": ("practical constraints", "real conditions", "everyday use"),
    "dataset": ("public benchmarks", "collected samples", "our own measurements"),
}
SYLLABLES = (
    "ar bel cor dax el fin gor hal is jun kel lum mar nor or pel quo ral sol tur ul ven wis xen yor zan"
)

_ADJECTIVES, _SIZES, _LOOSE_FIRST, _LOOSE_LAST, _PARTS = (
    words.split() for words in (ADJECTIVES, SIZES, LOOSE_FIRST, LOOSE_LAST, SYLLABLES)
)


def write_full_text(
    said: Mapping[str, str], other: str, alias: str, is_survey: bool, rng: random.Random
) -> tuple[str, str]:
    """Title and abstract of a paper with the facet forms `said`; `other` and `alias` may be empty."""
    vague = {name: rng.choice(words) for name, words in VAGUE.items()}
    slots = {**vague, **said, "other": other, "alias": alias}
    first = SURVEY_TITLES if is_survey else TITLES
    parts = [rng.choice(OPENINGS)]
    if alias:
        parts.append(rng.choice(BRIDGES))
    if is_survey:
        parts.append(rng.choice(SURVEYS))
    else:
        parts += [rng.choice(GAPS), rng.choice(APPROACHES), rng.choice(DATA)]
    if other:
        parts.append(rng.choice(COMPARISONS))
    parts += rng.sample(CLOSINGS, 2)
    title = _fill_pattern(rng.choice(first), slots, rng)
    return title, " ".join(_fill_pattern(part, slots, rng) for part in parts)


def write_tiny_text(said: Mapping[str, str], other: str, alias: str) -> tuple[str, str]:
    """Words of the facets; words that are only mentioned, and of the other form, if any."""
    return " ".join(said.values()), " ".join(word for word in (other, alias) if word)


def _fill_pattern(pattern: str, slots: Mapping[str, str], rng: random.Random) -> str:
    loose = {
        "adjective": rng.choice(_ADJECTIVES),
        "size": rng.choice(_SIZES),
        "loose": f"{rng.choice(_LOOSE_FIRST)} {rng.choice(_LOOSE_LAST)}",
        "percent": f"{rng.randrange(20, 980) / 10}",
        "count": str(rng.randrange(3, 200)),
        "name": "".join(rng.choice(_PARTS) for _ in range(3)).capitalize(),
    }
    text = pattern.format_map({**loose, **slots})
    return text[0].upper() + text[1:]
