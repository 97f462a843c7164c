"""The gateway: an agent's call becomes an exact step in the pool, and a reply.

    complete_chat / stream_chat ─► _start_call (session, prompt) ─► sampler ─► _record_steps ─► reply

`Gateway` implements `ChatBackend` and knows neither HTTP nor JSON. It builds the prompt (`prompts.py`),
samples, reads what was sampled (`replies.py`), and writes prompt ids, action ids and logprobs to the pool.

Invariants
* A reply, or the last piece of a streamed one, is sent only after its steps are committed.
* What the client sees is read from the sampled ids (`replies.py`), never the other way round.
* A call that fails records nothing. An engine failure is noted with the session: it is the system's fault,
  not the agent's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from functools import partial

from stepwell.config.gateway import GatewayConfig
from stepwell.core import (
    JSON,
    ContextLengthError,
    FinishReason,
    InfraError,
    InputError,
    RenderError,
    Sampled,
    Sampler,
    Step,
    TokenAction,
)
from stepwell.pool import Pool
from stepwell.rendering import Message, Renderer
from stepwell.services.errors import ErrorKind, ServiceError
from stepwell.services.gateway.base import BaseGateway, check_messages
from stepwell.services.gateway.chat import (
    ChatCompletion,
    ChatRequest,
    ChoiceFinish,
    CompletionChoice,
    GatewayCaller,
    ImageDecoder,
    StreamItem,
    TokenLogprob,
)
from stepwell.services.gateway.choice_stream import ChoiceStream, take_first_bytes
from stepwell.services.gateway.dialects.images import decode_image
from stepwell.services.gateway.history import RecordedTurn
from stepwell.services.gateway.prompt_threads import PromptThreads, find_prompt_limit
from stepwell.services.gateway.prompts import PendingCall, PromptBuilder
from stepwell.services.gateway.replies import IncrementalReader, VisibleReply, read_reply
from stepwell.services.gateway.step_info import build_step_info
from stepwell.services.gateway.streams import merge_streams
from stepwell.services.gateway.token_bytes import TokenDecoder

_log = logging.getLogger(__name__)
_PIECE = 8  # tokens per piece when a whole reply is replayed


class Gateway(BaseGateway):
    """Answers calls from one sampler and records them in one pool. Implements `ChatBackend`."""

    def __init__(
        self,
        sampler: Sampler,
        renderer: Renderer,
        pool: Pool,
        config: GatewayConfig | None = None,
        *,
        adjust: Callable[[str, ChatRequest], ChatRequest] | None = None,
    ) -> None:
        super().__init__(pool, config, prompt_extra=renderer.report.ending.prompt_extra)
        self.adjust = adjust  # (session, request) -> request: a trainer sets the sampling
        self.sampler = sampler
        self.renderer = renderer
        context = renderer.context_length or getattr(sampler, "max_length", None)
        self._prompt_builder = PromptBuilder(renderer, self.config, context)
        longest = find_prompt_limit(renderer.template.tokenizer, context)
        self._prompts = PromptThreads(self.config.max_waiting_prompts, longest)
        self._tokens = TokenDecoder(renderer.template.tokenizer)

    @property
    def image_decoder(self) -> ImageDecoder | None:
        """Decodes images if the policy can see."""
        return None if self.renderer.image_format is None else self._decode_image

    def _decode_image(self, raw: bytes, kind: str, param: str) -> str:
        return self.renderer.image_store.add(decode_image(raw, kind, self.config.max_pixels, param))

    async def complete_chat(self, caller: GatewayCaller, chat: ChatRequest) -> ChatCompletion:
        call = await self._start_call(caller, chat)
        try:
            samples = await self._sample_choices(call)
            replies = [self._read_sample(call, sample) for sample in samples]
            return await self._record_steps(call, samples, replies)
        finally:
            call.session.end_call()

    async def stream_chat(self, caller: GatewayCaller, chat: ChatRequest) -> AsyncGenerator[StreamItem, None]:
        call = await self._start_call(caller, chat)
        try:
            if getattr(self.sampler, "stream", None) is None:
                pieces = self._replay_samples(call)
            else:
                pieces = self._stream_samples(call)
            async with aclosing(pieces) as items:
                async for item in items:
                    yield item
        finally:
            call.session.end_call()

    async def count_tokens(self, caller: GatewayCaller, chat: ChatRequest) -> int:
        """Number of prompt tokens, rendered as a new conversation."""
        try:
            messages = check_messages(chat.messages or (), with_images=self.image_decoder is not None)
            size = self._prompts.check_size(chat)
            rendered = await self._prompts.run(size, lambda: self.renderer.start(messages, chat.tools))
            return int(rendered.prompt_ids.size)
        except (InputError, RenderError, ContextLengthError) as error:
            raise ServiceError(ErrorKind.INVALID, str(error), param="messages") from error

    async def stop(self) -> None:
        """Stop the watch and the threads."""
        await super().stop()
        self._prompts.close()

    async def is_ready(self) -> bool:
        """Whether calls can be served now: the pool responds, and so does the engine if it can be asked."""
        ready = getattr(self.sampler, "ready", None)
        if ready is not None:
            await ready()
        return await super().is_ready()

    def collect_metrics(self) -> dict[str, JSON]:
        counts = self.renderer.counts
        restarts: dict[str, JSON] = {kind.value: number for kind, number in counts.restarts.items()}
        prompts: dict[str, JSON] = {"started": counts.num_started, "extended": counts.num_extended}
        return {**super().collect_metrics(), "prompts": {**prompts, "restarted": restarts}}

    async def _start_call(self, caller: GatewayCaller, chat: ChatRequest) -> PendingCall:
        """Everything before sampling. Counts the call as running."""
        self._check_request(chat)
        session = await self.registry.get_or_open(caller)
        if self.adjust is not None:
            chat = self.adjust(session.id, chat)
        first = session.begin_call(chat.num_choices)
        try:
            size = self._prompts.check_size(chat)
            match = self._prompt_builder.match_history(chat, session)
            build = partial(self._prompt_builder.build_call, caller, chat, session, first, match)
            return await self._prompts.run(size, build)
        except ContextLengthError as error:
            session.end_call()
            param = "messages" if chat.messages is not None else "prompt"
            raise ServiceError(ErrorKind.INVALID, str(error), param=param) from error
        except (InputError, RenderError) as error:
            session.end_call()
            raise ServiceError(ErrorKind.INVALID, str(error)) from error
        except BaseException:
            session.end_call()
            raise

    async def _sample_choices(self, call: PendingCall) -> list[Sampled]:
        try:
            return await self.sampler.generate(call.requests)
        except Exception as error:
            raise _explain_engine_error(call, error) from error

    async def _replay_samples(self, call: PendingCall) -> AsyncGenerator[StreamItem, None]:
        """For a sampler that cannot stream: sample everything, then send it in pieces."""
        samples = await self._sample_choices(call)
        replies = [self._read_sample(call, sample) for sample in samples]
        completion = await self._record_steps(call, samples, replies)
        for choice, sample in zip(completion.choices, samples, strict=True):
            choice_stream = self._open_choice_stream(call, choice.index)
            ids, logprobs = _get_action_ids(sample), sample.logprobs.tolist()
            for start in range(0, len(ids), _PIECE):
                piece = slice(start, start + _PIECE)
                for delta in choice_stream.feed(ids[piece], logprobs[piece]):
                    yield delta
            for delta in choice_stream.finish(ids)[1]:
                yield delta
        yield completion

    async def _stream_samples(self, call: PendingCall) -> AsyncGenerator[StreamItem, None]:
        streams = [self._open_choice_stream(call, index) for index in range(len(call.requests))]
        samples: dict[int, Sampled] = {}
        stream = self.sampler.stream  # type: ignore[attr-defined]  # checked by the caller
        try:
            async with aclosing(merge_streams([stream(request) for request in call.requests])) as items:
                async for index, item in items:
                    if isinstance(item, Sampled):
                        samples[index] = item
                    else:
                        for delta in streams[index].feed([item.id], [item.logprob]):
                            yield delta
        except ServiceError:
            raise
        except Exception as error:
            raise _explain_engine_error(call, error) from error
        ordered = [samples[index] for index in range(len(streams))]
        ended = [one.finish(_get_action_ids(sample)) for one, sample in zip(streams, ordered, strict=True)]
        completion = await self._record_steps(call, ordered, [visible for visible, _ in ended])
        for _, deltas in ended:
            for delta in deltas:
                yield delta
        yield completion

    def _open_choice_stream(self, call: PendingCall, index: int) -> ChoiceStream:
        reader = IncrementalReader(self.renderer, *call.reading_options)
        tokens = self._tokens if call.chat.num_top_logprobs is not None else None
        return ChoiceStream(index, reader, tokens, self.renderer.end_ids)

    def _read_sample(self, call: PendingCall, sample: Sampled) -> VisibleReply:
        return read_reply(self.renderer, _get_action_ids(sample), *call.reading_options)

    async def _record_steps(
        self, call: PendingCall, samples: Sequence[Sampled], replies: Sequence[VisibleReply]
    ) -> ChatCompletion:
        """Turn samples into steps and commit them. Only then may the call be answered."""
        session = call.session
        session.refuse_if_over()
        steps: list[Step] = []
        turns: list[RecordedTurn] = []
        for choice, (sample, visible) in enumerate(zip(samples, replies, strict=True)):
            reply = self._build_reply(call, visible)
            step = sample.step(call.state)
            step.info = build_step_info(call.record, choice, reply, _get_text(sample))
            steps.append(step)
            turns.append(self._build_turn(call, choice, sample, reply))
        for turn in turns:
            session.history.add(turn)
        session.note_branch(call.first, call.record.branch)
        if call.record.supersedes is not None:
            session.superseded.add(call.record.supersedes)
        await self.registry.write_steps(session, call.first, steps)
        for turn in turns:
            turn.is_delivered = True
        session.last_infra_error = ""
        return self._build_completion(call, samples, replies)

    def _build_reply(self, call: PendingCall, visible: VisibleReply) -> Message | None:
        """The sampled turn as a message. It starts with the text that the generation prompt opened."""
        if call.rendered is None:
            return None
        return Message.assistant(self.renderer.report.ending.prompt_extra + visible.text, visible.tool_calls)

    def _build_turn(
        self, call: PendingCall, choice: int, sample: Sampled, reply: Message | None
    ) -> RecordedTurn:
        turn = RecordedTurn(call.first + choice, call.first, call.chat.id, call.record.parent)
        if call.rendered is not None and call.match is not None:
            recorded = self.renderer.record(call.rendered, _get_action(sample).action_ids, reply)
            turn.messages, turn.tools = recorded.messages, call.rendered.tools
            turn.normal_form = call.match.normal_form
            turn.record(recorded)
        return turn

    def _build_completion(
        self, call: PendingCall, samples: Sequence[Sampled], replies: Sequence[VisibleReply]
    ) -> ChatCompletion:
        num_actions = sum(sample.action.num_units for sample in samples)
        num_prompt = int(call.state.prompt_ids.size)
        call.session.num_prompt_tokens += num_prompt
        call.session.num_action_tokens += num_actions
        choices = tuple(
            CompletionChoice(
                index,
                visible.text,
                _find_finish(sample, visible),
                visible.tool_calls,
                visible.stop_string,
                self._list_visible_tokens(call, sample, visible),
            )
            for index, (sample, visible) in enumerate(zip(samples, replies, strict=True))
        )
        num_cached = min(sample.num_cached for sample in samples)
        return ChatCompletion(
            call.chat.id,
            int(time.time()),
            self.config.model_name,
            choices,
            num_prompt,
            num_cached,
            num_actions,
            call.session.id,
        )

    def _list_visible_tokens(
        self, call: PendingCall, sample: Sampled, visible: VisibleReply
    ) -> tuple[TokenLogprob, ...]:
        """Tokens of the reply if logprobs were requested, without end token and stop string."""
        if call.chat.num_top_logprobs is None:
            return ()
        ids = _get_action_ids(sample)
        while ids and ids[-1] in self.renderer.end_ids:
            ids.pop()
        tokens = [
            self._tokens.decode_token(*pair) for pair in zip(ids, sample.logprobs.tolist(), strict=False)
        ]
        if visible.stop_string is not None:
            tokens = take_first_bytes(tokens, len(visible.text.encode(errors="replace")))
        return tuple(tokens)


def _explain_engine_error(call: PendingCall, error: Exception) -> ServiceError:
    if isinstance(error, ServiceError):
        return error
    if isinstance(error, (InputError, ContextLengthError)):
        return ServiceError(ErrorKind.INVALID, str(error))
    call.session.note_infra_error(error)
    if isinstance(error, (InfraError, OSError)):
        return ServiceError(ErrorKind.UNAVAILABLE, f"the engine is not available: {error}", retry_after_s=1.0)
    _log.error("sampling failed", exc_info=error)
    return ServiceError(ErrorKind.INTERNAL, f"sampling failed: {type(error).__name__}")


def _get_action(sample: Sampled) -> TokenAction:
    assert isinstance(sample.action, TokenAction)
    return sample.action


def _get_action_ids(sample: Sampled) -> list[int]:
    ids: list[int] = _get_action(sample).action_ids.tolist()
    return ids


def _get_text(sample: Sampled) -> str:
    return _get_action(sample).text


def _find_finish(sample: Sampled, visible: VisibleReply) -> ChoiceFinish:
    if visible.tool_calls:
        return ChoiceFinish.TOOL_CALLS
    if visible.stop_string is not None:
        return ChoiceFinish.STOP_STRING
    return ChoiceFinish.LENGTH if sample.sampling.finish_reason is FinishReason.LENGTH else ChoiceFinish.END
