"""The token-in, token-out form of `/v1/completions`: request bodies, and checked replies.

    Request ─► build_payload ─► server ─► chunks (one, or many in a stream) ─► CompletionReply ─► Sampled

Prompt ids are sent as they are; sampled ids and their logprobs come back (`return_token_ids`, a
vLLM option). Everything that can be checked is checked: a reply is refused (`EngineError`) unless
the server saw exactly the prompt that was sent, gave one finite logprob per token, and ended
for a known reason.

The server decides which logprobs it returns, and a step needs those of the temperature-scaled,
untruncated distribution. vLLM has two modes; `choose_logprobs_mode` says which one is right:

| temperature  | top_p | `raw` (unscaled, untruncated) | `processed` (scaled, truncated) |
|--------------|-------|-------------------------------|---------------------------------|
| 0 or 1       | 1     | right                         | right                           |
| 1            | < 1   | right                         | wrong                           |
| any other    | 1     | wrong                         | right                           |
| any other    | < 1   | wrong                         | wrong: refused                  |

Every setting that changes the distribution is sent, even if it is off: servers take missing
settings from the model's `generation_config.json`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from stepwell.core.errors import EngineError, InputError
from stepwell.core.protocols import Request, Sampled
from stepwell.core.step import FinishReason, Sampling, TokenAction, TokenState
from stepwell.core.versions import VersionSpan
from stepwell.engines.token_stream import SampledToken

Mode = Literal["raw", "processed"]
LEAST_TEMPERATURE = 0.01  # vLLM silently raises anything between 0 and this
PROBE_TEMPERATURE = 2.0
NUM_PROBED = 5
_LEAST_LOGPROB = -9999.0  # servers write this for minus infinity
_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


def choose_logprobs_mode(temperature: float, top_p: float) -> Mode | None:
    """Return the mode with the logprobs that a step needs; None if both have them, an error if none has."""
    if 0.0 < temperature < LEAST_TEMPERATURE:
        raise InputError(
            f"temperature {temperature} is below {LEAST_TEMPERATURE}, and servers would raise it; use 0"
        )
    if temperature == 0.0 or (temperature == 1.0 and top_p == 1.0):
        return None
    if temperature == 1.0:
        return "raw"
    if top_p == 1.0:
        return "processed"
    raise InputError(
        f"temperature {temperature} with top_p {top_p}: no server returns logprobs of the scaled, "
        "untruncated distribution then; use temperature=1 or top_p=1"
    )


def build_payload(request: Request, model: str, seed: int, max_tokens: int, stream: bool) -> dict[str, Any]:
    """Build the request body for one action."""
    params, state = request.params, request.state
    assert isinstance(state, TokenState)
    body: dict[str, Any] = {
        "model": model,
        "prompt": state.prompt_ids.tolist(),
        "add_special_tokens": False,
        "max_tokens": max_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "seed": seed % 2**63,
        "stop": list(params.stop),
        "stop_token_ids": list(params.stop_ids),
        "ignore_eos": params.ignore_end,
        "logprobs": 0,  # of the sampled tokens alone
        "return_token_ids": True,
        "include_stop_str_in_output": True,
        "skip_special_tokens": not params.stop,  # a stop string may be a special token's text
        "top_k": 0,
        "min_p": 0.0,
        "min_tokens": 0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stream": stream,
    }
    if stream:
        body["stream_options"] = {"include_usage": True}
    return body


def build_probe(request: Request, model: str, temperature: float) -> dict[str, Any]:
    """Build a body that asks for one token after the prompt, with its most likely alternatives."""
    body = build_payload(request, model, seed=0, max_tokens=1, stream=False)
    shape = {"temperature": temperature, "top_p": 1.0, "logprobs": NUM_PROBED, "stop": [], "ignore_eos": True}
    return {**body, **shape, "return_tokens_as_token_ids": True}  # ids: two tokens may share a text


def detect_logprobs_mode(greedy: Any, sampled: Any) -> Mode:
    """Find out which logprobs the server returns, from replies to `build_probe` at temperatures 0 and 2.

    If the server scales first, the distance between likely tokens is halved at temperature 2.
    """
    cold, hot = _measure_spread(greedy), _measure_spread(sampled)
    if cold < 0.01:
        raise EngineError(
            "cannot detect which logprobs the server returns, because its tokens are equally likely; set "
            'logprobs_mode to "raw" or "processed" (vLLM: its --logprobs-mode)'
        )
    return "raw" if hot > 0.75 * cold else "processed"


def _measure_spread(data: Any) -> float:
    choice = _get_only_choice(data)
    try:
        alternatives = choice["logprobs"]["top_logprobs"][0].values()
        ordered = sorted(map(float, alternatives), reverse=True)[:NUM_PROBED]
        return ordered[0] - ordered[-1]
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise EngineError(
            f"the server's top_logprobs do not have the format of a completion: {error!r}"
        ) from None


@dataclass(frozen=True, slots=True)
class CompletionChunk:
    """The content of one reply or one streamed chunk."""

    ids: list[int]
    logprobs: list[float]
    text: str
    finish: str | None
    stop_reason: int | str | None
    prompt_ids: list[int] | None


def read_chunk(data: Any) -> CompletionChunk:
    """Read the only choice of a reply and check its format."""
    choice = _get_only_choice(data)
    ids = choice.get("token_ids")
    if ids is None:
        raise EngineError(
            "the server's reply has no token_ids: it does not support `return_token_ids`. Use a recent "
            "vLLM or another server that returns sampled ids; training needs them"
        )
    logprobs = _as_object(choice.get("logprobs")).get("token_logprobs") if ids else []
    if not isinstance(logprobs, list):
        raise EngineError("the server's reply has no logprobs.token_logprobs; does it allow logprobs?")
    if not _are_ids(ids) or len(logprobs) != len(ids):
        raise EngineError(
            f"the server's reply has {len(logprobs)} logprobs for token_ids {ids!r:.70}; each id needs one"
        )
    for value in logprobs:
        if not isinstance(value, (int, float)) or not _LEAST_LOGPROB < value <= 1e-3:
            raise EngineError(
                f"the server's reply contains the logprob {value!r}; it must be finite and at most 0 "
                "(vLLM: --logprobs-mode must be raw_logprobs or processed_logprobs)"
            )
    prompt = choice.get("prompt_token_ids")
    return CompletionChunk(
        ids,
        [min(float(value), 0.0) for value in logprobs],
        str(choice.get("text") or ""),
        choice.get("finish_reason"),
        choice.get("stop_reason"),
        prompt if prompt is None or _are_ids(prompt) else [],
    )


def _get_only_choice(data: Any) -> dict[str, Any]:
    if "error" in _as_object(data):
        raise EngineError(f"the server failed: {find_error_text(data)}")
    choices = _as_object(data).get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise EngineError(f"the server's reply is not a completion with one choice: {json.dumps(data)[:200]}")
    return choices[0]


def _as_object(value: Any) -> dict[str, Any]:
    """Return a JSON object as it is, and an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def _are_ids(ids: Any) -> bool:
    return isinstance(ids, list) and all(type(token) is int and 0 <= token < 2**31 for token in ids)


def find_error_text(data: Any) -> str:
    """Find the message in an error body of any usual format."""
    error = data.get("error", data) if isinstance(data, dict) else data
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or error
    return str(error)[:500]


def count_cached_tokens(data: Any) -> int:
    """Count the prompt tokens that the server took from its cache, if its usage says so."""
    count = _as_object(_as_object(_as_object(data).get("usage")).get("prompt_tokens_details")).get(
        "cached_tokens"
    )
    return count if type(count) is int and count >= 0 else 0


@dataclass(slots=True, eq=False)
class CompletionReply:
    """The reply to one request, built chunk by chunk; complete after a chunk with a finish reason."""

    request: Request
    seed: int
    max_tokens: int
    tokenizer: Any = None
    num_cached: int = 0
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    text: str = ""
    finish: str | None = None
    stop_reason: int | str | None = None
    _prompt_seen: bool = False

    def add_chunk(self, data: Any) -> Iterator[SampledToken]:
        """Add a reply or chunk and yield its tokens."""
        self.num_cached = max(self.num_cached, count_cached_tokens(data))
        if self.finish is not None and _as_object(data).get("choices") == []:
            return  # a chunk that only contains the usage
        chunk = read_chunk(data)
        self._check_prompt(chunk.prompt_ids)
        if self.finish is not None:
            raise EngineError("the server sent more tokens after the finish reason")
        self.ids += chunk.ids
        self.logprobs += chunk.logprobs
        self.text += chunk.text
        self.finish, self.stop_reason = chunk.finish, chunk.stop_reason
        yield from map(SampledToken, chunk.ids, np.asarray(chunk.logprobs, np.float32).tolist())

    def _check_prompt(self, seen: list[int] | None) -> None:
        if self._prompt_seen and seen is None:
            return
        state = self.request.state
        assert isinstance(state, TokenState)
        if seen != state.prompt_ids.tolist():
            raise EngineError(
                f"the server did not sample from the prompt that was sent ({len(state.prompt_ids)} ids sent, "
                f"{'none' if seen is None else len(seen)} returned); it must not add, cut or drop tokens"
            )
        self._prompt_seen = True

    def build_sample(self, version: VersionSpan) -> Sampled:
        """Build the complete sample; raises `EngineError` if something is missing."""
        self._check_end()
        params, text = self.request.params, self.text
        if self.tokenizer is not None:
            text = self.tokenizer.decode(self.ids, skip_special_tokens=True)
        return Sampled(
            action=TokenAction(np.array(self.ids, dtype=np.int32), text),
            logprobs=np.array(self.logprobs, dtype=np.float32),
            sampling=Sampling(params.temperature, params.top_p, self.seed, _REASONS[str(self.finish)]),
            policy_version=version,
            num_cached=self.num_cached,
        )

    def _check_end(self) -> None:
        if not isinstance(self.finish, str) or self.finish not in _REASONS:
            raise EngineError(
                f"the server ended the action with finish_reason {self.finish!r} after {len(self.ids)} "
                "tokens; was it stopped or paused?"
            )
        if not 1 <= len(self.ids) <= self.max_tokens or (
            self.finish == "length" and len(self.ids) != self.max_tokens
        ):
            raise EngineError(
                f"the server returned {len(self.ids)} tokens with finish_reason {self.finish!r}, but "
                f"max_tokens was {self.max_tokens}"
            )
        if isinstance(self.stop_reason, str) and self.tokenizer is not None:
            whole = self.tokenizer.decode(self.ids, skip_special_tokens=False)
            if self.stop_reason not in whole:
                raise EngineError(
                    f"the server stopped at {self.stop_reason!r}, but its tokens do not contain that text; "
                    "does it use another tokenizer?"
                )
        assert all(map(math.isfinite, self.logprobs))  # read_chunk refused anything else
