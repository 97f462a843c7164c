"""A policy loss of your own: REINFORCE with a ratio that is cut once, and a pull towards the reference.

    stepwell check examples/own_loss.py:cautious_loss --set pull=0.2
    stepwell train frozenlake recipe.name=rloo recipe.loss.function=examples/own_loss.py:cautious_loss

`needs` names the inputs. "reference" makes the trainer keep a frozen copy of the policy's start, "behavior"
are the logprobs of the engine that sampled, "advantages" come from the recipe's credit function.
`old_samples` says that the ratio corrects for samples of older weights, so asynchronous runs may use it.
Reduce with `inputs.reduction`, which leaves masked tokens out. Metrics appear in the run as `loss/NAME`.
"""

from torch import Tensor

from stepwell.algos import LossInputs
from stepwell.algos.declarations import loss


@loss(needs=("advantages", "behavior", "reference"), old_samples="corrected")
def cautious_loss(
    inputs: LossInputs, *, max_ratio: float = 2.0, pull: float = 0.05
) -> tuple[Tensor, dict[str, Tensor]]:
    """−min(w, max_ratio)·A·log π + pull·(log π − log π_ref)², mean over action tokens; w is not trained."""
    weights = inputs.reduction.token_weights("token_mean")
    policy = inputs.policy_logprobs
    ratio = (policy.detach() - inputs.read_behavior()).exp().clamp(max=max_ratio)
    distance = (policy - inputs.read_reference()).square()
    value = weights @ (pull * distance - ratio * inputs.read_advantages() * policy)
    return value, {"distance": weights @ distance.detach()}
