"""The gateway: an agent's call becomes an exact step in the pool, and an answer.

    answer / stream ─► _begin: session ─► `Prompter`: prompt, requests ─► sampler ─► _record: step ─► reply

`Gateway` is what dialects see (`Answering`) and knows neither HTTP nor JSON. It has a call's prompt made
(`prompting.py`), samples, reads what was sampled (`reading.py`), and writes prompt ids, action ids and
logprobs to the pool.

Invariants
* A reply, or the last piece of a streamed one, is given only after its steps are committed.
* What the client sees is read from the sampled ids (`reading.py`) and never the other way round.
* A call that fails records nothing. An engine that fails is noted with the session: it is the system's
  failure, not the agent's.
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
from stepwell.services.gateway.dialects.pictures import decoded
from stepwell.services.gateway.exchange import (
    Answer,
    Ask,
    Caller,
    Choice,
    Delta,
    Finish,
    Kind,
    Refused,
    See,
    Token,
)
from stepwell.services.gateway.history import Turn
from stepwell.services.gateway.keeper import Keeper, checked_messages
from stepwell.services.gateway.notes import note
from stepwell.services.gateway.outflow import Outflow, first_bytes
from stepwell.services.gateway.prompt_threads import PromptThreads, find_prompt_limit
from stepwell.services.gateway.prompting import Call, Prompter
from stepwell.services.gateway.reading import LiveReader, Reading, read
from stepwell.services.gateway.streams import merged
from stepwell.services.gateway.token_bytes import TokenReader

_log = logging.getLogger(__name__)
_PIECE = 8  # tokens per piece of an answer that was sampled as a whole


class Gateway(Keeper):
    """Answers calls from one sampler and keeps them in one pool. Implements `Answering`."""

    def __init__(
        self,
        sampler: Sampler,
        renderer: Renderer,
        pool: Pool,
        config: GatewayConfig | None = None,
        *,
        tags: Sequence[str] = (),
        adjust: Callable[[str, Ask], Ask] | None = None,
    ) -> None:
        super().__init__(pool, config, prompt_extra=renderer.report.ending.prompt_extra, tags=tags)
        self.adjust = adjust  # (session, ask) to what is sampled instead: a trainer decides on temperature
        self.sampler = sampler
        self.renderer = renderer
        context = renderer.context_length or getattr(sampler, "max_length", None)
        self._prompter = Prompter(renderer, self.config, context)
        longest = find_prompt_limit(renderer.template.tokenizer, context)
        self._prompts = PromptThreads(self.config.max_waiting_prompts, longest)
        self._tokens = TokenReader(renderer.template.tokenizer)

    @property
    def see(self) -> See | None:
        """Takes pictures where the policy sees."""
        return None if self.renderer.image_format is None else self._take_picture

    def _take_picture(self, raw: bytes, kind: str, param: str) -> str:
        return self.renderer.pictures.add(decoded(raw, kind, self.config.max_pixels, param))

    async def answer(self, caller: Caller, ask: Ask) -> Answer:
        call = await self._begin(caller, ask)
        try:
            samples = await self._sample(call)
            return await self._record(call, samples, [self._read(call, sample) for sample in samples])
        finally:
            call.session.end_call()

    async def stream(self, caller: Caller, ask: Ask) -> AsyncGenerator[Delta | Answer, None]:
        call = await self._begin(caller, ask)
        try:
            if getattr(self.sampler, "stream", None) is None:
                pieces = self._in_pieces(call)
            else:
                pieces = self._live(call)
            async with aclosing(pieces) as items:
                async for item in items:
                    yield item
        finally:
            call.session.end_call()

    async def count_tokens(self, caller: Caller, ask: Ask) -> int:
        """Tokens of a prompt, as a conversation of its own."""
        try:
            messages = checked_messages(ask.messages or (), with_images=self.see is not None)
            rendered = await self._prompts.make(ask, lambda: self.renderer.start(messages, ask.tools))
            return int(rendered.prompt_ids.size)
        except (InputError, RenderError, ContextLengthError) as error:
            raise Refused(Kind.INVALID, str(error), param="messages") from error

    async def stop(self) -> None:
        """Stop watching and let go of the threads."""
        await super().stop()
        self._prompts.close()

    async def is_ready(self) -> bool:
        """Whether calls can be served now: the pool answers, and the engine if it can be asked."""
        ready = getattr(self.sampler, "ready", None)
        if ready is not None:
            await ready()
        return await super().is_ready()

    def counts(self) -> dict[str, JSON]:
        counts = self.renderer.counts
        restarts: dict[str, JSON] = {kind.value: number for kind, number in counts.restarts.items()}
        prompts: dict[str, JSON] = {"started": counts.num_started, "extended": counts.num_extended}
        return {**super().counts(), "prompts": {**prompts, "restarted": restarts}}

    async def _begin(self, caller: Caller, ask: Ask) -> Call:
        """Everything before sampling; counts the call as running."""
        self._refuse_impossible(ask)
        session = await self.registry.of(caller)
        if self.adjust is not None:
            ask = self.adjust(session.id, ask)
        first = session.begin_call(ask.num_choices)
        try:
            place = self._prompter.place(ask, session)
            make = partial(self._prompter.call, caller, ask, session, first, place)
            return await self._prompts.make(ask, make)
        except ContextLengthError as error:
            session.end_call()
            param = "messages" if ask.messages is not None else "prompt"
            raise Refused(Kind.INVALID, str(error), param=param) from error
        except (InputError, RenderError) as error:
            session.end_call()
            raise Refused(Kind.INVALID, str(error)) from error
        except BaseException:
            session.end_call()
            raise

    async def _sample(self, call: Call) -> list[Sampled]:
        try:
            return await self.sampler.generate(call.requests)
        except Exception as error:
            raise _engine_refusal(call, error) from error

    async def _in_pieces(self, call: Call) -> AsyncGenerator[Delta | Answer, None]:
        """A sampler that cannot be watched: the whole answer, handed out in pieces."""
        samples = await self._sample(call)
        answer = await self._record(call, samples, [self._read(call, sample) for sample in samples])
        for choice, sample in zip(answer.choices, samples, strict=True):
            out = self._outflow(call, choice.index)
            ids, logprobs = _ids(sample), sample.logprobs.tolist()
            for start in range(0, len(ids), _PIECE):
                for delta in out.feed(ids[start : start + _PIECE], logprobs[start : start + _PIECE]):
                    yield delta
            for delta in out.rest(ids)[1]:
                yield delta
        yield answer

    async def _live(self, call: Call) -> AsyncGenerator[Delta | Answer, None]:
        outs = [self._outflow(call, index) for index in range(len(call.requests))]
        samples: dict[int, Sampled] = {}
        stream = self.sampler.stream  # type: ignore[attr-defined]  # whether it is there was asked before
        try:
            async with aclosing(merged([stream(request) for request in call.requests])) as items:
                async for index, item in items:
                    if isinstance(item, Sampled):
                        samples[index] = item
                    else:
                        for delta in outs[index].feed([item.id], [item.logprob]):
                            yield delta
        except Refused:
            raise
        except Exception as error:
            raise _engine_refusal(call, error) from error
        ended = [out.rest(_ids(samples[out.index])) for out in outs]
        answer = await self._record(
            call, [samples[out.index] for out in outs], [reading for reading, _ in ended]
        )
        for _, deltas in ended:
            for delta in deltas:
                yield delta
        yield answer

    def _outflow(self, call: Call, index: int) -> Outflow:
        reader = LiveReader(self.renderer, *call.reading_options)
        tokens = self._tokens if call.ask.num_top_logprobs is not None else None
        return Outflow(index, reader, tokens, self.renderer.end_ids)

    def _read(self, call: Call, sample: Sampled) -> Reading:
        return read(self.renderer, _ids(sample), *call.reading_options)

    async def _record(self, call: Call, samples: Sequence[Sampled], readings: Sequence[Reading]) -> Answer:
        """Make steps of what was sampled and commit them; then it may be answered."""
        session = call.session
        session.refuse_if_over()
        steps: list[Step] = []
        turns: list[Turn] = []
        for choice, (sample, reading) in enumerate(zip(samples, readings, strict=True)):
            reply = self._reply(call, reading)
            step = sample.step(call.state)
            step.info = note(call.note, choice, reply, _text(sample))
            steps.append(step)
            turns.append(self._turn(call, choice, sample, reply))
        for turn in turns:
            session.history.add(turn)
        session.note_branch(call.first, call.note.branch)
        if call.note.supersedes is not None:
            session.superseded.add(call.note.supersedes)
        await self.registry.write(session, call.first, steps)
        for turn in turns:
            turn.is_delivered = True
        session.last_infra_error = ""
        return self._answer(call, samples, readings)

    def _reply(self, call: Call, reading: Reading) -> Message | None:
        """The sampled turn as a message of the conversation, which begins with what the prompt opened."""
        if call.rendered is None:
            return None
        return Message.assistant(self.renderer.report.ending.prompt_extra + reading.text, reading.tool_calls)

    def _turn(self, call: Call, choice: int, sample: Sampled, reply: Message | None) -> Turn:
        turn = Turn(call.first + choice, call.first, call.ask.id, call.note.parent)
        if call.rendered is not None and call.place is not None:
            recorded = self.renderer.record(call.rendered, _action(sample).action_ids, reply)
            turn.messages, turn.tools, turn.plain = recorded.messages, call.rendered.tools, call.place.plain
            turn.record(recorded)
        return turn

    def _answer(self, call: Call, samples: Sequence[Sampled], readings: Sequence[Reading]) -> Answer:
        num_actions = sum(sample.action.num_units for sample in samples)
        num_prompt = int(call.state.prompt_ids.size)
        call.session.num_prompt_tokens += num_prompt
        call.session.num_action_tokens += num_actions
        choices = tuple(
            Choice(
                index,
                reading.text,
                _finish(sample, reading),
                reading.tool_calls,
                reading.stop_string,
                self._seen_tokens(call, sample, reading),
            )
            for index, (sample, reading) in enumerate(zip(samples, readings, strict=True))
        )
        num_cached = min(sample.num_cached for sample in samples)
        return Answer(
            call.ask.id,
            int(time.time()),
            self.config.model_name,
            choices,
            num_prompt,
            num_cached,
            num_actions,
            call.session.id,
        )

    def _seen_tokens(self, call: Call, sample: Sampled, reading: Reading) -> tuple[Token, ...]:
        """Tokens of the answer where logprobs were asked for: neither end token nor stop string."""
        if call.ask.num_top_logprobs is None:
            return ()
        ids = _ids(sample)
        while ids and ids[-1] in self.renderer.end_ids:
            ids.pop()
        tokens = [self._tokens.token(*pair) for pair in zip(ids, sample.logprobs.tolist(), strict=False)]
        if reading.stop_string is not None:
            tokens = first_bytes(tokens, len(reading.text.encode(errors="replace")))
        return tuple(tokens)


def _engine_refusal(call: Call, error: Exception) -> Refused:
    if isinstance(error, Refused):
        return error
    if isinstance(error, (InputError, ContextLengthError)):
        return Refused(Kind.INVALID, str(error))
    call.session.note_infra_error(error)
    if isinstance(error, (InfraError, OSError)):
        return Refused(Kind.UNAVAILABLE, f"the engine cannot answer now: {error}", retry_after_s=1.0)
    _log.error("sampling failed", exc_info=error)
    return Refused(Kind.INTERNAL, f"sampling failed: {type(error).__name__}")


def _action(sample: Sampled) -> TokenAction:
    assert isinstance(sample.action, TokenAction)
    return sample.action


def _ids(sample: Sampled) -> list[int]:
    ids: list[int] = _action(sample).action_ids.tolist()
    return ids


def _text(sample: Sampled) -> str:
    return _action(sample).text


def _finish(sample: Sampled, reading: Reading) -> Finish:
    if reading.tool_calls:
        return Finish.TOOL_CALLS
    if reading.stop_string is not None:
        return Finish.STOP_STRING
    return Finish.LENGTH if sample.sampling.finish_reason is FinishReason.LENGTH else Finish.END
