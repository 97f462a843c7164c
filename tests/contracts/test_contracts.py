"""A good example of each kind passes every check; each bad one fails where it should."""

from __future__ import annotations

import pytest
from tests.contracts import examples

from stepwell.algos.declarations import CREDIT_MODULES, LOSS_MODULES, FunctionSpec
from stepwell.algos.recipes import RECIPES, find_recipe
from stepwell.cli import check
from stepwell.contracts.before_a_run import refuse_broken_functions
from stepwell.contracts.kinds import KINDS, check_object, find_kind
from stepwell.core.errors import ConfigError, InputError

HERE = "tests.contracts.examples"


@pytest.mark.parametrize(
    "name",
    [
        "good_credit",
        "good_critic_credit",
        "good_loss",
        "GOOD_RECIPE",
        "good_reward",
        "GOOD_STYLE",
        "good_shard",
    ],
)
def test_what_keeps_its_contract_passes_every_check(name: str) -> None:
    report = check_object(f"{HERE}:{name}")
    assert report.ok, str(report)
    assert len(report.findings) > 1 and all(finding.detail for finding in report.findings)


@pytest.mark.parametrize(
    ("name", "check", "words"),
    [
        ("wrong_type", "returns_a_credit_result", "it returned Tensor; return CreditResult.of_steps"),
        (
            "secret_critic",
            "returns_a_credit_result",
            "reads what it does not declare .*correct reads=None",
        ),
        ("wrong_shape", "advantages_fit_the_action_tokens", r"must be a tensor of \[28\]"),
        ("infinite", "advantages_fit_the_action_tokens", "hold (inf|nan|-inf); guard divisions"),
        ("differs_inside_a_step", "steps_have_one_advantage_as_declared", "declare level='token'"),
        (
            "no_targets",
            "critic_targets_are_where_declared",
            "declares reads='state' but gives no",
        ),
        ("wrong_sites", "critic_targets_are_where_declared", "use timeline.state_sites"),
        ("targets_above_one", "critic_targets_are_where_declared", r"must lie in \[0, 1\]"),
        ("secret_siblings", "siblings_are_compared_as_declared", "declare compares_siblings=True"),
        ("no_siblings", "siblings_are_compared_as_declared", "advantages do not depend on groups"),
        ("reads_penalties", "token_rewards_are_read_as_declared", "declare reads_token_rewards=True"),
        ("reads_no_penalties", "token_rewards_are_read_as_declared", "a KL in the reward would be lost"),
        ("not_white", "whitens_as_declared", "declares whitens=True, but mean"),
        ("constant", "rewards_decide", "whatever the rewards are"),
        ("random_credit", "is_deterministic_and_changes_no_input", "use no random numbers"),
        ("in_place", "is_deterministic_and_changes_no_input", "changes timeline.rewards in place"),
        ("first_is_best", "order_of_trajectories_does_not_matter", "depend on the order"),
        ("float_only", "works_in_float64_and_on_one_step", "keep the dtype"),
        ("returns_a_number", "returns_a_loss_and_metrics", r"must return \(loss, metrics\)"),
        ("not_reduced", "returns_a_loss_and_metrics", "tensor without dimensions"),
        ("not_finite", "returns_a_loss_and_metrics", "the loss is nan"),
        ("live_metric", "returns_a_loss_and_metrics", "metric 'value' must be a detached tensor"),
        ("secret_reference", "returns_a_loss_and_metrics", "ref_logprobs: missing.*add it to needs"),
        ("detached", "gradient_reaches_the_policy", "has no gradient"),
        (
            "leaks",
            "gradient_reaches_nothing_else",
            r"reaches advantages; read it by inputs.read_advantages\(\)",
        ),
        ("useless_reference", "everything_declared_is_read", "declares needs='reference', but other"),
        ("ignores_the_mask", "masked_tokens_are_left_out", "masked action tokens get a gradient"),
        ("random_loss", "is_deterministic_and_changes_no_input", "use no random numbers"),
        ("single_precision", "works_in_float64", "keep the dtype"),
        ("BAD_RECIPE", "credit_keeps_its_contract", "secret_siblings: siblings_are_compared_as_declared"),
        ("needs_actions", "returns_finite_numbers", "raised IndexError"),
        ("sometimes_nan", "returns_finite_numbers", "returned nan; it must return a finite number"),
        ("random_reward", "is_deterministic", "another reward the second time"),
        ("BAD_STYLE", "prompts_say_the_form_of_a_reply", "does not show <plan>, </plan>"),
        ("loses_the_last", "puts_every_request_into_one_shard", "each of 2 requests into exactly one"),
        ("lists_of_requests", "puts_every_request_into_one_shard", "must return a list of Shard"),
        ("random_shard", "is_deterministic", "divided differently the second time"),
    ],
)
def test_a_broken_promise_is_found_and_named(name: str, check: str, words: str) -> None:
    finding = check_object(f"{HERE}:{name}")[check]
    assert not finding.ok
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(finding.detail)


@pytest.mark.parametrize("name", [*CREDIT_MODULES, *LOSS_MODULES])
def test_every_built_in_function_keeps_its_contract(name: str) -> None:
    report = check_object(name, "credit" if name in CREDIT_MODULES else "loss")
    assert report.ok, str(report)


@pytest.mark.parametrize(
    ("name", "options"), [("turn_gae", {"site": "end"}), ("reinforce_pp", {"baseline": "group"})]
)
def test_declarations_follow_arguments(name: str, options: dict[str, str]) -> None:
    assert check_object(name, "credit", options=options).ok


@pytest.mark.parametrize("name", [name for name in RECIPES])
def test_every_built_in_recipe_keeps_its_contract(name: str) -> None:
    report = check_object(name, "recipe")
    assert report.ok, str(report)


def test_the_kind_is_found_or_asked_for() -> None:
    kinds = {
        name: find_kind(f"{HERE}:{name}")
        for name in ("good_credit", "good_loss", "GOOD_RECIPE", "good_reward", "GOOD_STYLE", "good_shard")
    }
    assert list(kinds.values()) == ["credit", "loss", "recipe", "reward", "style", "shard"]
    assert find_kind("frozenlake") == "env" and find_kind("gymnasium:CartPole-v1") == "env"
    with pytest.raises(ConfigError, match="does not say what it is; give --kind"):
        find_kind(f"{HERE}:plain_reward")
    assert check_object(f"{HERE}:plain_reward", "reward").ok
    with pytest.raises(ConfigError, match="names a credit and a recipe; say which with --kind credit"):
        find_kind("grpo")
    with pytest.raises(ConfigError, match="did you mean 'ppo_loss'"):
        find_kind("ppo_los")


def test_the_command_offers_every_kind() -> None:
    assert check.KINDS == KINDS


def test_objects_are_checked_as_names_are() -> None:
    assert check_object(examples.good_credit).ok
    assert check_object(examples.GOOD_RECIPE).ok
    assert check_object(lambda step: 1.0, "reward").ok


def test_a_function_without_a_declaration_is_refused() -> None:
    with pytest.raises(InputError, match=r"undeclared is not declared; write @credit\(...\) above it"):
        check_object(f"{HERE}:undeclared", "credit")


def test_a_run_refuses_credit_that_compares_siblings_without_saying_so() -> None:
    with pytest.raises(ConfigError, match=r"secret_siblings: .*declare compares_siblings=True"):
        refuse_broken_functions(find_recipe("grpo").with_credit(FunctionSpec(f"{HERE}:secret_siblings")))
    for harmless in ("no_siblings", "good_credit"):
        refuse_broken_functions(find_recipe("grpo").with_credit(FunctionSpec(f"{HERE}:{harmless}")))
