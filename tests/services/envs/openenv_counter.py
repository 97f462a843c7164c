"""A small environment behind OpenEnv's own server. Needs an interpreter with the package openenv-core.

    python openenv_counter.py PORT

Count to the number that the reset shows, one word at a time: "up" adds one, everything else is a failure.
"""

from __future__ import annotations

import sys
from typing import Any


def main(port: int) -> None:
    import uvicorn
    from openenv.core.env_server.http_server import create_app
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, Observation, State

    class Said(Action):
        word: str

    class Shown(Observation):
        count: int
        goal: int
        text: str

    class Counter(Environment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            super().__init__()
            self._count, self._goal = 0, 1

        def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Shown:
            self._count, self._goal = 0, 1 + (seed or 0) % 3
            return self._shown(None, False)

        def step(self, action: Said, timeout_s: float | None = None, **_: Any) -> Shown:
            if action.word != "up":
                return self._shown(-1.0, True)
            self._count += 1
            is_there = self._count == self._goal
            return self._shown(float(is_there), is_there)

        @property
        def state(self) -> State:
            return State(step_count=self._count)

        def _shown(self, reward: float | None, done: bool) -> Shown:
            text = f"{self._count} of {self._goal}"
            return Shown(count=self._count, goal=self._goal, text=text, reward=reward, done=done)

    app = create_app(Counter, Said, Shown, env_name="counter", max_concurrent_envs=8)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main(int(sys.argv[1]))
