"""One run of a study, in a process of its own (`python -m stepwell.studies.worker`).

    standard input   the first line: {"config": …, "keep": …, "elsewhere": {NAME: config, …}}. It stays
                     open while the study lives. When it closes, the run stops as after Ctrl-C: it
                     finishes the present update and writes a checkpoint.
    exit code        0 the run ended or was interrupted in order; 1 it failed (`error.txt` says
                     why, the log has the traceback); 130 it was interrupted before it could save

A run folder with settings is resumed. One without (the process was killed before it wrote them) starts
again. After the summary the checkpoints that are not kept are removed.

A run that is also evaluated elsewhere (on held-out tasks of other settings) is not done before that: until
then `NAME.todo` lies beside its folder.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from stepwell.core.child_process import call_when_parent_ends, read_first_line
from stepwell.runs.interrupts import count_signals
from stepwell.studies.run_status import (
    DONE,
    ELSEWHERE_FILE,
    ERROR_FILE,
    get_todo_path,
    has_ended,
    read_status,
)


def main() -> int:
    """Run what standard input describes."""
    job = json.loads(read_first_line())
    call_when_parent_ends(lambda: os.kill(os.getpid(), signal.SIGINT))
    folder = Path(job["config"]["folder"]) / job["config"]["name"]
    error_file = folder / ERROR_FILE
    if _was_interrupted_at_imports():
        return 130
    try:
        if error_file.exists():
            error_file.unlink()
        if job["elsewhere"]:
            get_todo_path(folder).parent.mkdir(parents=True, exist_ok=True)
            get_todo_path(folder).touch()
        _train_run(job["config"], folder)
        _evaluate_elsewhere(folder, job["elsewhere"])
        _remove_checkpoints(folder, job["keep"])
        return 0
    except KeyboardInterrupt:
        return 130
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        folder.mkdir(parents=True, exist_ok=True)
        error_file.write_text(f"{type(error).__name__}: {error}\n", encoding="utf-8")
        return 1


def _was_interrupted_at_imports() -> bool:
    """Import what is heavy. An interrupt inside the import of an extension would raise another error."""
    with count_signals() as asked:
        import stepwell.runs.evaluation.evaluate
        import stepwell.runs.run  # noqa: F401
    return asked.times > 0


def _train_run(config: dict[str, Any], folder: Path) -> None:
    from stepwell.config.run import RunConfig
    from stepwell.runs.run import train

    if (folder / "config.toml").exists():
        train(resume=folder)
    else:  # `train` removes what a process left that was killed at the start
        train(RunConfig.model_validate(config))


def _evaluate_elsewhere(folder: Path, configs: dict[str, Any]) -> None:
    """Evaluate the last weights of a finished run on other held-out tasks."""
    from stepwell.config.run import RunConfig
    from stepwell.core.disk import atomic_write
    from stepwell.runs.evaluation.evaluate import evaluate_run
    from stepwell.training.checkpoint import find_latest_checkpoint

    if not configs or not has_ended(folder):
        return
    last = find_latest_checkpoint(folder / "checkpoints", print)
    assert last is not None, "a run that is over has a checkpoint"
    found = {}
    for name, values in configs.items():
        report = evaluate_run(last.path, RunConfig.model_validate(values))
        found[name] = report.result.success
    atomic_write(folder / ELSEWHERE_FILE, json.dumps(found) + "\n")
    get_todo_path(folder).unlink()


def _remove_checkpoints(folder: Path, keep: str) -> None:
    """Keep the checkpoints of a finished run that are asked for; remove the others."""
    if keep == "all" or read_status(folder) not in DONE:
        return
    for path in (folder / "checkpoints").glob("*"):
        if keep == "none" or path.name != "best":
            shutil.rmtree(path)
    (folder / "reference.safetensors").unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
