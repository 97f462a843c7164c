"""The tokenizer of the built-in tiny models, made offline from text we wrote.

`vocabulary.py` lists the words that must be one token, `corpus.txt` is what the rest of
the vocabulary is learned from, `chat.jinja` is the chat template, `tokenizer.py` puts
them together.
"""

from stepwell.rendering.tiny.tokenizer import TINY_CONTEXT, TINY_VOCAB_SIZE, build_tokenizer, digest_tokenizer

__all__ = ["TINY_CONTEXT", "TINY_VOCAB_SIZE", "build_tokenizer", "digest_tokenizer"]
