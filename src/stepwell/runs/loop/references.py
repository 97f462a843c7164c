"""The reference weights of the KL term, as a file of the run.

They are the weights at the run's start. With adapters the reference is the base model and needs no file.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError
from safetensors.torch import load_file, save

from stepwell.core import EncodingError
from stepwell.monitors.files import atomic_write

if TYPE_CHECKING:
    from stepwell.policies.causal_lm import CausalLMPolicy
    from stepwell.policies.vla import VLAPolicy

REFERENCE = "reference.safetensors"


def save_reference(policy: CausalLMPolicy | VLAPolicy, folder: Path) -> None:
    """Write the frozen reference of `policy`, if it has its own."""
    reference = policy.reference
    if reference is not None:
        weights = {k: v.detach().clone().contiguous() for k, v in reference.state_dict().items()}
        atomic_write(folder / REFERENCE, save(weights))


def load_reference(policy: CausalLMPolicy | VLAPolicy, folder: Path) -> None:
    """Load what `save_reference` wrote into the frozen reference of `policy`."""
    reference, path = policy.reference, folder / REFERENCE
    if reference is None:
        return
    try:
        reference.load_state_dict(load_file(path, device=str(policy.device)))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise EncodingError(
            f"{path}, the reference weights of the KL term, cannot be used ({error}); "
            "put the file back, or start a new run"
        ) from error
