"""Generators of a phase's tasks, for tests."""

from __future__ import annotations

from collections.abc import Iterable

from stepwell.curriculum import PhaseRequest, SourcedTask


def retry_failures(request: PhaseRequest) -> Iterable[SourcedTask]:
    """What was not solved comes again, then new tasks."""
    yield from (SourcedTask(task, parents=(task.id,)) for task in request.results.failed)
    yield from (SourcedTask(task, generator="fresh") for task in request.fresh[:2])
