"""Two forward passes of a language model: our own short one, and the model's own.

`LlamaForward` covers the Llama family (Llama, Mistral, Qwen2, Qwen3): the same maths with a
third of the operations, because the number of launched operations decides the cost of a
decoding step of a small model. Query, key and value weights become one matrix, gate and up
another. The model's parameters become views of these matrices, so that loading weights into
the model loads them here too. Residuals are added inside the matrix products.

`ModelForward` runs any transformers model whose attention can be replaced.

Both take flat tokens [T] with their positions and a plan (see `attention`), and return
logits [T, V], or nothing when only keys and values are wanted. Of a vision-language model both
run the language part; image features (`image_features.TokenFeatures`) replace embeddings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import nn

from stepwell.engines.attention import AttentionPlan, AttentionSpec, install_attention, use_plan
from stepwell.engines.image_features import TokenFeatures
from stepwell.policies.rotary import FIXED_ROPE

LEAN_TYPES = ("llama", "mistral", "qwen2", "qwen3")


class ForwardPass(Protocol):
    """A language model over slots."""

    positions: torch.Tensor
    """Those that the last pass looked up, [T] or [axes, T]."""

    def __call__(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        plan: AttentionPlan,
        want_logits: bool,
        features: TokenFeatures | None = None,
    ) -> torch.Tensor | None:
        """Write keys and values of the tokens; return logits [T, V] if wanted.

        `positions` rotate the heads: [T], or [axes, T] for models with several position axes.
        """

    def refresh_weights(self) -> None:
        """Update what is derived from the model's parameters after these changed."""

    def read_tables(self) -> Rotation | None:
        """Return the rotary tables in use; None if the model computes them in every pass."""


class ModelForward:
    """The model's own code, with its attention replaced."""

    positions: torch.Tensor

    def __init__(self, model: Any) -> None:
        install_attention(model.get_decoder())  # a vision tower keeps its own attention
        self._model = model

    def __call__(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        plan: AttentionPlan,
        want_logits: bool,
        features: TokenFeatures | None = None,
    ) -> torch.Tensor | None:
        self.positions = positions
        given: dict[str, torch.Tensor] = {"input_ids": ids[None]}
        if features is not None:
            x = self._model.get_input_embeddings()(ids)
            given = {"inputs_embeds": x.index_copy(0, features.places, features.features.to(x.dtype))[None]}
        with use_plan(plan):
            output = self._model(
                **given,
                position_ids=positions[None] if positions.ndim == 1 else positions[:, None],
                use_cache=False,
                logits_to_keep=0 if want_logits else 1,
            )
        logits: torch.Tensor = output.logits[0]
        return logits if want_logits else None

    def refresh_weights(self) -> None:
        """Do nothing: the parameters themselves are used."""

    def read_tables(self) -> None:
        """Return None: the model computes them in every pass."""


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """Normalisation of each query and key head before rotation (Qwen3).

    `weight` [H + K, D] holds the weights of the query heads, then of the key heads, so that all
    are normalised at once; `refresh_weights` fills it from the model's parameters.
    """

    weight: torch.Tensor
    eps: float
    query: torch.Tensor
    key: torch.Tensor
    num_heads: int

    def refresh_weights(self) -> None:
        self.weight[: self.num_heads] = self.query
        self.weight[self.num_heads :] = self.key


@dataclass(slots=True)
class Rotation:
    """Rotary tables [max_length, D]; `signed_sin` has its first half negated."""

    cos: torch.Tensor
    sin: torch.Tensor
    signed_sin: torch.Tensor

    @classmethod
    def from_module(cls, rotary: Any, max_length: int, like: torch.Tensor) -> Rotation:
        cos, sin = rotary(like, position_ids=torch.arange(max_length, device=like.device)[None])
        half = sin.shape[-1] // 2
        signed = torch.cat((-sin[0, :, :half], sin[0, :, half:]), dim=-1)
        return cls(cos[0].contiguous(), sin[0].contiguous(), signed)


class LlamaOps:
    """The operations of a layer besides matrix products, in plain torch."""

    def __init__(self, rotation: Rotation) -> None:
        self.rotation = rotation
        self._cos = self._sin = rotation.cos

    def begin_pass(self, positions: torch.Tensor, plan: AttentionPlan) -> torch.Tensor:
        """Look up the rotary values that all layers of one pass share; return the positions that are used."""
        self._cos = self.rotation.cos.index_select(0, positions)[:, None]
        self._sin = self.rotation.signed_sin.index_select(0, positions)[:, None]
        return positions

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Over the last axis; `weight` may carry leading axes of its own."""
        if weight.ndim == 1:
            return F.rms_norm(x, x.shape[-1:], weight, eps)
        return F.rms_norm(x, x.shape[-1:], eps=eps).mul_(weight)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)

    def attend(
        self, plan: AttentionPlan, index: int, qkv: torch.Tensor, num_heads: int, layer: LlamaLayer
    ) -> torch.Tensor:
        """Rotate the heads of qkv [T, H + 2K, D], store keys and values, and attend: [T, H, D]."""
        query, key, value = self._rotate_heads(qkv, num_heads, layer.norms)
        return plan.attend(index, query, key, value, layer.spec)

    def write_kv(
        self, plan: AttentionPlan, index: int, qkv: torch.Tensor, num_heads: int, layer: LlamaLayer
    ) -> None:
        """Do what `attend` does, for a pass that only stores keys and values."""
        _, key, value = self._rotate_heads(qkv, num_heads, layer.norms)
        plan.write_kv(index, key, value)

    def _rotate_heads(
        self, qkv: torch.Tensor, num_heads: int, norms: HeadNorms | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        num_turned = (qkv.shape[1] + num_heads) // 2
        turned = qkv[:, :num_turned]
        if norms is not None:
            turned = self.rms_norm(turned, norms.weight, norms.eps)
        half = turned.shape[-1] // 2
        turned = torch.addcmul(turned * self._cos, turned.roll(half, -1), self._sin)
        return turned[:, :num_heads], turned[:, num_heads:], qkv[:, num_turned:]


@dataclass(frozen=True, slots=True)
class LlamaLayer:
    """Weights of one layer, as `LlamaForward` reads them."""

    input_norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    norms: HeadNorms | None
    output: nn.Linear
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    gate_up_bias: torch.Tensor | None
    down: nn.Linear
    spec: AttentionSpec


class LlamaForward:
    """The Llama family in few operations."""

    positions: torch.Tensor

    def __init__(self, model: Any, max_length: int, ops: type[LlamaOps] = LlamaOps) -> None:
        config, decoder = model.config.get_text_config(), model.get_decoder()
        self._eps = config.rms_norm_eps
        self._num_heads = config.num_attention_heads
        self._head_dim = decoder.layers[0].self_attn.head_dim
        self._embedding = model.get_input_embeddings().weight
        self._head = model.get_output_embeddings()
        self._norm = decoder.norm.weight
        self._layers = [_build_lean_layer(layer, config) for layer in decoder.layers]
        rotation = Rotation.from_module(decoder.rotary_emb, max_length, self._embedding[:1, None])
        self._ops = ops(rotation)

    def __call__(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        plan: AttentionPlan,
        want_logits: bool,
        features: TokenFeatures | None = None,
    ) -> torch.Tensor | None:
        ops, eps = self._ops, self._eps
        self.positions = ops.begin_pass(positions, plan)
        x = F.embedding(ids, self._embedding)
        if features is not None:
            x.index_copy_(0, features.places, features.features.to(x.dtype))
        for index, layer in enumerate(self._layers):
            h = ops.rms_norm(x, layer.input_norm, eps)
            qkv = F.linear(h, layer.qkv, layer.qkv_bias).view(len(ids), -1, self._head_dim)
            if layer is self._layers[-1] and not want_logits:
                ops.write_kv(plan, index, qkv, self._num_heads, layer)
                return None
            attended = ops.attend(plan, index, qkv, self._num_heads, layer)
            _add_linear(x, attended.reshape(len(ids), -1), layer.output)
            h = ops.rms_norm(x, layer.mlp_norm, eps)
            _add_linear(x, ops.silu_mul(F.linear(h, layer.gate_up, layer.gate_up_bias)), layer.down)
        return F.linear(ops.rms_norm(x, self._norm, eps), self._head.weight, self._head.bias)

    def refresh_weights(self) -> None:
        """Fill the derived weights; everything else is a view of the parameters."""
        for layer in self._layers:
            if layer.norms is not None:
                layer.norms.refresh_weights()

    def read_tables(self) -> Rotation:
        """Return the tables that all layers look up."""
        return self._ops.rotation


def is_lean(model: Any) -> bool:
    """Whether `LlamaForward` computes exactly what this model computes."""
    config = model.config.get_text_config()
    if getattr(config, "model_type", None) not in LEAN_TYPES or config.hidden_act != "silu":
        return False
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") not in FIXED_ROPE or rope.get("partial_rotary_factor", 1.0) != 1.0:
        return False
    linears = [module for name, module in model.get_decoder().named_modules() if name.endswith("_proj")]
    return all(type(module) is nn.Linear for module in linears)  # neither adapters nor quantised weights


def _add_linear(x: torch.Tensor, y: torch.Tensor, linear: nn.Linear) -> None:
    """Compute x += linear(y), with the sum inside the product."""
    x.addmm_(y, linear.weight.t())
    if linear.bias is not None:
        x += linear.bias


def _fuse_linears(*linears: nn.Linear) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Join layers with the same input into one matrix (and bias); their parameters become views of it."""
    weight = _merge_parameters([linear.weight for linear in linears])
    biases = [linear.bias for linear in linears]
    return weight, None if biases[0] is None else _merge_parameters(biases)


def _merge_parameters(parameters: Sequence[torch.Tensor]) -> torch.Tensor:
    whole = torch.cat([parameter.data for parameter in parameters])
    for parameter, part in zip(parameters, torch.split(whole, [len(p) for p in parameters]), strict=True):
        parameter.data = part
    return whole


def _build_lean_layer(layer: Any, config: Any) -> LlamaLayer:
    attention, mlp = layer.self_attn, layer.mlp
    qkv, qkv_bias = _fuse_linears(attention.q_proj, attention.k_proj, attention.v_proj)
    gate_up, gate_up_bias = _fuse_linears(mlp.gate_proj, mlp.up_proj)
    norms = None
    if hasattr(attention, "q_norm"):
        query, key = attention.q_norm.weight, attention.k_norm.weight
        num_heads = config.num_attention_heads
        weight = query.new_empty(num_heads + config.num_key_value_heads, len(query))
        norms = HeadNorms(weight, config.rms_norm_eps, query, key, num_heads)
        norms.refresh_weights()
    if config.model_type == "mistral":  # its window is a setting of the model, not of single layers
        window = config.sliding_window
    else:
        window = getattr(attention, "sliding_window", None)
    return LlamaLayer(
        input_norm=layer.input_layernorm.weight,
        qkv=qkv,
        qkv_bias=qkv_bias,
        norms=norms,
        output=attention.o_proj,
        mlp_norm=layer.post_attention_layernorm.weight,
        gate_up=gate_up,
        gate_up_bias=gate_up_bias,
        down=mlp.down_proj,
        spec=AttentionSpec(attention.scaling, window),
    )
