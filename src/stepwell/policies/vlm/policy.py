"""A vision-language model as a policy: what `CausalLMPolicy` is to text, for prompts with pictures.

    from_pretrained ─► prepared (checks pictures, tree or replay) ─► run ─► save_pretrained

Any Hugging Face image-text-to-text directory of a known family works (`rendering.vision`).
Pictures are named in the states of steps and looked up in `pictures`. All else (critic,
reference, LoRA, dtypes, saving) is that of the language policy: below the embeddings it is one.

Invariants
* Steps share a token of the tree only where they share the pictures before it, and each distinct
  picture of a microbatch is encoded once.
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
from stepwell.policies.forward import Feed
from stepwell.policies.model_resolver import ADAPTER_FILE
from stepwell.policies.vlm.inputs import feed_pictures, look
from stepwell.policies.vlm.vision import decoder_of
from stepwell.rendering.vision import ImageFormat, image_format_of


class VLMPolicy(CausalLMPolicy):
    """A policy that sees.

    >>> policy = VLMPolicy.from_pretrained("path/to/model", pictures=pictures)  # doctest: +SKIP
    >>> policy.logprobs(pack(steps))  # steps whose states name pictures  # doctest: +SKIP
    """

    image_format: ImageFormat
    pictures: ImageStore
    _open_model = staticmethod(directory.open_vision_language)

    @classmethod
    def from_pretrained(
        cls, name_or_path: str | Path, *, pictures: ImageStore | None = None, **options: Any
    ) -> VLMPolicy:
        """Open a directory, or a built-in model by name; `options` are those of `CausalLMPolicy`.

        `pictures` are those that steps will name; without it the policy has its own, to be
        filled with `policy.pictures.add`.
        """
        policy = super().from_pretrained(name_or_path, **options)
        assert isinstance(policy, VLMPolicy) and policy.source is not None
        source = policy.source
        if (source / ADAPTER_FILE).is_file():
            source = directory.locate(lora.base_of(source))
        found = image_format_of(source)
        assert found is not None, "it was opened as a vision-language model"
        policy.image_format = found
        policy.pictures = ImageStore() if pictures is None else pictures
        return policy

    @classmethod
    def from_config(cls, config: PolicyConfig, pictures: ImageStore | None = None) -> VLMPolicy:
        """The policy that settings describe."""
        policy = super().from_config(config)
        assert isinstance(policy, VLMPolicy)
        if pictures is not None:
            policy.pictures = pictures
        return policy

    def prepared(self, packed: Packed) -> Packed:
        """The batch checked against this model, and laid out the way this model runs."""
        packed = super().prepared(packed)
        if packed.table.has_images:
            look(packed, self.image_format, self.pictures)
        return packed

    def fed(self, microbatch: Microbatch) -> Feed:
        """A prepared microbatch as the model takes it, its pictures in place."""
        if "looks" not in microbatch.cache:
            return super().fed(microbatch)
        return feed_pictures(microbatch, self.device, self.image_format, self.pictures)

    def _check_images(self, packed: Packed) -> None:
        """They are checked when the batch is looked through."""

    def _attending(self, part: Any) -> Any:
        return decoder_of(part)
