"""A vision-language model as a policy: `CausalLMPolicy` for prompts with images.

    from_pretrained ─► prepare_batch (checks images, tree or replay) ─► run ─► save_pretrained

Any Hugging Face image-text-to-text directory of a known family works (`rendering.vision`). The states of
steps name their images, which are looked up in `image_store`. Everything else (critic, reference, LoRA,
dtypes, saving) is inherited from the language policy, because below the embeddings the model is one.

Invariants
* Steps share a token of the tree only if they share the images before it. Each distinct image of a microbatch
  is encoded once.
* Tree attention replaces attention in the decoder only, after the same proof as for language models. The
  vision encoder keeps its own attention.
* A prompt whose placeholders do not match the model's own format is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stepwell.config import PolicyConfig
from stepwell.core import ImageStore
from stepwell.packing import Microbatch, Packed
from stepwell.policies import directory, lora
from stepwell.policies.causal_lm import CausalLMPolicy
from stepwell.policies.forward import ForwardInputs
from stepwell.policies.model_resolver import ADAPTER_FILE
from stepwell.policies.vlm.inputs import build_image_inputs, locate_images
from stepwell.policies.vlm.vision import find_decoder
from stepwell.rendering.vision import ImageFormat, load_image_format


class VLMPolicy(CausalLMPolicy):
    """A vision-language policy.

    >>> policy = VLMPolicy.from_pretrained("path/to/model", image_store=images)  # doctest: +SKIP
    >>> policy.logprobs(pack(steps))  # steps whose states name images  # doctest: +SKIP
    """

    image_format: ImageFormat
    image_store: ImageStore
    _open_model = staticmethod(directory.open_vision_language)

    @classmethod
    def from_pretrained(
        cls, name_or_path: str | Path, *, image_store: ImageStore | None = None, **options: Any
    ) -> VLMPolicy:
        """Open a directory or a built-in model by name. `options` are those of `CausalLMPolicy`.

        `image_store` holds the images that steps name. Without it the policy creates an empty one; fill it
        with `policy.image_store.add`.
        """
        policy = super().from_pretrained(name_or_path, **options)
        assert isinstance(policy, VLMPolicy) and policy.source is not None
        source = policy.source
        if (source / ADAPTER_FILE).is_file():
            source = directory.locate_model(lora.read_base_model(source))
        found = load_image_format(source)
        assert found is not None, "it was opened as a vision-language model"
        policy.image_format = found
        policy.image_store = ImageStore() if image_store is None else image_store
        return policy

    @classmethod
    def from_config(cls, config: PolicyConfig, image_store: ImageStore | None = None) -> VLMPolicy:
        """Build the policy from its settings."""
        policy = super().from_config(config)
        assert isinstance(policy, VLMPolicy)
        if image_store is not None:
            policy.image_store = image_store
        return policy

    def prepare_batch(self, packed: Packed) -> Packed:
        """Check the batch against this model, and lay it out the way this model runs it."""
        packed = super().prepare_batch(packed)
        if packed.table.has_images:
            locate_images(packed, self.image_format, self.image_store)
        return packed

    def get_inputs(self, microbatch: Microbatch) -> ForwardInputs:
        """Model inputs of a prepared microbatch, with its images."""
        if "image_places" not in microbatch.cache:
            return super().get_inputs(microbatch)
        return build_image_inputs(microbatch, self.device, self.image_format, self.image_store)

    def _check_images(self, packed: Packed) -> None:
        """Do nothing here: images are checked when they are located."""

    def _find_attending(self, part: Any) -> Any:
        return find_decoder(part)
