"""Policies: models as the trainer sees them, and the models Stepwell brings along.

`CausalLMPolicy` wraps any Hugging Face causal language model. Names are imported when
first used, so that looking up a model does not load torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepwell.policies.causal_lm import CausalLMPolicy
    from stepwell.policies.resolve import resolve_model

__all__ = ["CausalLMPolicy", "resolve_model"]


def __getattr__(name: str) -> Any:
    if name == "CausalLMPolicy":
        from stepwell.policies.causal_lm import CausalLMPolicy

        return CausalLMPolicy
    if name == "resolve_model":
        from stepwell.policies.resolve import resolve_model

        return resolve_model
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
