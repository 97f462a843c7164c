"""How much memory a pass over some tokens takes on a GPU, from a model's shape alone.

    peak of a backward pass = weights and gradients + kept per token and layer + one layer's work + the head's

What is kept follows from what the layers keep (`fused_blocks.py`): two hidden states, query, key, value and
attention's output, and gate and up unless they are made again. Plain layers keep more, which was measured.
Predictions are within 15 % of the peaks that `benchmarks/training_speed.py` measured on an H200. There is no
torch here: `--dry-run` reads this too.
"""

from __future__ import annotations

from dataclasses import dataclass

WIDE = 1024
"""From this width on, products dominate, and making those of gate and up again costs more (on an H200 10 % of
the time at a width of 2048, 2 to 4 % at 576)."""
LOGIT_BYTES = 1 << 29
"""Logits that are in memory at a time (`packing/projection.py`)."""


def resolve_checkpointing(kind: bool | str, width: int) -> str:
    """The level of recomputation that a setting stands for: none, selective, mlp or full."""
    if kind == "auto":
        return "mlp" if width < WIDE else "selective"
    return {True: "full", False: "none"}[kind] if isinstance(kind, bool) else kind


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

    def count_kept_bytes(self) -> int:
        """Bytes that are kept of a token until the backward pass."""
        per_layer = self._count_layer()
        if self.checkpointing == "full":
            return (self.layers * self.width + per_layer) * self.unit
        return self.layers * per_layer * self.unit

    def count_passing_bytes(self) -> int:
        """Bytes per token that come and go while a layer runs backward."""
        return (3 * self.mlp_width + 4 * self.width) * self.unit

    def count_head_bytes(self, rows: float) -> float:
        """Bytes of the head's own pass over `rows` logits, its gradient in float32 included."""
        logits = min(rows * self.vocabulary * self.unit, float(LOGIT_BYTES))
        return logits + self.vocabulary * self.width * (4 + self.unit)

    def predict_bytes(self, tokens: float, rows: float) -> float:
        """Activations at the peak of a pass over this many tokens, with logits at `rows` of them."""
        per_token = self.count_kept_bytes() + self.count_passing_bytes()
        return tokens * per_token + self.count_head_bytes(rows)

    def _count_layer(self) -> int:
        if not self.is_fused:
            return 10 * self.width + 2 * self.kv_width + 4 * self.mlp_width
        gates = 0 if self.checkpointing == "mlp" else 2 * self.mlp_width
        return 2 * (self.width + self.query_width + self.kv_width) + gates
