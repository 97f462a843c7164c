"""A runner of captured decoding steps with capture replaced by plain calls, for machines without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stepwell.engines.graphs import GraphKey, GraphRunner


@dataclass
class Replayed:
    run: Callable[[], None]

    def replay(self) -> None:
        self.run()


class PlainGraphRunner(GraphRunner):
    num_uploads = 0

    def _capture_graph(self, key: GraphKey) -> Replayed:
        return Replayed(lambda: self._run_pass(key))

    def _wait_for_pass(self) -> None:
        """Nothing runs ahead of the host here."""

    def _upload_rows(self, slots: Any, rows: int) -> None:
        self.num_uploads += 1
        super()._upload_rows(slots, rows)
