"""KL divergence to the reference, and the two places it can go.

With x = policy_logprobs − ref_logprobs of a sampled action token:

    k1 = x               unbiased, noisy, may be negative
    k2 = x² / 2          biased but small variance; its gradient is an unbiased gradient of the KL
    k3 = e^{−x} − 1 + x  unbiased and never negative
    full                 Σ_a π(a)(log π(a) − log π_ref(a)) over the whole vocabulary: no sampling noise

In the reward (`kl_in="reward"`) the estimate becomes k = −β·estimate per token, detached, for
`Timeline.token_rewards`. In the loss (`kl_in="loss"`) β·mean estimate is added to it. The mean of
k1's gradient is 0, so k1 belongs in the reward.

k1, k2 and k3 take log-probabilities per action token, `full` takes logits per action token and word. All
give one number per action token, and the rest of this module uses only that.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from stepwell.algos.checks import FLOATS, check_floats
from stepwell.algos.losses.inputs import Metrics
from stepwell.algos.losses.reduction import Aggregate, MinibatchCounts, Reduction
from stepwell.algos.scalar_checks import check_choice, check_not_negative
from stepwell.algos.timeline import Timeline
from stepwell.core.errors import InputError

K3_LOWEST = -20.0  # e^{−x} is held here: it would overflow a float32 at x = −88


def k1(policy_logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """x"""
    return _subtract_reference(policy_logprobs, ref_logprobs)


def k2(policy_logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """x² / 2"""
    return _subtract_reference(policy_logprobs, ref_logprobs).square() / 2.0


def k3(policy_logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """e^{−x} − 1 + x"""
    x = _subtract_reference(policy_logprobs, ref_logprobs).clamp(min=K3_LOWEST)
    return torch.expm1(-x) + x


def full(policy_logits: Tensor, ref_logits: Tensor) -> Tensor:
    """KL(π‖π_ref) of whole distributions: [token, word] logits or log-probabilities -> [token]."""
    for name, logits in (("policy_logits", policy_logits), ("ref_logits", ref_logits)):
        if logits.ndim != 2 or logits.dtype not in FLOATS:
            raise InputError(
                f"{name}: {logits.dtype} {list(logits.shape)}; expected float32/64 [token, word]"
            )
    if policy_logits.shape != ref_logits.shape:
        raise InputError(
            f"ref_logits: shape {list(ref_logits.shape)}, policy_logits {list(policy_logits.shape)}"
        )
    policy = policy_logits.log_softmax(dim=1)
    ref = ref_logits.detach().log_softmax(dim=1)
    # A word the policy excludes (log 0) contributes nothing; without this it would give 0·inf.
    difference = torch.where(policy.isinf(), 0.0, policy - ref)
    return (policy.exp() * difference).sum(dim=1)


ESTIMATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3, "full": full}


def estimate_kl(name: str, policy: Tensor, ref: Tensor) -> Tensor:
    """[token]: the estimator of that name; `policy` and `ref` are logprobs (logits for "full")."""
    check_choice("estimator", name, tuple(ESTIMATORS))
    return ESTIMATORS[name](policy, ref)


@torch.no_grad()
def kl_reward(estimates: Tensor, *, coef: float) -> Tensor:
    """[token]: k = −coef·estimate, for `Timeline.token_rewards`."""
    check_not_negative("coef", coef)
    return -coef * estimates.detach()


def kl_loss(
    estimates: Tensor,
    timeline: Timeline,
    *,
    coef: float,
    aggregate: Aggregate = "token_mean",
    loss_mask: Tensor | None = None,
    minibatch: MinibatchCounts | None = None,
) -> tuple[Tensor, Metrics]:
    """coef·mean estimate, to add to a policy loss; averaged as the policy loss is."""
    check_not_negative("coef", coef)
    check_floats("estimates", estimates, timeline.num_tokens, "action token", timeline.rewards.device)
    reduction = Reduction(timeline, estimates.dtype, loss_mask, minibatch)
    mean = reduction.token_weights(aggregate) @ estimates
    return coef * mean, {"kl": mean.detach()}


def _subtract_reference(policy_logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    check_floats("policy_logprobs", policy_logprobs, None, "action token")
    check_floats("ref_logprobs", ref_logprobs, len(policy_logprobs), "action token", policy_logprobs.device)
    return policy_logprobs - ref_logprobs.detach().to(policy_logprobs.dtype)
