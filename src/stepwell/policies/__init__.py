"""Policies: models as the trainer uses them, and the built-in models.

`CausalLMPolicy` wraps any Hugging Face causal language model, `VLMPolicy` any vision-language
model of a known family; `open_policy` chooses between them. Names are imported on first use, so
that looking up a model does not load torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepwell.core.lazy import lazy_names

if TYPE_CHECKING:
    from stepwell.policies.causal_lm import CausalLMPolicy
    from stepwell.policies.kinds import accepts_images, open_policy
    from stepwell.policies.model_resolver import resolve_model
    from stepwell.policies.vlm.policy import VLMPolicy

__all__ = ["CausalLMPolicy", "VLMPolicy", "accepts_images", "open_policy", "resolve_model"]

__getattr__ = lazy_names(
    __name__,
    {
        "CausalLMPolicy": "causal_lm",
        "VLMPolicy": "vlm.policy",
        "open_policy": "kinds",
        "resolve_model": "model_resolver",
        "accepts_images": "kinds",
    },
)
