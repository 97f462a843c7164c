"""The stochastic sampler of flow matching against closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from stepwell.policies.vla import flow, seeded_random

MEAN, STD = 0.7, 0.4


def exact_velocity(x: Tensor, tau: Tensor) -> Tensor:
    """E[x_data − ε | x_τ] of a Gaussian target N(MEAN, STD²)."""
    t = tau.view(-1, *[1] * (x.ndim - 1)) if tau.ndim else tau
    variance = (1 - t) ** 2 + (t * STD) ** 2
    return MEAN + (t * STD**2 - (1 - t)) / variance * (x - t * MEAN)


def moments(num_steps: int, noise_level: float) -> tuple[float, float]:
    """Mean and standard deviation after the last transition, without sampling: each one is affine."""
    mean, variance = 0.0, 1.0
    for tau in flow.start_times(num_steps, torch.zeros(1, dtype=torch.float64)):
        points = torch.tensor([0.0, 1.0], dtype=torch.float64)
        moved = flow.compute_transition_mean(
            points, exact_velocity(points, tau), tau, num_steps=num_steps, noise_level=noise_level
        )
        slope = float(moved[1] - moved[0])
        width = float(flow.compute_transition_std(tau, num_steps=num_steps, noise_level=noise_level))
        mean, variance = slope * mean + float(moved[0]), slope**2 * variance + width**2
    return mean, math.sqrt(variance)


@pytest.mark.parametrize("noise_level", [0.0, 0.3, 1.0])
def test_samples_of_a_gaussian_target_have_its_mean_and_spread(noise_level: float) -> None:
    mean, std = moments(500, noise_level)
    assert mean == pytest.approx(MEAN, rel=0.02)
    assert std == pytest.approx(STD, rel=0.02)


@pytest.mark.parametrize("noise_level", [0.0, 0.3, 1.0])
def test_more_steps_come_closer_to_the_target(noise_level: float) -> None:
    errors = [abs(moments(k, noise_level)[1] - STD) for k in (20, 100, 500, 2500)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.003 * STD


@pytest.mark.parametrize("noise_level", [0.3, 1.0])
def test_drawn_chains_have_the_moments_that_the_transitions_say(noise_level: float) -> None:
    num_steps, count = 50, 20_000
    normals = np.random.default_rng(0).normal(size=(count, num_steps + 1, 1, 1))
    chain, _ = flow.sample_chain(
        exact_velocity,
        torch.from_numpy(normals),
        num_steps=num_steps,
        noise_level=noise_level,
        temperatures=torch.ones(count, dtype=torch.float64),
    )
    mean, std = moments(num_steps, noise_level)
    assert float(chain[:, -1].mean()) == pytest.approx(mean, abs=4 * std / count**0.5)
    assert float(chain[:, -1].std()) == pytest.approx(std, rel=0.02)


def iter_error_chain(noise_level: float, temperature: float, num_steps: int = 6) -> Tensor:
    normals = torch.from_numpy(np.random.default_rng(1).normal(size=(4, num_steps + 1, 2, 3)))
    heat = torch.full((4,), temperature, dtype=torch.float64)
    chain, _ = flow.sample_chain(
        exact_velocity, normals, num_steps=num_steps, noise_level=noise_level, temperatures=heat
    )
    return chain


def test_without_noise_the_sampler_follows_the_velocity() -> None:
    x = iter_error_chain(1.0, 0.0)[:, 0]
    for k in range(6):
        x = x + exact_velocity(x, torch.full((4,), k / 6, dtype=torch.float64)) / 6
    torch.testing.assert_close(iter_error_chain(1.0, 0.0)[:, -1], x)


def test_a_vanishing_noise_level_leads_to_the_deterministic_sampler() -> None:
    still = iter_error_chain(1.0, 0.0)
    gaps = [float((iter_error_chain(a, 1.0) - still).abs().max()) for a in (1e-1, 1e-3, 1e-6)]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 1e-4


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0])
def test_logprobs_of_a_stored_chain_are_those_of_its_drawing(temperature: float) -> None:
    sde = {"num_steps": 4, "noise_level": 0.5}
    normals = torch.from_numpy(np.random.default_rng(2).normal(size=(5, 5, 3, 2)))
    heat = torch.full((5,), temperature, dtype=torch.float64)
    chain, rows = flow.sample_chain(exact_velocity, normals, temperatures=heat, **sde)  # type: ignore[arg-type]
    scale = torch.where(heat > 0, heat, 1.0)
    again = flow.row_logprobs(exact_velocity, chain, temperatures=scale, **sde)  # type: ignore[arg-type]
    torch.testing.assert_close(again, rows, rtol=0, atol=1e-12)


def test_a_transition_is_the_normal_distribution_of_torch() -> None:
    sde = {"num_steps": 4, "noise_level": 0.5}
    normals = torch.from_numpy(np.random.default_rng(3).normal(size=(2, 5, 3, 2)))
    heat = torch.tensor([1.0, 0.7], dtype=torch.float64)
    chain, rows = flow.sample_chain(exact_velocity, normals, temperatures=heat, **sde)  # type: ignore[arg-type]
    for k in range(4):
        tau, x = torch.tensor(k / 4, dtype=torch.float64), chain[:, k]
        held = max(k / 4, 1 / 4)
        v = exact_velocity(x, tau)
        centre = x + 0.25 * (v - 0.5**2 / (2 * held) * (x - tau * v))
        width = 0.5 * math.sqrt((1 - held) / held) * math.sqrt(0.25) * heat[:, None, None]
        expected = torch.distributions.Normal(centre, width.expand_as(centre)).log_prob(chain[:, k + 1])
        torch.testing.assert_close(rows[:, k], expected.sum(-1))


def test_only_executed_actions_count() -> None:
    rows = torch.arange(12.0).view(1, 2, 6).expand(3, 2, 6)
    assert flow.sum_executed(rows, torch.tensor([1, 3, 6])).tolist() == [
        [0.0, 6.0], [3.0, 21.0], [15.0, 51.0],
    ]  # fmt: skip


def test_entropies_are_those_of_the_executed_dimensions() -> None:
    heat = torch.ones(1, dtype=torch.float64)
    found = flow.compute_transition_entropies(
        torch.tensor([2]), 3, num_steps=2, noise_level=0.5, temperatures=heat
    )
    width = 0.5 * math.sqrt(0.5)  # τ held at 1/2 in both transitions: σ = a, Δτ = 1/2
    expected = 6 * float(torch.distributions.Normal(0.0, width).entropy())
    assert found.tolist()[0] == pytest.approx([expected, expected])


def test_draws_depend_on_seed_and_place_alone() -> None:
    alone = seeded_random.draw_uniforms([7], 10)[0]
    assert np.array_equal(seeded_random.draw_uniforms([3, 7, 2**63 - 1], 25)[1, :10], alone)
    assert not np.intersect1d(seeded_random.draw_uniforms([8], 10), alone).size


def test_draws_are_uniform_and_normal_and_independent_between_near_seeds() -> None:
    many = seeded_random.draw_uniforms(np.arange(1000), 100)
    assert many.mean() == pytest.approx(0.5, abs=0.003) and many.var() == pytest.approx(1 / 12, rel=0.01)
    normal = seeded_random.draw_normals(np.arange(1000), 101)
    assert normal.mean() == pytest.approx(0.0, abs=0.01) and normal.std() == pytest.approx(1.0, rel=0.01)
    near = np.corrcoef(normal[:-1].ravel(), normal[1:].ravel())[0, 1]
    assert abs(near) < 0.01
