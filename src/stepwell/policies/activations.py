"""How much memory a pass over some tokens takes on a GPU, from a model's shape alone.

    peak of a backward pass = weights and gradients + kept per token and layer + one layer's work + the head's

What is kept follows from what the layers keep (`fused_blocks.py`): two hidden states, query, key, value and
attention's output, and gate and up unless they are made again. Plain layers keep more, which was measured.
Predictions are within 15 % of the peaks that `benchmarks/training_speed.py` measured on an H200.

`--dry-run` reads this too, without loading torch: an automatic token budget is chosen in one place for a run
and for its plan.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepwell.core.host_memory import read_available_bytes

WIDE = 1024
"""From this width on, products dominate, and making those of gate and up again costs more (on an H200 10 % of
the time at a width of 2048, 2 to 4 % at 576)."""
LOGIT_BYTES = 1 << 28
"""Logits that are in memory at a time (`packing/projection.py`)."""

MOST_CAPTURED = 1e11
"""Multiply-adds of a layer, attention included, up to which passes are captured (`captured_passes.py`).
Above, kernels take longer than their launch: 135M reaches it at 24,000 tokens of short contexts (at 31,000 an
update is no faster on an H200), and at 9,000 where each sees 6,000."""
CAPTURED_GAPS = 1.2
"""Memory of a captured pass over that of its tensors, as measured: there is some between them."""

FREE_SHARE = 0.8
"""Of the free memory, what an automatic token budget may use."""
LEAST_TOKENS = 256
PENDING_BYTES = 16
"""Per trained parameter, for gradients and states that the first step allocates."""


def resolve_checkpointing(kind: bool | str, width: int) -> str:
    """The level of recomputation that a setting stands for: none, selective, mlp, offload or full."""
    if kind == "auto":
        return "mlp" if width < WIDE else "selective"
    return {True: "full", False: "none"}[kind] if isinstance(kind, bool) else kind


def count_offloaded(layers: int) -> tuple[int, int, int]:
    """With `offload`: of how many layers gate and up go to the host, are made again, and are kept.

    Where a GPU's bus carries 55 GB/s and its units compute 500 TFLOP/s, copies of half of the layers take as
    long as the forward pass of all of them.
    """
    return layers // 2, layers // 4, layers - layers // 2 - layers // 4


def count_layer_work(width: int, mlp_width: int, tokens: float, pairs: float = 0.0) -> float:
    """Multiply-adds of a layer's products over some tokens, and of attention over pairs of them."""
    return width * (tokens * (3 * mlp_width + 4 * width) + 2 * pairs)


@dataclass(frozen=True, slots=True)
class ActivationSize:
    """A model's widths, its bytes per number, and how it runs."""

    layers: int
    width: int
    query_width: int
    kv_width: int
    mlp_width: int
    vocabulary: int
    unit: int
    checkpointing: str
    is_fused: bool = True
    is_captured: bool = False
    """Whether passes over few tokens are captured: their memory stays, beside that of eager passes."""

    def count_kept_bytes(self) -> int:
        """Bytes that are kept of a token until the backward pass."""
        per_layer = self._count_layer()
        if self.checkpointing == "full":
            return (self.layers * self.width + per_layer + self._gates) * self.unit
        if not self.is_fused or self.checkpointing not in ("mlp", "offload"):
            return self.layers * (per_layer + self._gates) * self.unit
        keeping = count_offloaded(self.layers)[2] if self.checkpointing == "offload" else 0
        return (self.layers * per_layer + keeping * self._gates) * self.unit

    def count_passing_bytes(self) -> int:
        """Bytes per token that come and go while a layer runs backward."""
        return (3 * self.mlp_width + 4 * self.width) * self.unit

    def count_token_bytes(self, num_models: int) -> int:
        """Bytes of a token in a pass over this many models, actor and critic, one after the other."""
        return num_models * self.count_kept_bytes() + self.count_passing_bytes()

    def count_head_bytes(self, rows: float) -> float:
        """Bytes of the head's own pass over `rows` logits, its gradient in float32 included."""
        logits = min(rows * self.vocabulary * self.unit, float(LOGIT_BYTES))
        return logits + self.vocabulary * self.width * (4 + self.unit)

    def predict_bytes(self, tokens: float, rows: float) -> float:
        """Activations at the peak of a pass over this many tokens, with logits at `rows` of them."""
        per_token = self.count_kept_bytes() + self.count_passing_bytes()
        return tokens * per_token + self.count_head_bytes(rows) + self.count_captured_bytes(tokens)

    def count_captured_bytes(self, tokens: float) -> float:
        """What a captured pass holds: activations, and the gradients that it hands on."""
        if not self.is_captured or count_layer_work(self.width, self.mlp_width, tokens) > MOST_CAPTURED:
            return 0.0
        weights = 2 * self.width * (self.query_width + self.kv_width) + 3 * self.width * self.mlp_width
        per_token = self.count_kept_bytes() + self.count_passing_bytes()
        return CAPTURED_GAPS * tokens * per_token + self.layers * weights * self.unit

    @property
    def _gates(self) -> int:
        """Gate and up of a layer; in plain layers what is made of them too."""
        return 2 * self.mlp_width if self.is_fused else 4 * self.mlp_width

    def _count_layer(self) -> int:
        """What a layer keeps besides."""
        if not self.is_fused:
            return 10 * self.width + 2 * self.kv_width
        return 2 * (self.width + self.query_width + self.kv_width)


def count_plain_bytes(layers: int, width: int, mlp_width: int, unit: int, *, is_full: bool) -> int:
    """Bytes that are kept of a token on a CPU or in float32, roughly."""
    per_layer = 20 * width + 4 * mlp_width
    return (layers * width + per_layer if is_full else layers * per_layer) * unit


def count_fitting_tokens(free_bytes: float, num_pending: int, token_bytes: float) -> int:
    """An automatic token budget: what fits, when this many parameters have no gradients and states yet."""
    usable = FREE_SHARE * free_bytes - PENDING_BYTES * num_pending
    return max(LEAST_TOKENS, int(usable / token_bytes))


def read_free_bytes(device: str) -> float:
    """Memory of a device, or of this machine, that nobody uses now."""
    if not device.startswith("cuda"):
        return read_available_bytes()
    import torch

    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return float(torch.cuda.mem_get_info(device)[0] + unused)
