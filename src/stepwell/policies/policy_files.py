"""The files of a language policy: what they hold is read first, and may be written later by another thread.

    read_content ─► PolicyContent (weights by module, description of the critics) ─► write_content

Invariant: `write_content` takes every weight and everything that training may change from the content. Of the
policy itself it reads only what is fixed: configuration, names, and the tokenizer's files. So a content whose
tensors were copied can be written while the policy is trained.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from stepwell.policies import directory
from stepwell.policies.progress_bar import hide_progress_bar

if TYPE_CHECKING:
    from stepwell.policies.causal_lm import CausalLMPolicy

MODEL = "model"


@dataclass(frozen=True, slots=True)
class PolicyContent:
    """What a policy's directory holds: weights by module, and which critics there are."""

    weights: dict[str, dict[str, Tensor]]
    description: dict[str, Any]


def describe_critics(policy: Any) -> dict[str, Any]:
    """Which critics a policy has, and the link of their values."""
    critic = policy.critic
    return {
        "critic": None if critic is None else critic.kind,
        "critic_link": None if critic is None else critic.link,
        "instruction_critic": policy.instruction_critic is not None,
    }


def read_content(policy: CausalLMPolicy) -> PolicyContent:
    """The present content: the policy's own tensors, not copies."""
    weights = {
        MODEL: policy.model.state_dict() if policy.adapters is None else _read_adapters(policy.adapters)
    }
    for name, critic in policy.list_critics():
        weights[name] = critic.head.state_dict()
        if critic.backbone is not None:
            weights[_name_backbone(name)] = critic.backbone.state_dict()
    return PolicyContent(weights, describe_critics(policy))


def write_content(policy: CausalLMPolicy, folder: Path, content: PolicyContent, model: Any = None) -> None:
    """Write the files of a policy into a folder; `model` is written in place of the policy's own."""
    with hide_progress_bar():
        if model is not None:
            model.save_pretrained(folder)
        else:
            own = policy.model if policy.adapters is None else policy.adapters
            own.save_pretrained(folder, state_dict=dict(content.weights[MODEL]))
        critics = [(name, critic) for name, critic in policy.list_critics() if name in content.weights]
        for name, critic in critics:
            backbone = content.weights.get(_name_backbone(name))
            directory.write_critic(folder, name, content.weights[name], critic.backbone, backbone)
    if policy.source is not None and policy.source.is_dir():
        directory.copy_side_files(policy.source, folder)
    directory.write_policy_file(folder, content.description)


def _read_adapters(adapters: Any) -> dict[str, Tensor]:
    """The weights of the adapters alone; the base model is in a directory of its own."""
    trained = {name for name, parameter in adapters.named_parameters() if parameter.requires_grad}
    weights: dict[str, Tensor] = adapters.state_dict()
    return {name: x for name, x in weights.items() if name in trained or "lora_" in name}


def _name_backbone(critic: str) -> str:
    return f"{critic}.backbone"
