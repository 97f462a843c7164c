"""Chat templates in the manner of the common model families, in our own words, with tokenizers to match."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

CHATML = """
{%- for m in messages -%}
{%- if loop.first and m.role != 'system' -%}<|im_start|>system
You are a small helper.<|im_end|>
{% endif -%}
<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}
"""

# Tools in the system turn, results of several tools together in one user turn.
GROUPED_TOOLS = r"""
{%- if tools -%}<|im_start|>system
{{ messages[0].content + '\n' if messages[0].role == 'system' else '' }}Tools:
{% for t in tools %}{{ t | tojson }}
{% endfor %}<|im_end|>
{% endif -%}
{%- for m in messages -%}
{%- if m.role == 'tool' -%}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}<|im_start|>user{% endif %}{{ '\n' -}}
<tool_response>
{{ m.content }}
</tool_response>
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}<|im_end|>
{% endif -%}
{%- elif m.role != 'system' or not tools -%}
<|im_start|>{{ m.role }}
{{ m.content }}
{%- for c in m.tool_calls or [] %}
<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>
{%- endfor -%}
<|im_end|>
{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}
"""

LLAMA = """
{{- bos_token -}}
{%- if tools -%}<|start_header_id|>system<|end_header_id|>

You may call: {{ tools | tojson }}<|eot_id|>{%- endif -%}
{%- for m in messages -%}
<|start_header_id|>{{ 'ipython' if m.role == 'tool' else m.role }}<|end_header_id|>

{% if m.tool_calls -%}
{%- set f = m.tool_calls[0].function -%}
{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}
{%- else -%}{{ m.content | trim }}{%- endif -%}<|eot_id|>
{%- endfor -%}
{%- if add_generation_prompt -%}<|start_header_id|>assistant<|end_header_id|>

{% endif -%}
"""

GEMMA = """
{{- bos_token -}}
{%- for m in messages -%}
{%- if m.role == 'system' -%}{{ raise_exception('System role not supported') }}{%- endif -%}
{%- if (m.role == 'user') == (loop.index0 % 2 == 1) -%}
{{- raise_exception('roles must alternate') -}}
{%- endif -%}
<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}
{{ m.content | trim }}<end_of_turn>
{% endfor -%}
{%- if add_generation_prompt -%}<start_of_turn>model
{% endif -%}
"""

# Lists the tools before the last user message, takes tool results only after tool calls.
MISTRAL = """
{{- bos_token -}}
{%- set last = namespace(user=-1, open=false) -%}
{%- for m in messages -%}
{%- if m.role == 'user' -%}{%- set last.user = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for m in messages -%}
{%- if m.role == 'user' -%}
{%- if tools and loop.index0 == last.user -%}
[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]
{%- endif -%}
[INST] {{ m.content }} [/INST]
{%- elif m.role == 'assistant' and m.tool_calls -%}
{%- set last.open = true -%}
[TOOL_CALLS] [{% for c in m.tool_calls -%}
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}, "id": "{{ c.id }}"}
{%- if not loop.last %}, {% endif -%}{%- endfor %}]{{ eos_token }}
{%- elif m.role == 'assistant' %} {{ m.content | trim }}{{ eos_token }}
{%- elif m.role == 'tool' -%}
{%- if not last.open -%}{{ raise_exception('a tool result needs a tool call') }}{%- endif -%}
[TOOL_RESULTS] {{ m.content }}[/TOOL_RESULTS]
{%- else -%}{{ raise_exception('only user, assistant and tool roles') }}{%- endif -%}
{%- endfor -%}
"""

# Drops the thinking of every answer before the last question.
THINK_STRIPPING = r"""
{%- set last = namespace(user=-1) -%}
{%- for m in messages -%}
{%- if m.role == 'user' -%}{%- set last.user = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for m in messages -%}
{%- set words = m.content -%}
{%- if m.role == 'assistant' and loop.index0 < last.user and '</think>' in words -%}
{%- set words = words.split('</think>')[-1].lstrip('\n') -%}
{%- endif -%}
<|im_start|>{{ m.role }}
{{ words }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}
"""

# Opens the thinking for the model, and keeps what was thought.
THINK_OPENING = CHATML.replace("<|im_start|>assistant\n{% endif", "<|im_start|>assistant\n<think>\n{% endif")

# No special tokens at all: turns are plain text, and end with a blank line.
PLAIN = """
{%- for m in messages -%}
{{ m.role | capitalize }}:
{{ m.content }}

{% endfor -%}
{%- if add_generation_prompt -%}Assistant:
{% endif -%}
"""

# Shows only the last two messages, as a template that saves context would.
FORGETFUL = """
{%- for m in messages[-2:] -%}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}
"""


@dataclass(frozen=True)
class Family:
    """A template with the special tokens its tokenizer needs."""

    template: str
    specials: tuple[str, ...] = ()
    end: str | None = None
    begin: str | None = None


_IM = ("<|im_start|>", "<|im_end|>")
FAMILIES = {
    "chatml": Family(CHATML, _IM, "<|im_end|>"),
    "grouped_tools": Family(GROUPED_TOOLS, _IM, "<|im_end|>"),
    "llama": Family(
        LLAMA,
        ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        "<|end_of_text|>",
        "<|begin_of_text|>",
    ),
    "gemma": Family(GEMMA, ("<start_of_turn>", "<end_of_turn>"), "<eos>", "<bos>"),
    "mistral": Family(MISTRAL, ("[INST]", "[/INST]", "[TOOL_CALLS]"), "</s>", "<s>"),
    "think_stripping": Family(THINK_STRIPPING, _IM, "<|im_end|>"),
    "think_opening": Family(THINK_OPENING, _IM, "<|im_end|>"),
    "plain": Family(PLAIN),
    "forgetful": Family(FORGETFUL, _IM, "<|im_end|>"),
}

_WORDS = (
    "What color is the sky? The sky is blue and the grass is green\n\n"
    "User:\nhello there\n\nAssistant:\nhello\n\n"
    "user system assistant model tool You are a small helper. Thank you, that is all.\n\nthe the the\n\n\n"
)
_PIECE = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@functools.cache
def make_tokenizer(name: str, kind: str = "bytes") -> Any:
    """A trained tokenizer of a family.

    `kind`: "bytes" is byte-level BPE that merges runs of newlines and a stop before them; "metaspace"
    puts a word mark at the beginning of a text, as SentencePiece models do.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    family = FAMILIES[name]
    specials = [t for t in ("<pad>", *family.specials, family.end, family.begin) if t]
    bpe = Tokenizer(models.BPE(byte_fallback=kind == "metaspace"))
    if kind == "bytes":
        split = pre_tokenizers.Split(Regex(_PIECE), "isolated")
        bpe.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
        bpe.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    else:
        bpe.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        bpe.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")])
        alphabet = [chr(c) for c in range(32, 127)] + ["\n"]
        specials += [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=sorted(alphabet), special_tokens=specials, show_progress=False
    )
    bpe.train_from_iterator([_WORDS, family.template] * 4, trainer)
    if family.begin:  # a tokenizer that would add a beginning of its own beside the template's
        single = f"{family.begin} $A"
        begin_id = bpe.token_to_id(family.begin)
        bpe.post_processor = processors.TemplateProcessing(
            single=single, special_tokens=[(family.begin, begin_id)]
        )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token=family.end, bos_token=family.begin, pad_token="<pad>",
        clean_up_tokenization_spaces=False,
    )  # fmt: skip
    tokenizer.chat_template = family.template.strip()
    return tokenizer


@pytest.fixture(scope="session")
def tokenizer_of() -> Callable[..., Any]:
    return make_tokenizer
