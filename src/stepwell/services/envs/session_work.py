"""What a call does in one session, in its thread or on the event loop.

Errors of the environment, and mistakes of the caller about one session, become that session's error. So do
`SystemExit` and `KeyboardInterrupt`, which would end the service: signals of the system raise nothing here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from stepwell.core import EnvError, StepwellError, Task
from stepwell.core.text import clean_texts, describe_error
from stepwell.envs.turns import Turn, play_turn, read_state
from stepwell.services.envs.sessions import EnvSession
from stepwell.services.errors import ErrorKind, ServiceError

T = TypeVar("T")


def reset_session(
    tasks: Sequence[Task] | None,
    seeds: Sequence[int] | None,
    with_state: bool,
    session: EnvSession,
    index: int,
) -> Turn:
    """Start an episode. Errors of the environment, and mistakes of the caller, become the turn's error."""
    try:
        session.num_turns, session.last = 0, None
        options = None if tasks is None else {"task": tasks[index]}
        observation, info = session.env.reset(seed=None if seeds is None else seeds[index], options=options)
        turn = Turn(observation, info=clean_texts(info))
        if with_state:
            turn.state = read_state(session.env)
        return turn
    except BaseException as error:
        return _make_failed_turn(session, error)


def step_session(
    actions: Sequence[Any], turns: Sequence[int] | None, with_state: bool, session: EnvSession, index: int
) -> Turn:
    """Play a turn, or give the last one again. Errors become the turn's, as in a reset."""
    try:
        number = session.num_turns + 1 if turns is None else turns[index]
        if number == session.num_turns and session.last is not None:
            turn = session.last
        elif number == session.num_turns + 1:
            turn = play_turn(session.env, actions[index])
            if not math.isfinite(turn.reward):
                raise EnvError(f"{session.env_name} returned the reward {turn.reward}, which is not finite")
            session.num_turns, session.last = number, turn
        else:
            raise EnvError(f"got turn {number}, but the session is at turn {session.num_turns}")
        if with_state and not turn.state:
            turn.state = read_state(session.env)
        return turn
    except BaseException as error:
        return _make_failed_turn(session, error)


def _make_failed_turn(session: EnvSession, error: BaseException) -> Turn:
    if isinstance(error, StepwellError):
        return Turn(error=error)
    return Turn(error=EnvError(f"{session.env_name} raised {describe_error(error)}"))


def ask_oracle(env: Any) -> Any:
    """The next action of an environment's oracle."""
    action = env.oracle()
    return action[None] if env.is_robot else action


def query_env(query: Callable[[Any], T], session: EnvSession, _: int) -> T:
    """Query an environment that has a task. An error there is the environment's, not the service's."""
    _ = session.env.task  # raises `InputError` before the first reset
    try:
        return query(session.env)
    except StepwellError:
        raise
    except BaseException as error:
        message = f"{session.env_name} raised {describe_error(error)}"
        raise ServiceError(ErrorKind.CONFLICT, message) from error
