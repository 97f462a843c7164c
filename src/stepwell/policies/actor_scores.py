"""What one pass of a language model says of the actions in a microbatch.

Logprobs, entropies and the KL to a frozen reference come from hidden states where the model's head is one
product (`head.py`): logits are then never all in memory, neither those of the policy nor those of the
reference (`packing/projection.py`). Other models compute all logits.

The reference runs before the policy, without gradients, so that nothing of its pass is held during the
policy's but its hidden states where logits are wanted.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

from stepwell.core import ConfigError
from stepwell.packing import token_scores
from stepwell.packing.projection import HeadInputs, project_scores
from stepwell.packing.scores import compute_row_kls
from stepwell.policies.forward import (
    ForwardInputs,
    compute_actor_rows,
    compute_hidden_states,
    find_backbone,
)
from stepwell.policies.head import find_plain_head

Scores = tuple[Tensor, Tensor | None, Tensor | None]
"""Logprobs, entropies and KL to the reference, per action token."""
OpenReference = Callable[[], AbstractContextManager[Any]]


def score_actions(
    model: Any,
    inputs: ForwardInputs,
    *,
    with_hidden: bool,
    with_entropies: bool,
    open_reference: OpenReference | None = None,
) -> tuple[Scores, Tensor | None]:
    """Scores per action token, and hidden states [M, H] at the value places if wanted.

    `open_reference` gives the frozen model to which the KL is measured; None: no KL.
    """
    wanted = (inputs.inverse_temperatures, inputs.logit_rows, inputs.targets)
    head = find_plain_head(model)
    if head is None:
        others = None if open_reference is None else _compute_reference_logits(inputs, open_reference)
        logits, hidden = compute_actor_rows(model, inputs, with_hidden=with_hidden)
        logprobs, entropies = token_scores(logits, *wanted, with_entropies=with_entropies)
        kls = None if others is None else compute_row_kls(logits, others, inputs.inverse_temperatures)
    else:
        reference = None if open_reference is None else _compute_reference_rows(inputs, open_reference)
        states = compute_hidden_states(find_backbone(model), inputs)
        hidden = states[inputs.value_places] if with_hidden else None
        logprobs, entropies, kls = project_scores(
            states[inputs.logit_sites],
            head.weight,
            head.bias,
            *wanted,
            with_entropies=with_entropies,
            reference=reference,
        )
    entropies, kls = (None if part is None else part[inputs.logit_rows] for part in (entropies, kls))
    return (logprobs, entropies, kls), hidden


def _compute_reference_rows(inputs: ForwardInputs, open_reference: OpenReference) -> HeadInputs:
    """The reference's hidden states where logits are wanted, and its head."""
    with open_reference() as model:
        head = find_plain_head(model)
        if head is None:
            raise ConfigError(
                "recipe.kl_estimator='full' needs a reference of the policy's kind, whose logits are one "
                "product of its hidden states; use k1, k2 or k3"
            )
        states = compute_hidden_states(find_backbone(model), inputs)
        bias = None if head.bias is None else head.bias.detach()
        return HeadInputs(states[inputs.logit_sites], head.weight.detach(), bias)


def _compute_reference_logits(inputs: ForwardInputs, open_reference: OpenReference) -> Tensor:
    with open_reference() as model:
        return compute_actor_rows(model, inputs, with_hidden=False)[0]
