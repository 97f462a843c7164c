"""A tokenizer read from its files alone, for planning a run without transformers and torch.

`transformers` takes seconds to import. If a directory's tokenizer consists only of its `tokenizer.json` (all
built-in models, and everything saved as `TokenizersBackend`), package `tokenizers` gives the same ids and
Jinja the same texts. Other tokenizer classes modify their input; `load_tokenizer` opens those.
"""

from __future__ import annotations

import json
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

_CLASSES = ("TokenizersBackend", "PreTrainedTokenizerFast")
_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def read_plain_tokenizer(directory: Path) -> PlainTokenizer | None:
    """The tokenizer in a directory, or None if its files alone do not fully define it."""
    files = [directory / name for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")]
    if not all(file.is_file() for file in files):
        return None
    try:
        settings = json.loads(files[1].read_text(encoding="utf-8"))
        if settings.get("tokenizer_class") not in _CLASSES or "added_tokens_decoder" in settings:
            return None
        from tokenizers import Tokenizer

        core: Any = Tokenizer.from_file(str(files[0]))
    except Exception:  # `tokenizers` raises bare Exception; `load_tokenizer` reports what is damaged
        return None
    special = {name: _read_token_text(settings[name]) for name in _SPECIAL if settings.get(name)}
    if any(core.token_to_id(text) is None for text in special.values()):
        return None
    core.no_truncation()
    core.no_padding()
    return PlainTokenizer(core, special, files[2].read_text(encoding="utf-8"))


class PlainTokenizer:
    """A `ChatTokenizer` that uses package `tokenizers` directly."""

    def __init__(self, core: Any, special: dict[str, str], chat_template: str) -> None:
        self.backend_tokenizer = core
        self.chat_template = chat_template
        self.special_tokens_map = special
        self.bos_token, self.eos_token = special.get("bos_token"), special.get("eos_token")
        self.eos_token_id = None if self.eos_token is None else core.token_to_id(self.eos_token)

    @cached_property
    def added_tokens_decoder(self) -> dict[int, Any]:
        return dict(self.backend_tokenizer.get_added_tokens_decoder())

    def get_added_vocab(self) -> dict[str, int]:
        return {str(token): number for number, token in self.added_tokens_decoder.items()}

    def convert_ids_to_tokens(self, number: int) -> str:
        return str(self.backend_tokenizer.id_to_token(number))

    def encode(self, text: str, *, add_special_tokens: bool = True, **_: Any) -> list[int]:
        return list(self.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, token_ids: Any, *, skip_special_tokens: bool = False, **_: Any) -> str:
        return str(self.backend_tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens))

    def apply_chat_template(
        self,
        conversation: Any,
        *,
        tools: Any = None,
        add_generation_prompt: bool = False,
        tokenize: bool = False,
        **options: Any,
    ) -> str:
        """The text that the template writes."""
        assert not tokenize, "a plain tokenizer writes text; encode it afterwards"
        names = {**self.special_tokens_map, **options}
        return str(
            self._template.render(
                messages=conversation,
                tools=tools,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **names,
            )
        )

    @cached_property
    def _template(self) -> Any:
        """The template, compiled with what chat templates rely on: trimmed blocks and three helpers."""
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_template_error
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        return environment.from_string(self.chat_template)


def _read_token_text(token: Any) -> str:
    """A special token is stored either as its text or as an object with a content."""
    return str(token["content"] if isinstance(token, dict) else token)


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _raise_template_error(message: str) -> None:
    from jinja2 import TemplateError

    raise TemplateError(message)
