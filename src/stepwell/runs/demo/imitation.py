"""Imitation beside a run, on a core of its own (`python -m stepwell.runs.demo.imitation`).

    standard input   the first line: the run's settings as JSON. It stays open while the run learns; when
                     it closes (also because the run was killed), imitation ends.
    standard output  one line of JSON: {"success", "num_tasks", "num_updates", "num_demos", "wall_s"}

Both start at the same moment from the same first weights and demonstrations, with one core each, so that
both had the same time on the same machine.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from types import TracebackType
from typing import Any

from stepwell.config.run import RunConfig
from stepwell.core.child_process import ChildProcess, call_when_parent_ends, read_first_line
from stepwell.core.errors import StepwellError
from stepwell.core.fork_server import MODEL_MODULES

_MANY, _END_S = 1_000_000, 60.0


class ImitationBeside:
    """Imitates while the `with` block runs; `result` waits for its evaluation."""

    def __init__(self, config: RunConfig) -> None:
        self._process = ChildProcess(
            [sys.executable, "-m", __name__], pipe_output=True, imports=MODEL_MODULES
        )
        self._process.send_line(config.model_dump_json())

    def __enter__(self) -> ImitationBeside:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._process.stdin.close()
        else:
            self._process.kill()

    def result(self) -> dict[str, Any]:
        """What it solved. Call it after the block."""
        assert self._process.stdout is not None
        output = self._process.stdout.read()  # until it ends
        self._process.wait(_END_S)
        if self._process.kill() != 0:
            raise StepwellError(f"imitation beside the demo failed: it {self._process.describe_end()}")
        result: dict[str, Any] = json.loads(output)
        return result


def main() -> None:
    """Imitate until standard input ends, then evaluate and print the result."""
    config = RunConfig.model_validate_json(read_first_line())
    is_over = threading.Event()
    call_when_parent_ends(is_over.set)
    print(json.dumps(imitate_until(config, is_over)), flush=True)


def imitate_until(config: RunConfig, is_over: threading.Event) -> dict[str, Any]:
    """Imitation of the run's demonstrations, from the run's first weights, until `is_over`."""
    from stepwell.policies.numerics import set_numerics
    from stepwell.runs.build.components import Components
    from stepwell.runs.evaluation.evaluate import evaluate
    from stepwell.training import imitate

    started = time.perf_counter()
    set_numerics(config.num_threads)
    components, warm = Components(config), config.warm_start
    shown = components.demonstrations(warm.num_demos, warm.noise, config.seed, warm.demos_per_task)
    endless = warm.model_copy(update={"epochs": _MANY, "max_updates": None})
    number = 0
    for number, _ in enumerate(imitate(components.policy, shown, endless, config.seed), start=1):  # noqa: B007
        if is_over.is_set():
            break
    wall_s = time.perf_counter() - started
    components.engine.load_weights(1, components.policy.model_weights())
    tasks = components.held_out_tasks()
    success = evaluate(components, tasks, temperature=config.eval.temperature).success
    components.close()
    return {
        "success": success,
        "num_tasks": len(tasks),
        "num_updates": number,
        "num_demos": len(shown),
        "wall_s": wall_s,
    }


if __name__ == "__main__":
    main()
