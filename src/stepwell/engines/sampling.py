"""From logits to tokens: a pure function of each row's logits, seed and place.

The randomness of a token is one number in [0, 1), a hash of the request's seed and the
token's index in its action. The inverse of the cumulative distribution in vocabulary order
turns it into a token. So a request's tokens depend neither on the rest of the batch nor on
the device, up to the rounding of the logits.

* Temperature 0 takes the most likely token (the first of several equal ones).
* Top-p keeps the smallest set of most likely tokens whose probability reaches `top_p`
  (tokens tied with the last one kept are kept too) and samples within it.
* Logprobs are those of the temperature-scaled, untruncated distribution, at temperature 1
  for greedy rows, as `Sampling.logit_temperature` defines. They are computed in float32,
  or float64 for models that run in it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from stepwell.core.arrays import AnyArray

_GOLDEN = 0x9E3779B97F4A7C15  # splitmix64: increment and the two multipliers of its finaliser
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_BITS = 24  # as many as float32 has, so that every device gets the same number


def hash_uniforms(seeds: AnyArray, indices: AnyArray) -> npt.NDArray[np.float32]:
    """Compute numbers in [0, 1) for token `indices` of requests with `seeds`."""
    z = _mix_bits(seeds.astype(np.uint64) + np.uint64(_GOLDEN)) + indices.astype(np.uint64) * np.uint64(
        _GOLDEN
    )
    return (_mix_bits(z) >> np.uint64(64 - _BITS)).astype(np.float32) * np.float32(2.0**-_BITS)


def _mix_bits(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_MIX_1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_MIX_2)
    return z ^ (z >> np.uint64(31))


def hash_uniforms_on_device(seeds: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Do what `hash_uniforms` does, in int64 tensors that wrap around (torch has no unsigned shifts)."""
    z = _mix_bits_on_device(seeds + _to_signed(_GOLDEN)) + indices * _to_signed(_GOLDEN)
    return _shift_right(_mix_bits_on_device(z), 64 - _BITS).to(torch.float32) * 2.0**-_BITS


def _mix_bits_on_device(z: torch.Tensor) -> torch.Tensor:
    z = (z ^ _shift_right(z, 30)) * _to_signed(_MIX_1)
    z = (z ^ _shift_right(z, 27)) * _to_signed(_MIX_2)
    return z ^ _shift_right(z, 31)


def _shift_right(z: torch.Tensor, by: int) -> torch.Tensor:
    return (z >> by) & ((1 << (64 - by)) - 1)


def _to_signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def choose_tokens(
    logits: torch.Tensor,
    temperature: torch.Tensor | None,
    top_p: torch.Tensor | None,
    uniform: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose tokens [B], with their logprobs [B], from logits [B, V].

    `temperature` None means 1 in every row, `top_p` None means no truncation, `uniform` None
    means that every row is greedy. Rows with temperature 0 are always greedy.
    """
    wide = logits if logits.dtype == torch.float64 else logits.float()
    if temperature is not None:
        greedy = temperature == 0
        wide = wide / torch.where(greedy, 1.0, temperature)[:, None].to(wide.dtype)
    logprobs = torch.log_softmax(wide, dim=-1)
    if uniform is None:
        tokens = logprobs.argmax(dim=-1)
    else:
        tokens = _sample_inverse_cdf(logprobs.exp(), top_p, uniform)
        if temperature is not None:
            tokens = torch.where(greedy, wide.argmax(dim=-1), tokens)
    return tokens, logprobs.gather(1, tokens[:, None])[:, 0]


def _sample_inverse_cdf(
    probs: torch.Tensor, top_p: torch.Tensor | None, uniform: torch.Tensor
) -> torch.Tensor:
    if top_p is not None:
        probs = probs.masked_fill(probs < _find_least_kept(probs, top_p), 0.0)
    cumulative = probs.cumsum(dim=-1)
    target = uniform[:, None].to(probs.dtype) * cumulative[:, -1:]
    # right=True: the first place where the sum exceeds the target, which has positive probability
    return torch.searchsorted(cumulative, target, right=True)[:, 0].clamp_(max=probs.shape[-1] - 1)


def _find_least_kept(probs: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Return the probability of the least likely token that top-p keeps, [B, 1]."""
    ordered = probs.sort(dim=-1, descending=True).values
    before = ordered.cumsum(dim=-1) - ordered
    num_kept = (before < top_p[:, None].to(probs.dtype)).sum(dim=-1, keepdim=True)
    least = ordered.gather(1, num_kept - 1)
    return torch.where(top_p[:, None] < 1.0, least, 0.0)
