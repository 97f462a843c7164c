"""Tree attention: every token attends to its ancestors in the prefix tree and itself.

One entry for all devices. On CUDA, trees of few levels in half precision run as segments of
flash attention and everything else as FlexAttention; other devices, and what neither
supports (float64, tiny heads), run the exact blockwise kernel.
"""

from __future__ import annotations

from torch import Tensor

from stepwell.packing.blockwise import blockwise_attention
from stepwell.packing.flash import can_use_flash, flash_tree_attention
from stepwell.packing.flex import can_use_flex, flex_tree_attention
from stepwell.packing.layout import TreeLayout
from stepwell.packing.scoring import Scoring


def tree_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: TreeLayout,
    *,
    scaling: float,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Attention of packed tokens: query [1, heads, T, D], key and value [1, key heads, T, D].

    Returns [1, T, heads, D]. `window` counts the token itself.
    """
    assert query.shape[0] == 1 and query.shape[2] == layout.num_tokens, "one packed row per layout"
    how = Scoring(scaling, window, softcap)
    if can_use_flash(query, value, layout, how):
        return flash_tree_attention(query, key, value, layout, how)
    attend = flex_tree_attention if can_use_flex(query) else blockwise_attention
    return attend(query, key, value, layout, how)
