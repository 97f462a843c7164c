"""Tree attention: every token attends to itself and to its ancestors in the prefix tree.

One entry point for all devices. Fused kernels are preferred: over whole sequences (`sequences.py`: CUDA in
half precision, long contexts that share little), over whole paths (`paths.py`: CUDA in half precision, if the
paths do not hold too many keys) or over segments (`segments.py`: the CPU in float32 and
float64, CUDA in half precision for trees of few levels). Next comes FlexAttention on CUDA. Windows, soft caps
and all other cases run tile by tile (`blockwise.py`).
"""

from __future__ import annotations

from torch import Tensor

from stepwell.packing import paths, sequences
from stepwell.packing.blockwise import blockwise_attention
from stepwell.packing.flex import can_use_flex, flex_tree_attention
from stepwell.packing.kernel_inputs import ScoreOptions
from stepwell.packing.layout import TreeLayout
from stepwell.packing.segments import find_backend, segment_attention


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
    how = ScoreOptions(scaling, window, softcap)
    if sequences.supports_sequences(query, value, layout, how):
        return sequences.sequence_attention(query, key, value, layout, how)
    if paths.supports_paths(query, value, layout, how):
        return paths.path_attention(query, key, value, layout, how)
    backend = find_backend(query, value, layout, how)
    if backend is not None:
        return segment_attention(query, key, value, layout, how, backend)
    attend = flex_tree_attention if can_use_flex(query) else blockwise_attention
    return attend(query, key, value, layout, how)
