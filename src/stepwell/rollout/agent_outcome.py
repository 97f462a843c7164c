"""What an episode of a user's agent came to: its return value or its exception, as plain data.

    returned            done with
    None                no reward: the session's own, if it was given any, or none
    True, False         reward 1 or 0, and success
    a number            that reward
    a dict              "reward", "success", "step_rewards" (one per call of the model), the rest is info

Anything else is the agent's error, and so is whatever it raises, except where the gateway could
not be reached or answered with an error of its own: that is the system's doing.
"""

from __future__ import annotations

import json
import math
import os
import traceback
from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from typing import Any
from urllib.parse import urlsplit

from stepwell.core import AgentError

_OURS = os.path.join(os.path.dirname(__file__), "agent_")
NUM_LINES, MAX_ERROR, MAX_INFO = 12, 2000, 1 << 20
_CLIENTS = {"openai", "anthropic", "httpx", "httpx2", "httpcore", "httpcore2"}
_UNREACHABLE = {"APIConnectionError", "NetworkError", "TimeoutException", "RemoteProtocolError"}


def read_return(value: Any) -> dict[str, Any]:
    """The fields of a result that a return value says; `AgentError` where it says none."""
    if not isinstance(value, Mapping):
        return {"reward": None if value is None else number_of("what it returned", value)} | _success(value)
    fields: dict[str, Any] = {"reward": None}
    if value.get("reward") is not None:
        fields["reward"] = number_of("reward", value["reward"])
    if value.get("success") is not None:
        fields |= _success(value["success"])
        if "success" not in fields:
            raise _wrong("success", value["success"], "True or False")
    if value.get("step_rewards") is not None:
        fields["step_rewards"] = _numbers("step_rewards", value["step_rewards"])
    fields["info"] = {k: v for k, v in value.items() if k not in ("reward", "success", "step_rewards")}
    _check_info(fields["info"])
    return fields


def number_of(name: str, value: Any) -> float:
    """A finite number; numpy's and torch's scalars count as one."""
    plain = value.item() if callable(getattr(value, "item", None)) else value
    if not isinstance(plain, Real):
        raise _wrong(name, value, "a number, True, False, None or a dict with a 'reward'")
    try:
        number = float(plain)
    except OverflowError:  # an integer that no float holds
        number = math.inf
    if not math.isfinite(number):
        raise AgentError(f"{name} is {number}; rewards must be finite")
    return number


def failure_of(error: BaseException, base_url: str) -> dict[str, Any]:
    """The fields of a result that an exception says."""
    status = "infra_error" if is_infra(error, base_url) else "agent_error"
    is_told = isinstance(error, AgentError) and bool(str(error))  # our own words, or words meant for us
    return {"status": status, "error": str(error)[:MAX_ERROR] if is_told else last_lines(error)}


def is_infra(error: BaseException, base_url: str) -> bool:
    """Whether the gateway was unreachable or failed, anywhere in the chain of causes.

    An agent's tools may fail to reach other places. Inner errors often do not say where they
    wanted to go; they count only where nobody in the chain does.
    """
    failed = [(e, _address_of(e)) for e in chain_of(error) if _is_unreachable(e) or _is_server_error(e)]
    known = {address for _, address in failed if address is not None}
    return bool(failed) and (not known or urlsplit(base_url).netloc in known)


def chain_of(error: BaseException) -> Iterator[BaseException]:
    """An exception, its causes, contexts and members, each once."""
    waiting, seen = [error], set()
    while waiting:
        at = waiting.pop()
        if id(at) in seen:
            continue
        seen.add(id(at))
        yield at
        members = at.exceptions if isinstance(at, BaseExceptionGroup) else ()
        waiting += [e for e in (at.__cause__, at.__context__, *members) if e is not None]


def last_lines(error: BaseException) -> str:
    """The end of a traceback, which begins in the agent's code."""
    at = error.__traceback__
    while at is not None and at.tb_frame.f_code.co_filename.startswith(_OURS):
        at = at.tb_next
    text = "".join(traceback.format_exception(type(error), error, at))
    lines = [line for line in text.splitlines() if line.strip()]
    return "\n".join(lines[-NUM_LINES:])[-MAX_ERROR:]


def _is_unreachable(error: BaseException) -> bool:
    return any(
        kind.__name__ in _UNREACHABLE and kind.__module__.split(".")[0] in _CLIENTS
        for kind in type(error).__mro__
    )


def _is_server_error(error: BaseException) -> bool:
    status = getattr(getattr(error, "response", None), "status_code", None)
    return isinstance(status, int) and status >= 500


def _address_of(error: BaseException) -> str | None:
    """Host and port that a failed request went to, where it says so."""
    try:
        return urlsplit(str(error.request.url)).netloc  # type: ignore[attr-defined]
    except (AttributeError, RuntimeError):  # httpx raises where no request is attached
        return None


def _success(value: Any) -> dict[str, Any]:
    """A success, where `value` is a truth value, numpy's included."""
    plain = value.item() if callable(getattr(value, "item", None)) else value
    return {"success": plain} if isinstance(plain, bool) else {}


def _numbers(name: str, values: Any) -> list[float]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise _wrong(name, values, "a list of numbers, one per call of the model")
    return [number_of(f"{name}[{at}]", value) for at, value in enumerate(values)]


def _check_info(info: Mapping[str, Any]) -> None:
    try:
        size = len(json.dumps(info, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise AgentError(f"the dict it returned must hold JSON values without NaN: {error}") from None
    if size > MAX_INFO:
        raise AgentError(f"the dict it returned is {size} bytes of JSON; at most {MAX_INFO} are kept")


def _wrong(name: str, value: Any, wanted: str) -> AgentError:
    return AgentError(f"{name} is {value!r:.80} ({type(value).__name__}); it must be {wanted}")
