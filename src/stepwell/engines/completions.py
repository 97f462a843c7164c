"""The token-in, token-out form of `/v1/completions`: what is sent, and what may come back.

    Request ─► payload ─► server ─► pieces (one, or one per streamed chunk) ─► Reply ─► Sampled

Prompt ids go in as they are, sampled ids and their logprobs come out (`return_token_ids`, as
vLLM offers). Nothing is trusted that can be checked: a reply is refused (`EngineError`) unless
the server saw exactly the prompt that was sent, gave one finite logprob per token, and ended
for a reason we know.

Which logprobs come back is the server's choice, and a step needs those of the temperature-scaled,
untruncated distribution. vLLM has two modes, and `logprobs_needed` says which of them fits:

| temperature  | top_p | `raw` (unscaled, untruncated) | `processed` (scaled, truncated) |
|--------------|-------|-------------------------------|---------------------------------|
| 0 or 1       | 1     | right                         | right                           |
| 1            | < 1   | right                         | wrong                           |
| any other    | 1     | wrong                         | right                           |
| any other    | < 1   | wrong                         | wrong: refused                  |

Every setting that changes the distribution is sent, also where it is "off": servers fill what
is missing from the model's `generation_config.json`.
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
LEAST_TEMPERATURE = 0.01  # vLLM raises anything between 0 and this, and would not say so
PROBE_TEMPERATURE = 2.0
NUM_PROBED = 5
_LEAST_LOGPROB = -9999.0  # what servers write for minus infinity
_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


def logprobs_needed(temperature: float, top_p: float) -> Mode | None:
    """The mode whose logprobs are those of a step; None where both are. Refuses what no mode has."""
    if 0.0 < temperature < LEAST_TEMPERATURE:
        raise InputError(
            f"temperature {temperature} is below {LEAST_TEMPERATURE}, which servers raise; use 0"
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


def payload(request: Request, model: str, seed: int, max_tokens: int, stream: bool) -> dict[str, Any]:
    """The body that asks for one action."""
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


def probe(request: Request, model: str, temperature: float) -> dict[str, Any]:
    """One token after the prompt of `request`, with the most likely alternatives to it."""
    body = payload(request, model, seed=0, max_tokens=1, stream=False)
    shape = {"temperature": temperature, "top_p": 1.0, "logprobs": NUM_PROBED, "stop": [], "ignore_eos": True}
    return {**body, **shape, "return_tokens_as_token_ids": True}  # ids: two tokens may share a text


def mode_of(greedy: Any, heated: Any) -> Mode:
    """Which logprobs the server returns, from replies to `probe` at temperature 0 and at 2.

    The distance between likely tokens halves at temperature 2 if the server scales first.
    """
    cold, hot = _spread(greedy), _spread(heated)
    if cold < 0.01:
        raise EngineError(
            "cannot tell which logprobs the server returns: its tokens are equally likely; set logprobs_mode "
            'to "raw" or "processed" (vLLM: its --logprobs-mode)'
        )
    return "raw" if hot > 0.75 * cold else "processed"


def _spread(data: Any) -> float:
    choice = _only_choice(data)
    try:
        alternatives = choice["logprobs"]["top_logprobs"][0].values()
        ordered = sorted(map(float, alternatives), reverse=True)[:NUM_PROBED]
        return ordered[0] - ordered[-1]
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise EngineError(
            f"the server's top_logprobs are not in the form of a completion: {error!r}"
        ) from None


@dataclass(frozen=True, slots=True)
class Piece:
    """What one reply or one streamed chunk adds."""

    ids: list[int]
    logprobs: list[float]
    text: str
    finish: str | None
    stop_reason: int | str | None
    prompt_ids: list[int] | None


def read_piece(data: Any) -> Piece:
    """The only choice of a reply, checked in form."""
    choice = _only_choice(data)
    ids = choice.get("token_ids")
    if ids is None:
        raise EngineError(
            "the server's reply has no token_ids: it does not understand `return_token_ids`. Use a recent "
            "vLLM or another server that returns sampled ids; without them nothing can be trained on"
        )
    logprobs = _table(choice.get("logprobs")).get("token_logprobs") if ids else []
    if not isinstance(logprobs, list):
        raise EngineError("the server's reply has no logprobs.token_logprobs; does it allow logprobs?")
    if not _are_ids(ids) or len(logprobs) != len(ids):
        raise EngineError(
            f"the server's reply has {len(logprobs)} logprobs for token_ids {ids!r:.70}; ids need one each"
        )
    for value in logprobs:
        if not isinstance(value, (int, float)) or not _LEAST_LOGPROB < value <= 1e-3:
            raise EngineError(
                f"the server's reply holds the logprob {value!r}; a sampled token has one that is finite and "
                "at most 0 (vLLM: --logprobs-mode must be raw_logprobs or processed_logprobs)"
            )
    prompt = choice.get("prompt_token_ids")
    return Piece(
        ids,
        [min(float(value), 0.0) for value in logprobs],
        str(choice.get("text") or ""),
        choice.get("finish_reason"),
        choice.get("stop_reason"),
        prompt if prompt is None or _are_ids(prompt) else [],
    )


def _only_choice(data: Any) -> dict[str, Any]:
    if "error" in _table(data):
        raise EngineError(f"the server failed: {error_text(data)}")
    choices = _table(data).get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise EngineError(f"the server's reply is no completion with one choice: {json.dumps(data)[:200]}")
    return choices[0]


def _table(value: Any) -> dict[str, Any]:
    """A JSON object, or an empty one in place of anything else."""
    return value if isinstance(value, dict) else {}


def _are_ids(ids: Any) -> bool:
    return isinstance(ids, list) and all(type(token) is int and 0 <= token < 2**31 for token in ids)


def error_text(data: Any) -> str:
    """The words in an error body, whichever of the usual forms it has."""
    error = data.get("error", data) if isinstance(data, dict) else data
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or error
    return str(error)[:500]


def cached_tokens(data: Any) -> int:
    """Prompt tokens the server did not compute again, where its usage says so."""
    count = _table(_table(_table(data).get("usage")).get("prompt_tokens_details")).get("cached_tokens")
    return count if type(count) is int and count >= 0 else 0


@dataclass(slots=True, eq=False)
class Reply:
    """The answer to one request as it comes in; complete after a piece with a finish reason."""

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

    def add(self, data: Any) -> Iterator[SampledToken]:
        """Take what a reply or chunk brings; yields its tokens."""
        self.num_cached = max(self.num_cached, cached_tokens(data))
        if self.finish is not None and _table(data).get("choices") == []:
            return  # the chunk that only tells the usage
        piece = read_piece(data)
        self._check_prompt(piece.prompt_ids)
        if self.finish is not None:
            raise EngineError("the server sent more tokens after it had said that the action is finished")
        self.ids += piece.ids
        self.logprobs += piece.logprobs
        self.text += piece.text
        self.finish, self.stop_reason = piece.finish, piece.stop_reason
        yield from map(SampledToken, piece.ids, np.float32(piece.logprobs).tolist())

    def _check_prompt(self, seen: list[int] | None) -> None:
        if self._prompt_seen and seen is None:
            return
        state = self.request.state
        assert isinstance(state, TokenState)
        if seen != state.prompt_ids.tolist():
            raise EngineError(
                f"the server sampled from another prompt than it was sent ({len(state.prompt_ids)} ids sent, "
                f"{'none' if seen is None else len(seen)} returned): it must not add, cut or drop tokens"
            )
        self._prompt_seen = True

    def sampled(self, version: VersionSpan) -> Sampled:
        """The complete sample, or `EngineError` when something is missing."""
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
                f"the server gave {len(self.ids)} tokens with finish_reason {self.finish!r}, and "
                f"{self.max_tokens} were asked for"
            )
        if isinstance(self.stop_reason, str) and self.tokenizer is not None:
            whole = self.tokenizer.decode(self.ids, skip_special_tokens=False)
            if self.stop_reason not in whole:
                raise EngineError(
                    f"the server stopped at {self.stop_reason!r}, but the tokens it gave do not contain it; "
                    "does it run another tokenizer?"
                )
        assert all(map(math.isfinite, self.logprobs))  # read_piece let nothing else in
