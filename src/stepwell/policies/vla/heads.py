"""The two action heads: they sample actions for a state and score given actions.

    TokenHead   logits over bins for all C x D dimensions at once; one unit per executed dimension
    FlowHead    a velocity field, integrated in K steps; one unit per transition

Both draw from numbers that depend on the request's seed (`seeded_random.py`), so a sample does not depend on
its batch. A demonstrated action has no draws. The token head scores the bins that contain it. The flow head
has no tractable likelihood for it. It returns minus half the squared error of its velocity at one random
point between noise and action, per executed dimension. The imitation loss, −mean, is then the same for both
heads.

The network of the flow head predicts the end point x_data. Its velocity is the remaining distance over the
remaining time, (x_data − x) / (1 − τ), so the last step ends at the predicted point.

The logits of a dimension's bins are `bin_rank` numbers times a learnt basis that starts as cosines.
Neighbouring bins start alike, so what is learnt for one bin generalises to the next.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stepwell.config.vla import VLAConfig
from stepwell.policies.vla import bins, flow, seeded_random
from stepwell.policies.vla.encoder import Block

_FREQUENCIES = 16


@dataclass(frozen=True, slots=True)
class ScoredActions:
    """Actions to score, on the model's device. `kind` is bins, chain or None (given actions)."""

    kind: str | None
    chunks: Tensor
    draws: Tensor | None
    num_actions: Tensor
    temperatures: Tensor
    seeds: np.ndarray


@dataclass(frozen=True, slots=True)
class SampledActions:
    """Sampled actions: chunks [B, C, D], their draws, and logprobs [B, units].

    `row_logprobs` [B, K, C] of a flow head are the contribution of each action of the chunk to each
    transition.
    """

    chunks: Tensor
    draws: Tensor
    logprobs: Tensor
    row_logprobs: Tensor | None = None


class TokenHead(nn.Module):
    """Samples all dimensions of a chunk in parallel, each from a categorical over bins."""

    kind = "bins"

    def __init__(self, config: VLAConfig, action_dim: int) -> None:
        super().__init__()
        self.chunk, self.action_dim, self.bins = config.chunk, action_dim, config.bins
        rank = min(config.bin_rank, config.bins)
        self.project = nn.Linear(config.width, config.chunk * action_dim * rank)
        place = (torch.arange(config.bins) + 0.5) * (math.pi / config.bins)
        self.basis = nn.Parameter(torch.cos(torch.arange(1, rank + 1)[:, None] * place))
        nn.init.normal_(self.project.weight, std=0.1 / config.width**0.5)
        nn.init.zeros_(self.project.bias)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [B, C, D, bins]."""
        coefs = self.project(hidden).view(len(hidden), self.chunk, self.action_dim, -1)
        logits: Tensor = coefs @ self.basis
        return logits

    def sample(self, hidden: Tensor, seeds: np.ndarray, temperatures: Tensor) -> SampledActions:
        """Sample one chunk per row."""
        drawn = seeded_random.draw_uniforms(seeds, self.chunk * self.action_dim)
        uniforms = torch.from_numpy(drawn).to(hidden.device).view(-1, self.chunk, self.action_dim)
        logits = self.logits(hidden)
        places = bins.draw_bins(logits, uniforms, temperatures)
        scaling = torch.where(temperatures > 0, temperatures, 1.0)  # as `Sampling.logit_temperature`
        taken = bins.gather_logprobs(bins.logprobs(logits, scaling), places)
        return SampledActions(bins.find_bin_centre(places, self.bins), places.int(), taken.flatten(1))

    def score(self, hidden: Tensor, actions: ScoredActions) -> tuple[Tensor, Tensor]:
        """Flat logprobs and entropies of the executed dimensions, step by step."""
        places = bins.find_bin(actions.chunks, self.bins) if actions.draws is None else actions.draws.long()
        logits = self.logits(hidden)[:, : places.shape[1]]
        logprobs = bins.logprobs(logits, actions.temperatures)
        mask = mask_executed(places.shape[1], actions.num_actions)
        taken, entropies = bins.gather_logprobs(logprobs, places), bins.entropies(logprobs)
        return taken[mask].flatten(), entropies[mask].flatten()


class FlowHead(nn.Module):
    """A velocity field over chunks, conditioned on the state."""

    kind = "chain"

    def __init__(self, config: VLAConfig, action_dim: int) -> None:
        super().__init__()
        self.chunk, self.action_dim = config.chunk, action_dim
        self.num_steps, self.noise_level = config.denoising_steps, config.noise_level
        size = config.chunk * action_dim
        self.state = nn.Linear(config.width, config.width)
        self.noisy = nn.Linear(size + 2 * _FREQUENCIES, config.width)
        self.blocks = nn.ModuleList(Block(config.width) for _ in range(max(config.layers, 1)))
        self.norm = nn.LayerNorm(config.width)
        self.out = nn.Linear(config.width, size)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def velocity(self, hidden: Tensor, x: Tensor, tau: Tensor) -> Tensor:
        """Return v [R, C, D] at x [R, C, D] and τ [R]. `hidden` [B, width] has one row per R / B of them."""
        steps = 2.0 ** torch.linspace(0.0, 5.0, _FREQUENCIES, dtype=x.dtype, device=x.device)
        angle = tau[:, None] * (math.pi * steps)
        y = self.noisy(torch.cat([x.flatten(1), angle.sin(), angle.cos()], dim=1))
        y = y + self.state(hidden).repeat_interleave(len(x) // len(hidden), dim=0)
        for block in self.blocks:
            y = block(y)
        aim: Tensor = self.out(F.silu(self.norm(y))).view_as(x)
        return (aim - x) / (1.0 - tau).clamp(min=1.0 / self.num_steps)[:, None, None]

    def sample(self, hidden: Tensor, seeds: np.ndarray, temperatures: Tensor) -> SampledActions:
        """Sample one chunk per row: the end of its chain, clipped to [-1, 1]."""
        shape = (self.num_steps + 1, self.chunk, self.action_dim)
        drawn = (
            torch.from_numpy(seeded_random.draw_normals(seeds, math.prod(shape))).to(hidden).view(-1, *shape)
        )
        chain, rows = flow.sample_chain(
            lambda x, tau: self.velocity(hidden, x, tau), drawn, temperatures=temperatures, **self._sde
        )
        return SampledActions(chain[:, -1].clamp(-1.0, 1.0), chain, rows.sum(dim=-1), rows)

    def score(self, hidden: Tensor, actions: ScoredActions) -> tuple[Tensor, Tensor]:
        """Flat logprobs and entropies of the transitions; for given actions, the negative errors."""
        if actions.draws is None:
            errors = self._measure_imitation_errors(hidden, actions)
            return errors, torch.zeros_like(errors)
        rows = flow.row_logprobs(
            lambda x, tau: self.velocity(hidden, x, tau),
            actions.draws,
            temperatures=actions.temperatures,
            **self._sde,
        )
        entropies = flow.compute_transition_entropies(
            actions.num_actions, self.action_dim, temperatures=actions.temperatures, **self._sde
        )
        return flow.sum_executed(rows, actions.num_actions).flatten(), entropies.flatten()

    @property
    def _sde(self) -> dict[str, Any]:
        return {"num_steps": self.num_steps, "noise_level": self.noise_level}

    def _measure_imitation_errors(self, hidden: Tensor, actions: ScoredActions) -> Tensor:
        """Return −½(v − (x − ε))² at a random time, per executed dimension."""
        size = self.chunk * self.action_dim
        target = _hold_last_action(actions.chunks, self.chunk)
        noise = torch.from_numpy(seeded_random.draw_normals(actions.seeds, size)).to(hidden).view_as(target)
        spread = 1.0 - 1.0 / self.num_steps  # start of the last transition
        tau = torch.from_numpy(
            spread * seeded_random.draw_uniforms(actions.seeds ^ np.uint64(1), 1)[:, 0]
        ).to(hidden)
        between = (1.0 - tau)[:, None, None] * noise + tau[:, None, None] * target
        error = self.velocity(hidden, between, tau) - (target - noise)
        return (-0.5 * error.square())[mask_executed(self.chunk, actions.num_actions)].flatten()


HEADS: dict[str, type[TokenHead] | type[FlowHead]] = {"token": TokenHead, "flow": FlowHead}


def mask_executed(length: int, num_actions: Tensor) -> Tensor:
    """Return [B, length]: which actions of each chunk were executed."""
    return torch.arange(length, device=num_actions.device) < num_actions[:, None]


def _hold_last_action(chunks: Tensor, length: int) -> Tensor:
    """Repeat the last action of each chunk up to `length`."""
    missing = length - chunks.shape[1]
    return chunks if missing <= 0 else torch.cat([chunks, chunks[:, -1:].expand(-1, missing, -1)], dim=1)
