"""The reference weights of the KL term, as files of the run.

    reference.safetensors          the weights at the run's start
    reference-000021.safetensors   those before update 21, the first of a phase

With adapters the reference is the base model and needs no file, unless phases have their own reference: then
the files hold adapters, and the base is shared with the policy. A file stays until no checkpoint is left that
could need it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save

from stepwell.core import EncodingError
from stepwell.core.disk import atomic_write
from stepwell.runs.build.phases import find_phase_length

if TYPE_CHECKING:
    from stepwell.policies.causal_lm import CausalLMPolicy
    from stepwell.policies.vla import VLAPolicy
    from stepwell.runs.build.components import Components

REFERENCE = "reference.safetensors"


def find_reference(components: Components, update: int) -> int:
    """The first update with the reference of this update: the first of its phase, if phases have one."""
    config = components.config
    length = find_phase_length(config, components.recipe)
    has_own = config.curriculum.reference == "phase"
    return 1 if length is None or not has_own or update == 0 else (update - 1) // length * length + 1


def freeze_reference(components: Components) -> None:
    """Make the policy the reference; adapters are copied if every phase has a reference of its own."""
    length = find_phase_length(components.config, components.recipe)
    has_own = length is not None and components.config.curriculum.reference == "phase"
    components.trainer.freeze_reference(copies_adapters=has_own)


def save_reference(policy: CausalLMPolicy | VLAPolicy, folder: Path, first_update: int = 1) -> None:
    """Write the frozen reference of `policy`, if it has its own: it holds from this update on."""
    reference = policy.reference
    if reference is not None:
        weights = {k: v.detach().clone().contiguous() for k, v in _list_own_weights(policy).items()}
        atomic_write(_find_path(folder, first_update), save(weights))


def load_reference(policy: CausalLMPolicy | VLAPolicy, folder: Path, first_update: int = 1) -> None:
    """Load what `save_reference` wrote for this update into the frozen reference of `policy`."""
    reference, path = policy.reference, _find_path(folder, first_update)
    if reference is None:
        return
    try:
        found, own = load_file(path, device=str(policy.device)), _list_own_weights(policy)
        if found.keys() != own.keys():
            raise RuntimeError(f"it holds {len(found)} weights, {len(own)} are needed")
        reference.load_state_dict(found, strict=False)  # the rest is the policy's
    except (OSError, SafetensorError, RuntimeError) as error:
        raise EncodingError(
            f"{path}, the reference weights of the KL term, cannot be used ({error}); "
            "put the file back, or start a new run"
        ) from error


def renew_reference(components: Components, folder: Path, update: int) -> None:
    """Make the policy the reference if this update is the first of a later phase."""
    is_first = update > 1 and find_reference(components, update) == update
    if is_first and components.recipe.needs_reference:
        freeze_reference(components)
        save_reference(components.policy, folder, update)


def remove_references(folder: Path, before: int) -> None:
    """Remove references of phases that no checkpoint needs: those that began before this update."""
    for path in folder.glob("reference-*.safetensors"):
        if int(path.stem.removeprefix("reference-")) < before:
            path.unlink()


def _find_path(folder: Path, first_update: int) -> Path:
    return folder / (REFERENCE if first_update == 1 else f"reference-{first_update:06d}.safetensors")


def _list_own_weights(policy: CausalLMPolicy | VLAPolicy) -> dict[str, Any]:
    """The weights of the reference that it does not share with the policy."""
    reference: Any = policy.reference
    shared = {id(parameter) for parameter in policy.model.parameters()}
    named = dict(reference.named_parameters(remove_duplicate=False))
    weights = reference.state_dict()
    return {name: weight for name, weight in weights.items() if id(named.get(name)) not in shared}
