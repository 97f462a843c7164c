"""A vision-language model as a policy: what `CausalLMPolicy` is to text, for prompts with images.

    from_pretrained ─► prepared (checks images, tree or replay) ─► run ─► save_pretrained

Any Hugging Face image-text-to-text directory of a known family works (`rendering.vision`).
Images are named in the states of steps and looked up in `images`. All else (critic,
reference, LoRA, dtypes, saving) is that of the language policy: below the embeddings it is one.

Invariants
* Steps share a token of the tree only where they share the images before it, and each distinct
  image of a microbatch is encoded once.
* Tree attention is put into the decoder alone, after the same proof as for language models; the
  encoder keeps its own.
* A prompt whose placeholders are not those of the model's own format is refused.
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
    """A policy that sees.

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
        """Open a directory, or a built-in model by name; `options` are those of `CausalLMPolicy`.

        `images` are those that steps will name; without it the policy has its own, to be
        filled with `policy.image_store.add`.
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
        """The policy that settings describe."""
        policy = super().from_config(config)
        assert isinstance(policy, VLMPolicy)
        if image_store is not None:
            policy.image_store = image_store
        return policy

    def prepare_batch(self, packed: Packed) -> Packed:
        """The batch checked against this model, and laid out the way this model runs."""
        packed = super().prepare_batch(packed)
        if packed.table.has_images:
            locate_images(packed, self.image_format, self.image_store)
        return packed

    def get_inputs(self, microbatch: Microbatch) -> ForwardInputs:
        """A prepared microbatch as the model takes it, its images in place."""
        if "image_places" not in microbatch.cache:
            return super().get_inputs(microbatch)
        return build_image_inputs(microbatch, self.device, self.image_format, self.image_store)

    def _check_images(self, packed: Packed) -> None:
        """They are checked when the batch is looked through."""

    def _find_attending(self, part: Any) -> Any:
        return find_decoder(part)
