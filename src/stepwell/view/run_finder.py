"""Finds what to show: runs, folders of runs, studies and pools, named so that every name is used once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stepwell.core.errors import InputError
from stepwell.core.names import suggest_file
from stepwell.monitors.jsonl import FILE_NAME as METRICS
from stepwell.view.run_files import ViewedRun

MAX_RUNS = 200


@dataclass(eq=False)
class RunIndex:
    """The runs of a view, by name. `refresh` finds those that were added to its folders since."""

    places: Sequence[str]
    runs: dict[str, ViewedRun] = field(default_factory=dict)
    studies: dict[str, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.refresh()
        if not self.runs and not self.studies:
            guess = "".join(
                suggest_file(place) for place in self.places if not Path(place).expanduser().exists()
            )
            raise InputError(
                f"there is no run and no pool in {', '.join(self.places)}; give run folders, a folder of "
                f"runs, a study's folder or a pool{guess}"
            )

    def refresh(self) -> None:
        """Look for new runs; those that are known stay."""
        known = {run.folder for run in self.runs.values()}
        for place in self.places:
            path = Path(place).expanduser()
            if _is_pool(place):
                if path not in known:
                    self._add(ViewedRun(path.name.removesuffix(".db") or place, path, pool_place=place))
                continue
            if (path / "results.json").is_file() and (path / "table.md").is_file():
                self.studies.setdefault(path.name, path)
            for folder in _find_folders(path):
                if folder not in known and len(self.runs) < MAX_RUNS:
                    self._add(ViewedRun(folder.name, folder))

    def _add(self, run: ViewedRun) -> None:
        name, number = run.name, 2
        while name in self.runs:
            name, number = f"{run.name}-{number}", number + 1
        run.name = name
        self.runs[name] = run

    def close(self) -> None:
        for run in self.runs.values():
            run.close()


def _is_pool(place: str) -> bool:
    path = Path(place).expanduser()
    has_run = (path / METRICS).exists() or (path / "config.toml").exists()
    return "://" in place or path.suffix == ".db" or ((path / "pool.db").is_file() and not has_run)


def _find_folders(path: Path) -> list[Path]:
    """The run folders at or below a folder, at most two levels deep, in order of their names."""
    if _is_run(path):
        return [path]
    found = [file.parent for pattern in ("*", "*/*") for file in path.glob(f"{pattern}/config.toml")]
    return sorted(folder for folder in found if _is_run(folder))


def _is_run(folder: Path) -> bool:
    return (folder / METRICS).is_file() or (folder / "config.toml").is_file()
