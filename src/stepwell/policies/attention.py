"""Installs tree attention in a Hugging Face model, after a probe that it works there.

In transformers an attention function is registered by name and receives the keyword
arguments of the forward call. Ours is `stepwell_tree`. With `tree_layout` it attends over
the tree; without it (generation, replay) it does what the model did before. Masks are built
only on demand: the model's own mask function is kept as a `DeferredMask`, from which a tree
only needs the window.

There is no list of supported models. A probe runs a small tree and the same sequences
alone, and refuses the model if

* its class does not use the attention interface, or its positions depend on the length of
  the whole sequence;
* a mask is not causal (with or without a window), or attention receives something unknown
  (sinks, biases);
* outputs of the tree differ from those of the sequences alone, or change when an unrelated
  branch changes (recurrent and convolutional layers, position biases, own positions).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel

from stepwell.core import Step
from stepwell.packing import TreeLayout, pack, tree_attention

ATTENTION = "stepwell_tree"
HARMLESS = {"position_ids", "cache_position", "position_embeddings", "use_cache", "return_dict"} | {
    f"output_{name}" for name in ("attentions", "hidden_states", "router_logits")
}
"""Arguments that models pass to attention and that do not change causal attention."""
LENGTH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})


class CannotReplaceError(Exception):
    """Why a model's attention cannot be replaced. Becomes a warning; users never see this exception."""


@dataclass(frozen=True, slots=True)
class DeferredMask:
    """A mask that the model requested, built only if attention without a tree needs it."""

    arguments: dict[str, Any]

    @property
    def window(self) -> int | None:
        return self.arguments.get("local_size")

    def build_mask(self, kind: str) -> Tensor | None:
        return ALL_MASK_ATTENTION_FUNCTIONS[kind](**self.arguments)  # type: ignore[no-any-return]

    def check_causal(self) -> None:
        """Refuse a mask that is not causal within its window, tested at the positions that matter."""
        window = self.window
        marks = (
            {0, 1, 2, 3} if window is None else {0, 1, window - 1, window, window + 1, 2 * window, 3 * window}
        )
        places = torch.tensor(sorted(marks))
        query, key = places[:, None], places[None, :]
        zero = torch.tensor(0)
        seen = self.arguments["mask_function"](zero, zero, query, key)
        expected = key <= query
        if window is not None:
            expected = expected & (query - key < window)
        if not torch.equal(seen.expand_as(expected), expected):
            raise CannotReplaceError("one of its masks is not causal within a window")


class ProbeLayout(TreeLayout):
    """A layout that makes attention check its arguments and count the calls."""

    num_calls = 0


def _defer_mask(**arguments: Any) -> DeferredMask:
    return DeferredMask(arguments)


def _attend_tree(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: DeferredMask | Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    tree_layout: TreeLayout | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    if tree_layout is None:
        passed = {
            "scaling": scaling,
            "sliding_window": sliding_window,
            "softcap": softcap,
            "is_causal": is_causal,
        }
        return _attend_natively(module, query, key, value, attention_mask, passed | others)
    if isinstance(tree_layout, ProbeLayout):
        _inspect_call(tree_layout, attention_mask, is_causal, others)
    window = attention_mask.window if isinstance(attention_mask, DeferredMask) else sliding_window
    output = tree_attention(
        query,
        key,
        value,
        tree_layout,
        scaling=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=window,
        softcap=softcap,
    )
    return output, None


def _attend_natively(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, passed: dict[str, Any]
) -> tuple[Tensor, None]:
    """Run SDPA, or the model's own eager function if there is a softcap, which SDPA ignores."""
    kind = "sdpa" if passed["softcap"] is None else "eager"
    built = mask.build_mask(kind) if isinstance(mask, DeferredMask) else mask
    given = {name: value for name, value in passed.items() if value is not None}
    if kind == "sdpa":
        attend = ALL_ATTENTION_FUNCTIONS["sdpa"]
    else:
        attend = sys.modules[type(module).__module__].eager_attention_forward
    output, _ = attend(module, query, key, value, built, **given)
    return output, None


def _inspect_call(layout: ProbeLayout, mask: Any, is_causal: bool | None, others: dict[str, Any]) -> None:
    layout.num_calls += 1
    unknown = sorted(name for name, value in others.items() if value is not None and name not in HARMLESS)
    if unknown:
        raise CannotReplaceError(f"its attention takes {', '.join(unknown)}")
    if is_causal is False:
        raise CannotReplaceError("its attention is not causal")
    if isinstance(mask, DeferredMask):
        mask.check_causal()
    elif mask is not None:
        raise CannotReplaceError("it builds its own attention masks")


AttentionInterface.register(ATTENTION, _attend_tree)
AttentionMaskInterface.register(ATTENTION, _defer_mask)


def install_tree_attention(model: PreTrainedModel, attending: PreTrainedModel | None = None) -> str | None:
    """Switch `model` to tree attention if the probe passes; otherwise restore it and return the reason.

    `attending` is the part whose attention is replaced, if that is not the whole model: the
    decoder of a vision-language model.
    """
    attending = model if attending is None else attending
    native = attending.config._attn_implementation
    try:
        _check_class(attending)
        _probe_model(model, attending)
    except Exception as error:  # any failure of a foreign model in the probe means: leave it alone
        attending.set_attn_implementation(native)
        is_ours = isinstance(error, CannotReplaceError)
        return str(error) if is_ours else f"{type(error).__name__} in the probe: {error}"
    return None


def _check_class(model: PreTrainedModel) -> None:
    if not (model._supports_attention_backend and model._can_set_attn_implementation()):
        raise CannotReplaceError("its class does not use the attention interface of transformers")
    scaling = getattr(model.config.get_text_config(), "rope_parameters", None) or {}
    kinds = {scaling.get("rope_type")} | {
        value.get("rope_type") for value in scaling.values() if isinstance(value, dict)
    }
    if kinds & LENGTH_DEPENDENT_ROPE:
        raise CannotReplaceError("its rotary positions depend on the sequence length")


def _probe_model(model: PreTrainedModel, attending: PreTrainedModel) -> None:
    """Compare a small tree with its sequences alone, and with a tree in which one branch changed."""
    vocab = int(model.get_input_embeddings().num_embeddings)  # type: ignore[arg-type]
    draw = np.random.default_rng(0).integers(0, vocab, size=16).tolist()
    prompt, left, right, other = draw[:5], draw[5:9], draw[9:12], [(t + 1) % vocab for t in draw[5:9]]
    with torch.no_grad():
        alone = [_compute_logits(model, prompt + branch, None) for branch in (left, right)]
        attending.set_attn_implementation(ATTENTION)
        merged, changed = (
            _compute_tree_logits(model, prompt, left, right),
            _compute_tree_logits(model, prompt, other, right),
        )
    size = float(torch.cat(alone).abs().max())
    is_half = alone[0].dtype in (torch.bfloat16, torch.float16)
    tolerance = (0.1 if is_half else 1e-3) * size
    if max(_measure_gap(a, b) for a, b in zip(merged, alone, strict=True)) > tolerance:
        raise CannotReplaceError("tree attention and its own attention give different outputs")
    if _measure_gap(merged[1], changed[1]) > (1e-2 if is_half else 1e-4) * size:
        raise CannotReplaceError("its layers let one branch of the tree see another")


def _measure_gap(a: Tensor, b: Tensor) -> float:
    gap = float((a - b).abs().max())
    return gap if gap == gap else float("inf")


def _compute_tree_logits(model: PreTrainedModel, prompt: list[int], *branches: list[int]) -> list[Tensor]:
    tree = pack([Step.from_tokens(prompt, branch) for branch in branches]).microbatches[0].tree
    assert tree is not None
    layout = ProbeLayout(tree, model.device)
    logits = _compute_logits(model, tree.token_ids, layout)
    if layout.num_calls == 0:
        raise CannotReplaceError("it never called the installed attention")
    paths = []
    for branch in branches:
        wanted = np.array(prompt + branch)
        ends = [
            t for t in range(tree.num_tokens) if np.array_equal(tree.token_ids[tree.find_path(t)], wanted)
        ]
        paths.append(logits[torch.from_numpy(tree.find_path(ends[0])).to(logits.device)])
    return paths


def _compute_logits(model: PreTrainedModel, token_ids: Any, layout: TreeLayout | None) -> Tensor:
    ids = torch.as_tensor(token_ids, dtype=torch.int64, device=model.device)[None]
    if layout is None:
        output = model(input_ids=ids, use_cache=False)
    else:
        positions = torch.from_numpy(layout.tree.positions).to(ids.device)[None]
        output = model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=torch.ones_like(ids),
            use_cache=False,
            tree_layout=layout,
        )
    return output.logits[0]  # type: ignore[no-any-return]
