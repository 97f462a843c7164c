"""Every credit function against numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch

from stepwell.algos import CreditResult, Timeline, credit


def near(values: list[float]) -> object:
    return pytest.approx(values, abs=1e-9)


def flat(result: CreditResult) -> list[float]:
    return result.advantages.tolist()


def steps(result: CreditResult) -> list[float]:
    assert result.step_advantages is not None
    return result.step_advantages.tolist()


def targets(result: CreditResult) -> list[float]:
    assert result.value_targets is not None
    return result.value_targets.tolist()


def sites(result: CreditResult) -> list[list[int]]:
    assert result.value_sites is not None
    return result.value_sites.tolist()


@pytest.fixture
def example() -> Timeline:
    """The worked example of the maths page."""
    return Timeline.from_lists(
        rewards=[[0.0, 1.0]],
        token_values=[[[0.2, 0.3], [0.4, 0.5, 0.6]]],
        end_values=[[0.35, 0.7]],
        dtype=torch.float64,
    )


@pytest.fixture
def busy() -> Timeline:
    """Every optional number present: token rewards and a bootstrap value too."""
    return Timeline.from_lists(
        rewards=[[1.0, 2.0]],
        token_values=[[[0.5], [1.0, 2.0]]],
        end_values=[[0.25, 0.75]],
        token_rewards=[[[0.1], [0.2, 0.3]]],
        bootstrap=[4.0],
        dtype=torch.float64,
    )


@pytest.fixture
def outcome() -> Timeline:
    """Three one-token steps with the outcome at the end, as WebRL, DigiRL and AWR see it."""
    return Timeline.from_lists(
        rewards=[[0.0, 0.0, 1.0]],
        state_values=[[0.1, 0.2, 0.3]],
        instruction_values=[0.5],
        dtype=torch.float64,
    )


def test_token_gae_of_the_worked_example(example: Timeline) -> None:
    result = credit.token_gae(example, gamma=0.99, lam=0.95)
    assert flat(result) == pytest.approx([0.662483, 0.601258, 0.537223, 0.470200, 0.400000], abs=1e-6)


def test_step_gae_of_the_worked_example(example: Timeline) -> None:
    result = credit.step_gae(example, gamma=0.99, lam=1.0)
    assert steps(result) == near([0.79, 0.60])
    assert result.to_lists() == [[near([0.79, 0.79]), near([0.60, 0.60, 0.60])]]
    assert targets(result) == near([0.99, 1.0])
    assert sites(result) == [[0, 0], [1, 0]]


def test_bilevel_gae_of_the_worked_example(example: Timeline) -> None:
    result = credit.bilevel_gae(example, gamma_turn=0.95, lam_turn=1.0, gamma_token=1.0, lam_token=1.0)
    assert steps(result) == near([0.60, 0.30])
    assert result.to_lists() == [[near([0.75, 0.65]), near([0.60, 0.50, 0.40])]]


def test_webrl_advantage_of_the_worked_example(example: Timeline) -> None:
    assert steps(credit.webrl_advantage(example, gamma=0.9, lam=0.5)) == near([0.43, 0.60])


def test_the_worked_example_holds_in_float32() -> None:
    timeline = Timeline.from_lists(rewards=[[0.0, 1.0]], token_values=[[[0.2, 0.3], [0.4, 0.5, 0.6]]])
    result = credit.token_gae(timeline, gamma=0.99, lam=0.95)
    assert result.advantages.dtype == torch.float32
    assert flat(result) == pytest.approx([0.662483, 0.601258, 0.537223, 0.470200, 0.400000], abs=1e-6)


def test_token_gae_puts_each_reward_at_its_step_end(busy: Timeline) -> None:
    result = credit.token_gae(busy, gamma=0.5, lam=0.5, reward_at="step_end")
    assert flat(result) == near([1.29375, 0.775, 2.3])
    assert targets(result) == near([1.79375, 1.775, 4.3])
    assert sites(result) == [[0, 0], [1, 0], [1, 1]]
    assert result.step_advantages is None


def test_token_gae_puts_the_whole_return_on_the_last_token_by_default(busy: Timeline) -> None:
    assert flat(credit.token_gae(busy, gamma=0.5, lam=0.5)) == near([0.35625, 1.025, 3.3])


def test_step_gae_adds_token_rewards_to_the_step(busy: Timeline) -> None:
    result = credit.step_gae(busy, gamma=0.5, lam=0.5)
    assert steps(result) == near([1.975, 3.5])
    assert targets(result) == near([2.475, 4.5])


def test_turn_gae_can_read_the_value_after_the_action(busy: Timeline) -> None:
    result = credit.turn_gae(busy, gamma=0.5, lam=0.5, site="end")
    assert steps(result) == near([1.9375, 3.25])
    assert targets(result) == near([2.1875, 4.0])
    assert sites(result) == [[0, 1], [1, 2]]


def test_turn_gae_reads_the_value_of_the_state(busy: Timeline) -> None:
    result = credit.turn_gae(busy, gamma=0.5, lam=0.5)
    assert steps(result) == near([1.75, 3.0])
    assert targets(result) == near([2.25, 4.0])
    assert sites(result) == [[0, 0], [1, 0]]


def test_with_a_perfect_critic_turn_gae_tells_a_right_action_from_a_wrong_one() -> None:
    # half of the policy's actions are right: V(s) is 0.5 before the action, 1 or 0 after it
    timeline = Timeline.from_lists([[1.0], [0.0]], token_values=[[[0.5]], [[0.5]]], end_values=[[1.0], [0.0]])
    assert steps(credit.turn_gae(timeline)) == near([0.5, -0.5])
    assert steps(credit.turn_gae(timeline, site="end")) == near([0.0, 0.0])


def test_bilevel_gae_discounts_at_both_levels(busy: Timeline) -> None:
    result = credit.bilevel_gae(busy, gamma_turn=0.5, lam_turn=0.5, gamma_token=0.5, lam_token=0.5)
    assert steps(result) == near([1.9375, 3.25])
    assert flat(result) == near([1.6625, 0.68125, 1.925])
    assert targets(result) == near([2.1625, 1.68125, 3.925, 2.1875, 4.0])
    assert sites(result) == [[0, 0], [1, 0], [1, 1], [0, 1], [1, 2]]


def test_bilevel_gae_can_start_from_the_turn_advantage_alone(busy: Timeline) -> None:
    result = credit.bilevel_gae(
        busy, gamma_turn=0.5, lam_turn=0.5, gamma_token=0.5, lam_token=0.5, final="turn"
    )
    assert flat(result) == near([1.9375, 1.0125, 3.25])


def test_value_index_points_into_the_values_of_all_steps_put_end_to_end(example: Timeline) -> None:
    # Step 0 has values at 0, 1 and (after its action) 2; step 1 at 3, 4, 5 and 6.
    assert credit.bilevel_gae(example).value_index.tolist() == [0, 1, 3, 4, 5, 2, 6]
    assert credit.step_gae(example).value_index.tolist() == [0, 3]


def test_grpo_compares_with_the_group() -> None:
    timeline = Timeline.from_lists(
        rewards=[[0.0, 0.0], [5.0], [1.0, 2.0], [0.0]], groups=["a", "b", "a", "a"], dtype=torch.float64
    )
    plain = credit.grpo(timeline, normalize_std=False)
    assert steps(plain) == near([-1.0, -1.0, 0.0, 2.0, 2.0, -1.0])
    # mean 1, sample std √3
    scaled = credit.grpo(timeline, eps=1e-12)
    assert steps(scaled) == near([-(3**-0.5)] * 2 + [0.0] + [2 * 3**-0.5] * 2 + [-(3**-0.5)])
    assert credit.grpo(timeline, eps=1.0).advantages[3].item() == pytest.approx(2 / (3**0.5 + 1))


def test_rloo_compares_with_the_mean_of_the_others() -> None:
    timeline = Timeline.from_lists(
        rewards=[[0.0], [5.0], [3.0], [0.0]], groups=["a", "b", "a", "a"], dtype=torch.float64
    )
    assert steps(credit.rloo(timeline)) == near([-1.5, 0.0, 3.0, -1.5])


def test_reinforce_pp_whitens_the_return_to_go() -> None:
    timeline = Timeline.from_lists(rewards=[[1.0, 2.0]], tokens_per_step=[[1, 2]], dtype=torch.float64)
    # returns 1.5, 1, 2: mean 1.5, population std 1/√6
    result = credit.reinforce_pp(timeline, gamma=0.5)
    assert flat(result) == pytest.approx([0.0, -(1.5**0.5), 1.5**0.5], abs=1e-7)


def test_reinforce_pp_reads_token_rewards() -> None:
    timeline = Timeline.from_lists(rewards=[[0.0]], token_rewards=[[[1.0, 3.0]]], dtype=torch.float64)
    # returns 4, 3
    assert flat(credit.reinforce_pp(timeline)) == pytest.approx([1.0, -1.0], abs=1e-7)


def test_reinforce_pp_discounts_per_token_and_by_itself_at_099() -> None:
    timeline = Timeline.from_lists([[1.0]], tokens_per_step=[[3]])
    assert flat(credit.reinforce_pp(timeline)) == flat(credit.reinforce_pp(timeline, gamma=0.99))
    assert flat(credit.reinforce_pp(timeline)) != flat(credit.reinforce_pp(timeline, gamma=1.0))


def test_reinforce_pp_with_a_group_baseline_broadcasts_then_whitens() -> None:
    timeline = Timeline.from_lists(
        rewards=[[1.0], [3.0]], tokens_per_step=[[1], [3]], groups=[0, 0], dtype=torch.float64
    )
    # differences -1, 1, 1, 1 over tokens: mean 1/2, population std √3/2
    result = credit.reinforce_pp(timeline, baseline="group")
    assert flat(result) == pytest.approx([-(3**0.5)] + [3**-0.5] * 3, abs=1e-7)
    assert steps(result) == pytest.approx([-(3**0.5), 3**-0.5], abs=1e-7)


def test_gigpo_adds_the_comparison_of_steps_that_share_an_anchor() -> None:
    timeline = Timeline.from_lists(
        rewards=[[0.0, 1.0], [0.0, 0.0], [7.0]],
        groups=["a", "a", "b"],
        anchors=[["x", "y"], ["x", "x"], ["x"]],
        dtype=torch.float64,
    )
    # Step returns .5, 1 | 0, 0 | 7. In group a, anchor x holds .5, 0, 0; y is alone; b is another group.
    plain = credit.gigpo(timeline, gamma=0.5, omega=2.0, normalize_std=False)
    assert steps(plain) == near([0.5 + 2 / 3, 0.5, -0.5 - 1 / 3, -0.5 - 1 / 3, 0.0])
    half = 0.5**0.5
    scaled = credit.gigpo(timeline, gamma=0.5, eps=1e-12)
    assert steps(scaled) == near([half + 2 * 3**-0.5, half, -half - 3**-0.5, -half - 3**-0.5, 0.0])


def test_gigpo_gives_a_step_without_anchor_no_step_credit() -> None:
    timeline = Timeline.from_lists(
        rewards=[[1.0], [0.0]], groups=[0, 0], anchors=[[None], [None]], dtype=torch.float64
    )
    assert steps(credit.gigpo(timeline, normalize_std=False)) == near([0.5, -0.5])


def test_webrl_advantage_mixes_one_step_and_final_estimates(outcome: Timeline) -> None:
    result = credit.webrl_advantage(outcome, gamma=0.5, lam=0.25)
    assert steps(result) == near([0.1125, 0.2125, 0.7])
    assert targets(result) == near([1.0, 1.0, 1.0])
    assert sites(result) == [[0, 0], [1, 0], [2, 0]]


def test_mc_advantage_is_the_discounted_outcome_minus_the_value(outcome: Timeline) -> None:
    result = credit.mc_advantage(outcome, gamma=0.5)
    assert steps(result) == near([0.15, 0.3, 0.7])
    assert targets(result) == near([1.0, 1.0, 1.0])


def test_digirl_advantage_and_its_step_filter(outcome: Timeline) -> None:
    result = credit.digirl_advantage(outcome, lam=0.5, horizon=3)
    assert steps(result) == near([0.325, 0.55, 1.0])
    assert result.keep is not None and result.keep.tolist() == [False, True, True]
    assert result.instruction_targets is not None and result.instruction_targets.tolist() == [1.0]
    wider = credit.digirl_advantage(outcome, lam=0.5, horizon=4)
    assert wider.loss_mask is not None and wider.loss_mask.tolist() == [True, True, True]


def test_digirl_keeps_the_trajectories_that_beat_their_expectation_by_most() -> None:
    timeline = Timeline.from_lists(
        rewards=[[1.0], [1.0], [0.0], [1.0]],
        state_values=[[0.0], [0.0], [0.0], [0.0]],
        instruction_values=[0.9, 0.2, 0.0, 0.2],
        dtype=torch.float64,
    )
    # surprises .1, .8, 0, .8: the best quarter is one trajectory, and its tie is kept with it
    result = credit.digirl_advantage(timeline, keep_top=0.25, horizon=2)
    assert result.keep is not None and result.keep.tolist() == [False, True, False, True]
    everyone = credit.digirl_advantage(timeline, keep_top=1.0, horizon=2)
    assert everyone.keep is not None and everyone.keep.tolist() == [True, True, False, True]


def test_whiten_uses_the_population_deviation_of_the_masked_entries() -> None:
    x = torch.tensor([1.0, 3.0, 100.0], dtype=torch.float64)
    mask = torch.tensor([True, True, False])
    assert credit.whiten(x, mask).tolist() == pytest.approx([-1.0, 1.0, 0.0], abs=1e-7)


def test_whitening_over_steps_counts_each_step_once() -> None:
    timeline = Timeline.from_lists(
        rewards=[[1.0, 3.0]], state_values=[[0.0, 0.0]], tokens_per_step=[[1, 5]], dtype=torch.float64
    )
    white = credit.mc_advantage(timeline, gamma=1.0)  # both steps see the outcome 3
    assert white.whiten_advantages("steps").advantages.tolist() == [0.0] * 6
    result = credit.turn_gae(timeline, gamma=0.0, site="state")  # step advantages 1 and 3
    assert result.whiten_advantages("steps").advantages.tolist() == pytest.approx(
        [-1.0] + [1.0] * 5, abs=1e-7
    )
    only_first = result.whiten_advantages("steps", torch.tensor([True, False]))
    assert only_first.advantages.tolist() == [0.0] * 6
    # Over tokens the long step weighs five times as much: mean 8/3, population std √5/3.
    over_tokens = result.whiten_advantages("tokens").advantages.tolist()
    assert over_tokens == pytest.approx([-(5**0.5)] + [5**-0.5] * 5, abs=1e-7)


def test_defaults_are_those_of_the_maths_page(example: Timeline) -> None:
    same = [
        (
            credit.token_gae(example),
            credit.token_gae(example, gamma=0.99, lam=1.0, reward_at="trajectory_end"),
        ),
        (credit.step_gae(example), credit.step_gae(example, gamma=0.99, lam=1.0)),
        (credit.turn_gae(example), credit.turn_gae(example, gamma=0.99, lam=1.0, site="state")),
        (
            credit.bilevel_gae(example),
            credit.bilevel_gae(
                example, gamma_turn=0.95, lam_turn=1.0, gamma_token=1.0, lam_token=1.0, final="td_plus_turn"
            ),
        ),
        (credit.webrl_advantage(example), credit.webrl_advantage(example, gamma=0.9, lam=0.5)),
        (credit.mc_advantage(example), credit.mc_advantage(example, gamma=0.9)),
    ]
    for default, spelled in same:
        assert torch.equal(default.advantages, spelled.advantages)


def test_credit_lists_every_function_under_its_own_name() -> None:
    assert [function.__name__ for function in credit.CREDIT.values()] == list(credit.CREDIT)
    assert list(credit.CREDIT) == [
        "token_gae",
        "step_gae",
        "turn_gae",
        "bilevel_gae",
        "grpo",
        "rloo",
        "reinforce_pp",
        "gigpo",
        "webrl_advantage",
        "digirl_advantage",
        "mc_advantage",
    ]
