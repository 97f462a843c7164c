"""Reward functions as a user writes them, for tests."""

from __future__ import annotations

from stepwell.rewards import StepOutcome

SEEN: list[StepOutcome] = []


def brevity(step: StepOutcome) -> float:
    return -len(step.text) / 100


def count_turn(step: StepOutcome) -> int:
    SEEN.append(step)
    return step.turn


def divide_by_zero(step: StepOutcome) -> float:
    return 1 / (len(step.text) - len(step.text))


def overflow(step: StepOutcome) -> float:
    return float("inf")


def say(step: StepOutcome) -> str:
    return "1.0"


async def wait(step: StepOutcome) -> float:
    return 0.0


def compare(step: StepOutcome, other: StepOutcome) -> float:
    return 0.0


NUMBER = 3
