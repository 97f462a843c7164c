"""Lines and numbers of a plan as text."""

from __future__ import annotations

from collections.abc import Sequence


def format_line(name: str, text: str) -> str:
    """One line of a plan; an empty name continues the line before."""
    return f"{name:<11} {text}"


def format_sizes(sizes: Sequence[int]) -> str:
    """`44, 43, 43`, or their range where there are many."""
    if len(sizes) <= 6:
        return ", ".join(map(str, sizes))
    low, high = min(sizes), max(sizes)
    return f"{low}" if low == high else f"{low} to {high}"


def format_bytes(count: float) -> str:
    """`1.2 MB`."""
    for unit in ("kB", "MB"):
        count /= 1000
        if count < 1000:
            return f"{count:.3g} {unit}"
    return f"{count / 1000:.3g} GB"
