"""Phases of a run for its report: results, what became of the tasks that were made, and their family tree.

Read from `phases/phase-0002.json` of the run's folder, one object per phase.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepwell.core.errors import EncodingError

FOLDER = "phases"
MAX_TREES, MAX_NODES = 12, 200
_TABLES = (
    ("success by family", "families"),
    ("by required turns", "required_turns"),
    ("by number of requirements", "requirements"),
)
_COUNTS = (("tasks used", "kept"), ("tasks dropped", "dropped"), ("failures", "errors"))


@dataclass(slots=True)
class TreeNode:
    """A task and the tasks that were made from it."""

    task: dict[str, Any]
    phase: int
    children: list[TreeNode] = field(default_factory=list)

    @property
    def size(self) -> int:
        return 1 + sum(child.size for child in self.children)


def read_phases(folder: Path) -> list[dict[str, Any]]:
    """The summaries of a run's phases, in order; empty if it has none."""
    found = []
    for path in sorted((folder / FOLDER).glob("phase-*.json")):
        try:
            found.append(json.loads(path.read_text(encoding="ascii")))
        except (OSError, ValueError) as error:
            raise EncodingError(f"{path} cannot be read ({error})") from error
    return found


def build_trees(phases: list[dict[str, Any]]) -> list[TreeNode]:
    """The largest family trees; a task hangs below the first of its parents that is known."""
    nodes: dict[str, TreeNode] = {}
    roots: list[TreeNode] = []
    for summary in phases:
        for task in summary["tasks"]:
            node = TreeNode(task, int(summary["phase"]))
            parents = [nodes[each] for each in task["parents"] if each in nodes and each != task["id"]]
            (parents[0].children if parents else roots).append(node)
            nodes.setdefault(task["id"], node)
    grown = sorted((root for root in roots if root.children), key=lambda root: -root.size)
    return _limit_trees(grown)


def tabulate_phases(phases: list[dict[str, Any]]) -> dict[str, Any]:
    """What a page shows of phases: tables as (title, name, row names), bins of perplexities, and trees."""
    return {
        "phases": phases,
        "phase_tables": [(title, name, _list_rows(phases, name)) for title, name in _TABLES],
        "phase_counts": [(title, name, _list_rows(phases, name)) for title, name in _COUNTS],
        "perplexity_bins": _describe_bins(phases[0]["perplexities"]["edges"]) if phases else [],
        "trees": build_trees(phases),
    }


def _list_rows(phases: list[dict[str, Any]], table: str) -> list[str]:
    """The row names of a table over all phases, in order of first appearance."""
    return list(dict.fromkeys(name for summary in phases for name in summary[table]))


def _describe_bins(edges: list[float]) -> list[str]:
    """The bins of a histogram of perplexities in words."""
    return [
        f"{low:.2f} to {high:.2f}" if high is not None else f"above {low:.2f}"
        for low, high in zip(edges, [*edges[1:], None], strict=True)
    ]


def _limit_trees(trees: list[TreeNode]) -> list[TreeNode]:
    shown, left = [], MAX_NODES
    for tree in trees[:MAX_TREES]:
        if tree.size > left:
            break
        left -= tree.size
        shown.append(tree)
    return shown or trees[:1]
