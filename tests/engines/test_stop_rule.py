"""Ends of actions: end tokens, stop ids, stop strings over token boundaries, limits."""

from __future__ import annotations

from typing import Any

import pytest
from tests.engines.models import VOCAB, generate_alone, prompts_of, small_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from stepwell.config.engine import EngineConfig
from stepwell.core.errors import ContextLengthError, InputError
from stepwell.core.protocols import Request, Sampled, SamplingParams
from stepwell.core.step import ArrayState, FinishReason, ImageSpan, TokenState
from stepwell.engines.embedded import EmbeddedEngine


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token per character of a small alphabet, plus specials: boundaries are everywhere."""
    alphabet = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .,;:!?-+*/=()[]{}<>@#$%&_'~^"
    vocab = {"<pad>": 0, "<s>": 1, "</s>": 2}
    for char in pre_tokenizers.ByteLevel.alphabet():
        if char in alphabet or char == "Ġ":
            vocab[char] = len(vocab)
    vocab = dict(list(vocab.items())[:VOCAB])
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )


@pytest.fixture(scope="module")
def engine() -> Any:
    with EmbeddedEngine(small_model("llama"), byte_tokenizer(), EngineConfig(max_batch_size=4)) as engine:
        yield engine


PROMPT = prompts_of([9], seed=4)[0]


def ask(engine: EmbeddedEngine, prompt: list[int] = PROMPT, **params: Any) -> Sampled:
    params = {"max_tokens": 30, "temperature": 0.0, "ignore_end": True, **params}
    return engine.generate_blocking([Request(TokenState(prompt), SamplingParams(**params))])[0]


def test_the_text_is_the_decoded_action(engine: EmbeddedEngine) -> None:
    got = ask(engine)
    ids = got.action.action_ids.tolist()
    assert got.action.text == engine.tokenizer.decode(ids, skip_special_tokens=True) != ""
    assert got.sampling.finish_reason is FinishReason.LENGTH and len(ids) == 30


@pytest.mark.parametrize("size", [1, 3, 5])
def test_a_stop_string_ends_the_action_at_the_token_that_completes_it(
    engine: EmbeddedEngine, size: int
) -> None:
    free = ask(engine)
    text = engine.tokenizer.decode(free.action.action_ids.tolist())
    stop = text[6 : 6 + size]
    end = text.index(stop) + size  # one character per token
    got = ask(engine, stop=("never there", stop))
    assert got.action.action_ids.tolist() == free.action.action_ids.tolist()[:end]
    assert got.sampling.finish_reason is FinishReason.STOP and got.action.text.endswith(stop)
    assert len(got.logprobs) == end


def test_a_stop_string_in_the_prompt_does_not_count(engine: EmbeddedEngine) -> None:
    stop = engine.tokenizer.decode(PROMPT)
    assert len(ask(engine, stop=(stop,)).action.action_ids) == 30


def test_a_stop_string_longer_than_the_action_is_never_reached(engine: EmbeddedEngine) -> None:
    text = engine.tokenizer.decode(ask(engine).action.action_ids.tolist())
    got = ask(engine, stop=(text + "x",))
    assert got.sampling.finish_reason is FinishReason.LENGTH


def test_a_stop_id_ends_the_action_and_belongs_to_it(engine: EmbeddedEngine) -> None:
    free = ask(engine).action.action_ids.tolist()
    got = ask(engine, stop_ids=(free[7],))
    assert got.action.action_ids.tolist() == free[: free.index(free[7]) + 1]
    assert got.sampling.finish_reason is FinishReason.STOP


def test_the_models_end_token_ends_the_action_unless_ignored() -> None:
    model = small_model("llama")
    free = generate_alone(model, PROMPT, 12)
    model.generation_config.eos_token_id = [2, free[5]]
    first = free.index(free[5])
    with EmbeddedEngine(model) as engine:
        got = ask(engine, ignore_end=False)
        assert got.action.action_ids.tolist() == free[: first + 1] == generate_alone(model, PROMPT, 12)
        assert got.sampling.finish_reason is FinishReason.STOP
        assert ask(engine, ignore_end=True, max_tokens=12).action.action_ids.tolist() == free


def test_a_special_token_can_be_a_stop_string(engine: EmbeddedEngine) -> None:
    special = engine.tokenizer.decode([2])
    found = [ask(engine, prompt, stop=(special,), temperature=2.0, seed=i, max_tokens=100) for i, prompt in
             enumerate(prompts_of([5] * 6, seed=8))]  # fmt: skip
    stopped = [got for got in found if got.sampling.finish_reason is FinishReason.STOP]
    assert stopped, "no sample drew the end token; choose other seeds"
    for got in stopped:
        assert got.action.action_ids.tolist().index(2) == len(got.action.action_ids) - 1
        assert special not in got.action.text


def test_an_action_that_meets_the_end_of_the_context_is_cut_and_says_so() -> None:
    with EmbeddedEngine(small_model("llama"), config=EngineConfig(max_length=16)) as engine:
        got = ask(engine, PROMPT, max_tokens=50)
        assert len(got.action.action_ids) == 16 - len(PROMPT)
        assert got.sampling.finish_reason is FinishReason.LENGTH


def test_a_prompt_that_fills_the_context_is_refused_with_the_numbers() -> None:
    with EmbeddedEngine(small_model("llama"), config=EngineConfig(max_length=16)) as engine:
        with pytest.raises(ContextLengthError, match="prompt_ids has 16 tokens and the context holds 16"):
            ask(engine, prompts_of([16])[0])
        assert len(ask(engine, prompts_of([15])[0]).action.action_ids) == 1


def test_requests_the_engine_cannot_serve_are_refused_by_name(engine: EmbeddedEngine) -> None:
    with pytest.raises(InputError, match=f"prompt_ids contains {VOCAB}"):
        ask(engine, [4, VOCAB])
    with pytest.raises(InputError, match="TokenState"):
        engine.generate_blocking([Request(ArrayState({}))])
    image = TokenState([4, 5], (ImageSpan("ab" * 16, 0, 1),))
    with pytest.raises(InputError, match=r"state\.images"):
        engine.generate_blocking([Request(image)])
    with pytest.raises(InputError, match="same id"):
        engine.generate_blocking([Request(TokenState([4]), id="x"), Request(TokenState([5]), id="x")])
    with EmbeddedEngine(small_model("llama")) as bare, pytest.raises(InputError, match="need a tokenizer"):
        ask(bare, stop=("x",))
