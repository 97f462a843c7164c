"""From logits to tokens: a pure function of each row's logits, seed and place.

The randomness of a token is one number in [0, 1), a hash of the request's seed and the
token's index in its action, turned into a token by the inverse of the cumulative
distribution in vocabulary order. So a request's tokens do not depend on who else is in the
batch, nor on the device, up to the rounding of the logits themselves.

* Temperature 0 takes the most likely token (the first among equals).
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
_BITS = 24  # what float32 can hold, so that every device sees the same number


def uniforms(seeds: AnyArray, indices: AnyArray) -> npt.NDArray[np.float32]:
    """Numbers in [0, 1) for token `indices` of requests with `seeds`."""
    z = _mix(seeds.astype(np.uint64) + np.uint64(_GOLDEN)) + indices.astype(np.uint64) * np.uint64(_GOLDEN)
    return (_mix(z) >> np.uint64(64 - _BITS)).astype(np.float32) * np.float32(2.0**-_BITS)


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_MIX_1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_MIX_2)
    return z ^ (z >> np.uint64(31))


def device_uniforms(seeds: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """As `uniforms`, in int64 tensors that wrap around (torch has no unsigned shifts)."""
    z = _device_mix(seeds + _signed(_GOLDEN)) + indices * _signed(_GOLDEN)
    return _shift(_device_mix(z), 64 - _BITS).to(torch.float32) * 2.0**-_BITS


def _device_mix(z: torch.Tensor) -> torch.Tensor:
    z = (z ^ _shift(z, 30)) * _signed(_MIX_1)
    z = (z ^ _shift(z, 27)) * _signed(_MIX_2)
    return z ^ _shift(z, 31)


def _shift(z: torch.Tensor, by: int) -> torch.Tensor:
    return (z >> by) & ((1 << (64 - by)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def choose(
    logits: torch.Tensor,
    temperature: torch.Tensor | None,
    top_p: torch.Tensor | None,
    uniform: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens [B] and their logprobs [B] from logits [B, V].

    `temperature` None means 1 in every row, `top_p` None no truncation, `uniform` None
    that every row is greedy; rows of temperature 0 are greedy in any case.
    """
    wide = logits if logits.dtype == torch.float64 else logits.float()
    if temperature is not None:
        greedy = temperature == 0
        wide = wide / torch.where(greedy, 1.0, temperature)[:, None].to(wide.dtype)
    logprobs = torch.log_softmax(wide, dim=-1)
    if uniform is None:
        tokens = logprobs.argmax(dim=-1)
    else:
        tokens = _inverse_cdf(logprobs.exp(), top_p, uniform)
        if temperature is not None:
            tokens = torch.where(greedy, wide.argmax(dim=-1), tokens)
    return tokens, logprobs.gather(1, tokens[:, None])[:, 0]


def _inverse_cdf(probs: torch.Tensor, top_p: torch.Tensor | None, uniform: torch.Tensor) -> torch.Tensor:
    if top_p is not None:
        probs = probs.masked_fill(probs < _least_kept(probs, top_p), 0.0)
    cumulative = probs.cumsum(dim=-1)
    target = uniform[:, None].to(probs.dtype) * cumulative[:, -1:]
    # right=True: the first place where the sum exceeds the target, which has positive probability
    return torch.searchsorted(cumulative, target, right=True)[:, 0].clamp_(max=probs.shape[-1] - 1)


def _least_kept(probs: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Probability of the least likely token that top-p keeps, [B, 1]."""
    ordered = probs.sort(dim=-1, descending=True).values
    before = ordered.cumsum(dim=-1) - ordered
    num_kept = (before < top_p[:, None].to(probs.dtype)).sum(dim=-1, keepdim=True)
    least = ordered.gather(1, num_kept - 1)
    return torch.where(top_p[:, None] < 1.0, least, 0.0)
