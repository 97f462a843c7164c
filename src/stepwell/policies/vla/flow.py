"""The stochastic sampler of flow matching: from noise to an action in K Gaussian transitions.

τ runs from 0 (noise) to 1 (data), x_τ = (1−τ)ε + τ·x_data, and the velocity v is the mean of x_data − ε given
x_τ. Following v alone is the deterministic sampler. The SDE

    dx = [v − a²/(2τ)·(x − τv)] dτ + σ_τ dW,     σ_τ = a·√((1−τ)/τ)

has the same marginals for every noise level a. It is integrated in K Euler steps of Δτ = 1/K. Each transition
is a Gaussian with known mean and standard deviation, so a chain of transitions has a logprob. In σ and in the
factor a²/(2τ), τ is at least 1/K, because both are infinite at τ = 0.

Invariants
* All K transitions have a positive width: the last one starts at τ = 1 − 1/K.
* `num_actions` masks the later rows of a chunk out of every transition's logprob. The mean of the rows that
  count still depends on the whole chunk, so chains are stored whole.
* A temperature scales the widths. Temperature 0 is the deterministic sampler; its chain is scored by the
  transitions at temperature 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Velocity = Callable[[Tensor, Tensor], Tensor]
"""Maps (x [B, C, D], τ [B]) to v [B, C, D]."""


def compute_transition_mean(
    x: Tensor, v: Tensor, tau: Tensor, *, num_steps: int, noise_level: float
) -> Tensor:
    """Mean of a transition from x at time τ. τ broadcasts against x."""
    pull = noise_level**2 / (2.0 * tau.clamp(min=1.0 / num_steps))
    return x + (v - pull * (x - tau * v)) / num_steps


def compute_transition_std(tau: Tensor, *, num_steps: int, noise_level: float) -> Tensor:
    """Standard deviation of a transition from time τ."""
    held = tau.clamp(min=1.0 / num_steps)
    return noise_level * ((1.0 - held) / held / num_steps).sqrt()


def start_times(num_steps: int, like: Tensor) -> Tensor:
    """Start times of the transitions, [K]."""
    return torch.arange(num_steps, dtype=like.dtype, device=like.device) / num_steps


def sample_chain(
    velocity: Velocity, normals: Tensor, *, num_steps: int, noise_level: float, temperatures: Tensor
) -> tuple[Tensor, Tensor]:
    """Return x at every time [B, K + 1, C, D] and its `row_logprobs`.

    `normals` has the shape of the chain; its first entry is x_0. Where `temperatures` [B] is 0, the chain
    follows the velocity alone.
    """
    x = normals[:, 0]
    chain, rows = [x], []
    is_still = (temperatures <= 0)[:, None, None]
    scale = torch.where(is_still[:, 0, 0], 1.0, temperatures)
    for k, tau in enumerate(start_times(num_steps, x)):
        v = velocity(x, tau.expand(len(x)))
        centre = compute_transition_mean(x, v, tau, num_steps=num_steps, noise_level=noise_level)
        width = scale * compute_transition_std(tau, num_steps=num_steps, noise_level=noise_level)
        x = torch.where(is_still, x + v / num_steps, centre + width[:, None, None] * normals[:, k + 1])
        chain.append(x)
        rows.append(_log_density(x, centre, width))
    return torch.stack(chain, dim=1), torch.stack(rows, dim=1)


def row_logprobs(
    velocity: Velocity, chain: Tensor, *, num_steps: int, noise_level: float, temperatures: Tensor
) -> Tensor:
    """Return [B, K, C]: the logprob of each action of the chunk in each transition, summed over dimensions.

    All transitions are evaluated in one pass: `velocity` is called with B * K rows, chain by chain.
    """
    tau = start_times(num_steps, chain)
    x, after = chain[:, :-1], chain[:, 1:]
    v = velocity(x.flatten(0, 1), tau.repeat(len(chain))).view_as(x)
    centre = compute_transition_mean(x, v, tau[:, None, None], num_steps=num_steps, noise_level=noise_level)
    width = temperatures[:, None] * compute_transition_std(tau, num_steps=num_steps, noise_level=noise_level)
    return _log_density(after, centre, width)


def _log_density(x: Tensor, centre: Tensor, width: Tensor) -> Tensor:
    """Maps [..., C, D] to [..., C], with one `width` per chunk."""
    off = (x - centre) / width[..., None, None]
    each = -0.5 * off.square() - (width.log() + 0.5 * math.log(2.0 * math.pi))[..., None, None]
    return each.sum(dim=-1)


def sum_executed(rows: Tensor, num_actions: Tensor) -> Tensor:
    """Sum the first `num_actions` [B] actions of `rows` [B, K, C]. Returns [B, K]."""
    place = torch.arange(rows.shape[-1], device=rows.device)
    return torch.where(place < num_actions[:, None, None], rows, 0.0).sum(dim=-1)


def compute_transition_entropies(
    num_actions: Tensor, action_dim: int, *, num_steps: int, noise_level: float, temperatures: Tensor
) -> Tensor:
    """Entropy of each transition over the executed actions, [B, K]. It does not depend on the weights."""
    width = temperatures[:, None] * compute_transition_std(
        start_times(num_steps, temperatures), num_steps=num_steps, noise_level=noise_level
    )
    each = width.log() + 0.5 * (1.0 + math.log(2.0 * math.pi))
    return each * (num_actions * action_dim)[:, None]
