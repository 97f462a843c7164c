"""The outcome of an episode of a user's agent: its return value or its exception, as plain data.

    returned            meaning
    None                no reward, or the one that its session got
    True, False         reward 1 or 0, and success
    a number            that reward
    a dict              "reward", "success", "step_rewards" (one per call of the model); the rest is info

Any other value is an error of the agent, and so is an exception, unless the gateway could not be reached or
failed itself: that is an error of the system. `FAILURES` lists the kinds of an agent's errors.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any
from urllib.parse import urlsplit

from stepwell.core import AgentError
from stepwell.core.user_code import MAX_ERROR, format_own_lines, iter_error_chain

FAILURES: dict[str, str] = {
    "raised": "raised an exception",
    "refused": "got an error 4xx from the gateway",
    "bad_return": "returned a value that is not a reward",
    "timed_out": "did not end in time",
    "crashed": "took its process down",
    "out_of_memory": "used too much memory",
    "no_call": "ended without a call of the model",
}
NO_REWARD = "no_reward"
"""In the info of a trajectory: the agent returned None, and nobody rewarded its session."""
MAX_INFO = 1 << 20
_CLIENTS = {"openai", "anthropic", "httpx", "httpx2", "httpcore", "httpcore2"}
_UNREACHABLE = {"APIConnectionError", "NetworkError", "TimeoutException", "RemoteProtocolError"}


class ReturnError(AgentError):
    """An agent returned a value that is not a reward."""


def read_return(value: Any) -> dict[str, Any]:
    """The fields of a result from a return value; `AgentError` if it is not one of the above."""
    if not isinstance(value, Mapping):
        return {"reward": None if value is None else read_number("what it returned", value)} | _read_success(
            value
        )
    fields: dict[str, Any] = {"reward": None}
    if value.get("reward") is not None:
        fields["reward"] = read_number("reward", value["reward"])
    if value.get("success") is not None:
        fields |= _read_success(value["success"])
        if "success" not in fields:
            raise _explain_wrong_value("success", value["success"], "True or False")
    if value.get("step_rewards") is not None:
        fields["step_rewards"] = _read_numbers("step_rewards", value["step_rewards"])
    fields["info"] = {k: v for k, v in value.items() if k not in ("reward", "success", "step_rewards")}
    _check_info(fields["info"])
    return fields


def read_number(name: str, value: Any) -> float:
    """A finite number. Scalars of numpy and torch count as numbers."""
    plain = value.item() if callable(getattr(value, "item", None)) else value
    if not isinstance(plain, Real):
        raise _explain_wrong_value(name, value, "a number, True, False, None or a dict with a 'reward'")
    try:
        number = float(plain)
    except OverflowError:  # an integer that no float holds
        number = math.inf
    if not math.isfinite(number):
        raise ReturnError(f"{name} is {number}; rewards must be finite")
    return number


def describe_failure(error: BaseException, base_url: str) -> dict[str, Any]:
    """The fields of a result from an exception."""
    is_told = isinstance(error, AgentError) and bool(str(error))  # a message that was written for the user
    text = str(error)[:MAX_ERROR] if is_told else format_own_lines(error)
    if is_infra_failure(error, base_url):
        return {"status": "infra_error", "error": text}
    return {"status": "agent_error", "error": text, "failure": _classify_failure(error, base_url)}


def _classify_failure(error: BaseException, base_url: str) -> str:
    """The kind of an exception, one of `FAILURES`."""
    if isinstance(error, ReturnError):
        return "bad_return"
    if any(isinstance(e, MemoryError) for e in iter_error_chain(error)):
        return "out_of_memory"
    gateway = urlsplit(base_url).netloc
    is_refused = any(
        400 <= _find_http_status(e) < 500 and _find_address(e) == gateway for e in iter_error_chain(error)
    )
    return "refused" if is_refused else "raised"


def is_infra_failure(error: BaseException, base_url: str) -> bool:
    """Whether the gateway was unreachable or failed, anywhere in the chain of causes.

    An agent's tools may fail to reach other servers. Errors without an address count only if no error in the
    chain has one.
    """
    failed = [
        (e, _find_address(e)) for e in iter_error_chain(error) if _is_unreachable(e) or _is_server_error(e)
    ]
    known = {address for _, address in failed if address is not None}
    return bool(failed) and (not known or urlsplit(base_url).netloc in known)


def _is_unreachable(error: BaseException) -> bool:
    return any(
        kind.__name__ in _UNREACHABLE and kind.__module__.split(".")[0] in _CLIENTS
        for kind in type(error).__mro__
    )


def _is_server_error(error: BaseException) -> bool:
    return _find_http_status(error) >= 500


def _find_http_status(error: BaseException) -> int:
    """The status of the response that an exception carries; 0 if it has none."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else 0


def _find_address(error: BaseException) -> str | None:
    """Host and port of a failed request, if known."""
    try:
        return urlsplit(str(error.request.url)).netloc  # type: ignore[attr-defined]
    except (AttributeError, RuntimeError):  # httpx raises if no request is attached
        return None


def _read_success(value: Any) -> dict[str, Any]:
    """The success, if `value` is a bool (of numpy too)."""
    plain = value.item() if callable(getattr(value, "item", None)) else value
    return {"success": plain} if isinstance(plain, bool) else {}


def _read_numbers(name: str, values: Any) -> list[float]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise _explain_wrong_value(name, values, "a list of numbers, one per call of the model")
    return [read_number(f"{name}[{at}]", value) for at, value in enumerate(values)]


def _check_info(info: Mapping[str, Any]) -> None:
    try:
        size = len(json.dumps(info, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ReturnError(f"the dict it returned must hold JSON values without NaN: {error}") from None
    if size > MAX_INFO:
        raise ReturnError(f"the dict it returned is {size} bytes of JSON; at most {MAX_INFO} are kept")


def _explain_wrong_value(name: str, value: Any, wanted: str) -> AgentError:
    return ReturnError(f"{name} is {value!r:.80} ({type(value).__name__}); it must be {wanted}")
