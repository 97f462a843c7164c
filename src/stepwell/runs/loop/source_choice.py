"""Which source a run learns from: its workers, a pool filled earlier, or episodes played now."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from stepwell.curriculum import TaskFeed
from stepwell.runs.build.components import Components
from stepwell.runs.loop.sources import PlayedSource, Source, StoredSource

if TYPE_CHECKING:
    from stepwell.runs.build.worker_groups import WorkerGroups


def choose_source(
    components: Components,
    run: str,
    feed: TaskFeed,
    workers: WorkerGroups | None,
    *,
    is_stopping: Callable[[], bool],
    note: Callable[[str], None],
) -> Source:
    """The source that settings ask for. `is_stopping` ends the wait for episodes of workers."""
    config = components.config
    if workers is not None:
        from stepwell.runs.loop.async_source import StreamedSource

        return StreamedSource(config, components, run, feed, workers, is_stopping, note=note)
    if config.offline.pool is None:
        return PlayedSource(config, components, run, feed)
    source = StoredSource(config, components.recipe)
    note(f"offline: {source.num_trajectories} trajectories of {config.offline.pool}")
    return source
