"""The engine's core: a running batch that requests join and leave. Synchronous, no clock.

    add_request ─► waiting ─► slot (slots.py) ─► prefill, in chunks ─► decode ─► finished
                                                        ▲                   │ one token per step
                                                        └── new weights ◄───┘

One `step` admits the requests that fit, computes at most `prefill_tokens` prompt tokens, and
then samples the next token of every ready row. All but the last token of a sequence are
prefilled. The last one always goes through decoding, the only place that computes logits.

Invariants
* The order of `add_request`, `cancel`, `step` and `apply_weights` calls determines every token.
  Results do not depend on the other requests of the batch, up to the rounding of float sums.
* Weights change between steps only. Nothing cached under older weights is reused by a
  later request. A request in flight continues with the keys it has (the usual practice; its
  `policy_version` then spans both), or computes them again (`on_new_weights="recompute"`).
* A prompt that fills the context is refused. If it leaves room for fewer than `max_tokens`
  tokens, the action ends at the context's end with finish reason `length`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from stepwell.config.engine import EngineConfig
from stepwell.core.arrays import AnyArray, IntArray
from stepwell.core.errors import ContextLengthError, EngineError, InputError
from stepwell.core.protocols import Request, Sampled
from stepwell.core.step import FinishReason, Sampling, TokenAction, TokenState
from stepwell.core.versions import VersionSpan
from stepwell.engines.image_features import ImageFeatures
from stepwell.engines.kv_store import PrefixCopies
from stepwell.engines.runner import Runner
from stepwell.engines.stop_rule import StopRule, find_end_ids
from stepwell.engines.weights import check_version

_LEAST_TOP_P = float(np.finfo(np.float32).tiny)  # anything smaller would be 0 in the table and keep no token


@dataclass(slots=True, eq=False)
class _Sequence:
    request: Request
    prompt: IntArray  # as the slot table stores it
    stops: StopRule
    seed: int
    slot: int = -1
    num_cached: int = 0
    first_version: int = 0


@dataclass(slots=True)
class EngineCounts:
    """What the engine has computed: exact, and the same on every device."""

    num_steps: int = 0
    prefilled_tokens: int = 0
    decoded_tokens: int = 0
    reused_tokens: int = 0
    """Prompt tokens whose keys and values were there already, in the request's own slot or in another."""


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """A request that left the batch, with its sample."""

    id: str
    sampled: Sampled


class EngineCore:
    """Continuous batching over slots. Not thread-safe: one thread must own it."""

    def __init__(
        self, model: Any, tokenizer: Any, runner: Runner, config: EngineConfig, version: int = 0
    ) -> None:
        self.config = config
        self.version = version
        self.runner = runner
        self.table = runner.table
        self.counts = EngineCounts()
        self.max_length = runner.store.max_length
        self.image_features: ImageFeatures | None = runner.image_features
        self._tokenizer = tokenizer
        self._vocab_size = int(model.get_input_embeddings().num_embeddings)
        self._end_ids = np.array(find_end_ids(model, tokenizer), dtype=np.int64)
        self._seeds = np.random.default_rng(config.seed)
        self._waiting: dict[str, _Sequence] = {}
        self._running: dict[str, _Sequence] = {}
        self._in_slot: list[_Sequence | None] = [None] * config.slots
        self._finished: list[FinishedRequest] = []

    @property
    def is_busy(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._waiting or self._running or self._finished)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def check_request(self, request: Request) -> IntArray:
        """Return the request's prompt; raise an error that says why it cannot be served."""
        state = request.state
        if not isinstance(state, TokenState):
            raise InputError("state: the embedded engine samples from TokenState, not from arrays")
        if state.images and self.image_features is None:
            raise InputError("state.images: this engine runs a text model; use a VLM engine for images")
        if self.image_features is not None:
            self.image_features.check_prompt(state)
        prompt = state.prompt_ids
        if int(prompt.max()) >= self._vocab_size:
            raise InputError(
                f"prompt_ids contains {int(prompt.max())}, but the model's vocabulary has "
                f"{self._vocab_size} ids; was the prompt made with another tokenizer?"
            )
        if len(prompt) >= self.max_length:
            raise ContextLengthError(
                f"prompt_ids has {len(prompt)} tokens and the context holds {self.max_length}, which leaves "
                "no room for an action; shorten the history or raise max_length"
            )
        StopRule.from_params(request.params, self._tokenizer)
        return prompt

    def add_request(self, request: Request) -> None:
        """Queue a request. It joins the batch in one of the next steps."""
        prompt = self.check_request(request)
        if request.id in self._waiting or request.id in self._running:
            raise InputError(f"request id {request.id!r} is already in flight; give each request its own id")
        seed = request.params.seed
        seed = int(self._seeds.integers(2**63)) if seed is None else seed
        stops = StopRule.from_params(request.params, self._tokenizer)
        if self.image_features is not None:
            prompt = self.image_features.encode_prompt(request.state)  # type: ignore[arg-type]
        self._waiting[request.id] = _Sequence(request, prompt, stops, seed)

    def cancel(self, request_id: str) -> bool:
        """End a request now, with the tokens it has. Returns False if it is not in flight."""
        sequence = self._waiting.pop(request_id, None)
        if sequence is not None:
            sequence.first_version = self.version
            empty = (np.zeros(0, np.int32), np.zeros(0, np.float32))
            self._finished.append(self._build_result(sequence, FinishReason.CANCELLED, *empty))
            return True
        sequence = self._running.get(request_id)
        if sequence is None:
            return False
        self._finish_sequence(sequence, FinishReason.CANCELLED)
        return True

    def step(self) -> list[FinishedRequest]:
        """Advance the batch by one token; return the finished requests, in order."""
        self.counts.num_steps += 1
        with torch.inference_mode(), self.runner.on_device():
            self._admit_waiting()
            self._prefill_missing()
            ready = np.flatnonzero(self.table.busy & (self.table.length - self.table.computed == 1))
            if len(ready):
                self._record_tokens(ready, *self.runner.decode(ready))
                self.counts.decoded_tokens += len(ready)
        finished, self._finished = self._finished, []
        return finished

    def read_new_tokens(self, request_id: str, start: int) -> tuple[AnyArray, AnyArray]:
        """Return views of the tokens and logprobs of a request in flight, from `start` on."""
        sequence = self._running.get(request_id)
        if sequence is None:
            return self.table.tokens[0, :0], self.table.logprobs[0, :0]
        first = len(sequence.prompt) + start
        span = slice(first, int(self.table.length[sequence.slot]))
        return self.table.tokens[sequence.slot, span], self.table.logprobs[sequence.slot, span]

    def abort_all(self) -> None:
        """Drop everything in flight, and all caches."""
        for sequence in self._running.values():
            self.table.release_slot(sequence.slot, None)
            self._in_slot[sequence.slot] = None
        self._waiting.clear()
        self._running.clear()
        self._finished.clear()
        self.drop_cache()

    def apply_weights(self, version: int, apply: Callable[[], None]) -> None:
        """Change weights between two steps and drop what the older ones computed."""
        check_version(version, self.version)
        apply()
        with torch.inference_mode():
            self.runner.forward.refresh_weights()
        self.version = version
        self.drop_cache(recompute=self.config.on_new_weights == "recompute")

    def drop_cache(self, *, recompute: bool = False) -> None:
        """Drop keys, values and features; requests in flight keep theirs, or compute them again."""
        self.table.drop_cache(recompute)
        if self.image_features is not None:
            self.image_features.forget()

    def _admit_waiting(self) -> None:
        if not self._waiting:
            return
        store, seated = self.runner.store, list[tuple[int, int]]()
        copies = PrefixCopies(store)
        for sequence in list(self._waiting.values()):
            if len(self._running) >= self.config.max_batch_size:
                break
            placement = self.table.place_prompt(sequence.prompt, sequence.request.conversation)
            if placement is None:
                continue
            if placement.copy_from is not None:
                copies.add_copy(placement.copy_from, placement.slot, placement.num_cached)
            del self._waiting[sequence.request.id]
            self._seat_sequence(sequence, placement.slot, placement.num_cached)
            seated.append((placement.slot, placement.num_cached))
        copies.make_copies()
        if seated:
            store.positions.forget_rest(*zip(*seated, strict=True))

    def _seat_sequence(self, sequence: _Sequence, slot: int, num_cached: int) -> None:
        table, params = self.table, sequence.request.params
        limit = min(len(sequence.prompt) + params.max_tokens, self.max_length)
        table.occupy_slot(slot, sequence.prompt, limit, num_cached)
        self.counts.reused_tokens += num_cached
        table.temperature[slot], table.top_p[slot] = params.temperature, max(params.top_p, _LEAST_TOP_P)
        table.seed[slot] = np.uint64(sequence.seed % 2**64).astype(np.int64)
        table.stops_at_end[slot], table.has_stops[slot] = not params.ignore_end, sequence.stops.is_needed
        if self.image_features is not None:
            table.shift[slot] = self.image_features.seat_prompt(slot, sequence.request.state)  # type: ignore[arg-type]
        sequence.slot, sequence.num_cached, sequence.first_version = slot, num_cached, self.version
        self._running[sequence.request.id] = sequence
        self._in_slot[slot] = sequence

    def _prefill_missing(self) -> None:
        """Compute the missing tokens before each sequence's last one, oldest request first."""
        table, budget = self.table, self.config.prefill_tokens
        if not (table.busy & (table.length - table.computed > 1)).any():
            return
        slots, counts = [], []
        for sequence in self._running.values():
            missing = int(table.length[sequence.slot] - table.computed[sequence.slot]) - 1
            if missing > 0 and budget > 0:
                slots.append(sequence.slot)
                counts.append(min(missing, budget))
                budget -= counts[-1]
        order = np.argsort(slots)
        rows, amounts = np.array(slots)[order], np.array(counts)[order]
        self.runner.prefill(rows, amounts)
        table.computed[rows] += amounts
        self.counts.prefilled_tokens += int(amounts.sum())

    def _record_tokens(self, slots: AnyArray, tokens: AnyArray, logprobs: AnyArray) -> None:
        """Record one token per slot and finish the sequences that are done."""
        if np.isnan(logprobs).any():
            raise EngineError(
                f"the model of version {self.version} computed NaN logits: its weights are not finite"
            )
        table = self.table
        places = table.length[slots]
        table.tokens[slots, places] = tokens
        table.logprobs[slots, places] = logprobs
        table.length[slots] += 1
        table.computed[slots] += 1
        ended = (tokens[:, None] == self._end_ids).any(axis=1) & table.stops_at_end[slots]
        full = table.length[slots] >= table.limit[slots]
        for i in np.flatnonzero(ended | full | table.has_stops[slots]):
            sequence = self._in_slot[slots[i]]
            assert sequence is not None
            if ended[i] or (
                table.has_stops[slots[i]] and sequence.stops.is_reached(table.read_action(slots[i])[0])
            ):
                self._finish_sequence(sequence, FinishReason.STOP)
            elif full[i]:
                self._finish_sequence(sequence, FinishReason.LENGTH)

    def _finish_sequence(self, sequence: _Sequence, reason: FinishReason) -> None:
        self._finished.append(self._build_result(sequence, reason, *self.table.read_action(sequence.slot)))
        self.table.release_slot(sequence.slot, sequence.request.conversation)
        self._in_slot[sequence.slot] = None
        del self._running[sequence.request.id]

    def _build_result(
        self, sequence: _Sequence, reason: FinishReason, ids: AnyArray, logprobs: AnyArray
    ) -> FinishedRequest:
        params, mark = sequence.request.params, None
        text = ""
        if self._tokenizer is not None and len(ids):
            text = self._tokenizer.decode(ids.tolist(), skip_special_tokens=True)
        if len(ids) and self.table.computed[sequence.slot] == self.table.length[sequence.slot] - 1:
            num_read = int(self.table.computed[sequence.slot])  # the last token was sampled, but never read
            mark = self.runner.compute_mark(sequence.slot, num_read)
        for array in (ids, logprobs):
            array.setflags(write=False)  # nobody else has them: the record needs no copy
        sampled = Sampled(
            action=TokenAction(ids, text),
            logprobs=logprobs,
            sampling=Sampling(params.temperature, params.top_p, sequence.seed, reason),
            policy_version=VersionSpan(sequence.first_version, self.version),
            num_cached=sequence.num_cached,
            position_mark=mark,
        )
        return FinishedRequest(sequence.request.id, sampled)
