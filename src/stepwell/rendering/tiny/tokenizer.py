"""Builds the tiny models' tokenizer: byte-level BPE, deterministic, with nothing downloaded.

Invariants
* Any text round-trips: the 256 bytes are in the vocabulary.
* A board reads the same wherever a cell stands: digits, capitals in a row, punctuation,
  newlines and spaces are cut into single characters before any merge, so the tokens of a
  cell depend on no neighbour. Only lower-case letters (with one capital before them and
  one space before that) form words, and only quotes, braces and colons, the stuff of
  JSON, may stick together.
* The words, symbols and tags of `vocabulary.py` are one token each.
* The same package gives the same bytes: the vocabulary is a function of two text files.
"""

from __future__ import annotations

import functools
import hashlib
from importlib import resources
from typing import Any

from stepwell.rendering.tiny.vocabulary import (
    END_OF_TEXT,
    SPECIAL_TOKENS,
    TAG_TOKENS,
    TURN_END,
    list_single_tokens,
)

TINY_VOCAB_SIZE = 1024
TINY_CONTEXT = 4096
SPECIAL = {"eos_token": TURN_END, "pad_token": END_OF_TEXT}

_PIECE = r""" ?(?:[A-Z][a-z]+|[a-z]{2,})|["{}:]+|[\s\S]"""


def build_tokenizer() -> Any:
    """A `transformers` tokenizer of exactly `TINY_VOCAB_SIZE` tokens with its chat template."""
    import transformers

    wrap: Any = transformers.PreTrainedTokenizerFast
    return wrap(
        tokenizer_object=build_core(),
        **SPECIAL,
        model_max_length=TINY_CONTEXT,
        clean_up_tokenization_spaces=False,
        chat_template=read_template(),
    )


def read_template() -> str:
    """The chat template."""
    return _read_packaged_text("chat.jinja").strip()


def digest_tokenizer() -> str:
    """Changes whenever the tokenizer would: part of the key under which tiny models are cached."""
    parts = (
        _read_packaged_text("corpus.txt"),
        _read_packaged_text("chat.jinja"),
        _PIECE,
        *list_single_tokens(),
        *TAG_TOKENS,
    )
    return hashlib.sha256("\0".join((*parts, str(TINY_VOCAB_SIZE))).encode()).hexdigest()[:12]


def build_core() -> Any:
    """The tokenizer as package `tokenizers` knows it, without its template."""
    from tokenizers import AddedToken, Tokenizer, models

    words = list_single_tokens()
    added = [*SPECIAL_TOKENS, *TAG_TOKENS]
    vocab, merges = _learn_vocabulary(TINY_VOCAB_SIZE - len(added), words)
    # ignore_merges: a piece that is a token of its own is taken whole, without a chain of merges.
    tokenizer = _add_splitting(Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=True)))
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in TAG_TOKENS])
    assert tokenizer.get_vocab_size() == TINY_VOCAB_SIZE
    return tokenizer


@functools.cache
def _learn_vocabulary(size: int, words: tuple[str, ...]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Bytes, then merges learned from the corpus, then the given words, `size` in all.

    How many of the words the merges produce by themselves is only known after learning
    them, so merges are taken from a longer list until the size is met.
    """
    bytes_first, merges = _train_merges(size)
    spelled = [_as_bytes(word) for word in words]
    merged = ["".join(pair) for pair in merges]
    tokens, count = {*bytes_first, *spelled}, 0
    for token in merged:
        tokens.add(token)
        if len(tokens) > size:
            break
        count += 1
    merges = merges[:count]
    vocab = list(dict.fromkeys([*bytes_first, *merged[:count], *spelled]))
    assert len(vocab) == size, "every merge adds at most one token, so the size is met exactly"
    return {token: index for index, token in enumerate(vocab)}, merges


def _train_merges(size: int) -> tuple[list[str], list[tuple[str, str]]]:
    import json

    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = _add_splitting(Tokenizer(models.BPE()))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(_read_packaged_text("corpus.txt").splitlines(keepends=True), trainer)
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return alphabet, [(left, right) for left, right in merges]


def _add_splitting(tokenizer: Any) -> Any:
    from tokenizers import Regex, decoders, pre_tokenizers

    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECE), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _as_bytes(text: str) -> str:
    """Text as the byte-level alphabet writes it (a space becomes 'Ġ')."""
    from tokenizers import pre_tokenizers

    pieces = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    return "".join(piece for piece, _ in pieces)


def _read_packaged_text(name: str) -> str:
    return resources.files("stepwell.rendering.tiny").joinpath(name).read_text(encoding="utf-8")
