"""Perplexities of the replay buffer on disk: one JSONL file per period, one trajectory per line.

    replay/update-000021.jsonl:  {"id": "traj_…", "perplexities": [1.31, 1.02, …]}

A period is a phase, or a single update where there are no phases. Its file has the number of its first
update. Perplexities are those under the policy at that time, so a run that resumes inside a period reads them
back: it no longer has those weights.

Invariant: a file appears under its name only when it is complete.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from stepwell.core import ConfigError
from stepwell.core.disk import atomic_write, make_folder_durably
from stepwell.curriculum.perplexity import ScoredTrajectory


class ScoreFiles:
    """The stored scores of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def list_updates(self) -> list[int]:
        """The first updates of the stored periods, ascending."""
        return sorted(int(path.stem.removeprefix("update-")) for path in self.folder.glob("update-*.jsonl"))

    def read_scores(self, update: int) -> list[ScoredTrajectory]:
        """The scores of the period that begins with this update."""
        path = self._find_path(update)
        try:
            lines = path.read_text(encoding="ascii").split("\n")[:-1]
            found = [json.loads(line) for line in lines]
            return [
                ScoredTrajectory(str(each["id"]), tuple(map(float, each["perplexities"]))) for each in found
            ]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{path}, the perplexities of the replay buffer, cannot be read ({error!r}); put the file "
                f"back, or resume from a checkpoint before update {update}"
            ) from error

    def write_scores(self, update: int, scored: Sequence[ScoredTrajectory]) -> None:
        """Store scores; all of them are on disk when this returns."""
        make_folder_durably(self.folder)
        lines = (json.dumps({"id": each.id, "perplexities": each.perplexities}) for each in scored)
        atomic_write(self._find_path(update), "".join(line + "\n" for line in lines))

    def remove_scores(self, after: int) -> None:
        """Remove the periods that begin after this update: they will be scored again."""
        for update in self.list_updates():
            if update > after:
                self._find_path(update).unlink()

    def _find_path(self, update: int) -> Path:
        return self.folder / f"update-{update:06d}.jsonl"
