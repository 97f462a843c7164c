"""When an action ends: end tokens, stop ids and stop strings.

A stop string counts as soon as the decoded action contains it, however its tokens are split;
the action ends with the token that completes it. Special tokens are read as text here, so
that `<|im_end|>` can be a stop string. `TokenAction.text` omits special tokens but keeps the
stop string.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stepwell.core.arrays import AnyArray
from stepwell.core.errors import InputError, ModelError
from stepwell.core.protocols import SamplingParams


@dataclass(frozen=True, slots=True)
class StopRule:
    """The stops of one request, beyond the model's own end tokens."""

    ids: frozenset[int]
    strings: tuple[str, ...]
    tokenizer: Any

    @classmethod
    def from_params(cls, params: SamplingParams, tokenizer: Any) -> StopRule:
        if params.stop and tokenizer is None:
            raise InputError("stop strings need a tokenizer; give the engine one, or use stop_ids")
        return cls(frozenset(params.stop_ids), params.stop, tokenizer)

    @property
    def is_needed(self) -> bool:
        return bool(self.ids or self.strings)

    def is_reached(self, action_ids: AnyArray) -> bool:
        """Return whether the last token of the action completes a stop."""
        if int(action_ids[-1]) in self.ids:
            return True
        if not self.strings:
            return False
        # a character takes at most four byte tokens; the rest allows for skipped and merged ones
        window = 4 * max(map(len, self.strings)) + 8
        tail = self._decode_text(action_ids[-window:])
        if not any(text in tail for text in self.strings):
            return False
        whole = self._decode_text(action_ids)
        return any(text in whole for text in self.strings)

    def _decode_text(self, ids: AnyArray) -> str:
        text: str = self.tokenizer.decode(ids.tolist(), skip_special_tokens=False)
        return text


def find_end_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Collect the tokens that end an action: of generation config, model and tokenizer."""
    found: set[int] = set()
    for owner in (getattr(model, "generation_config", None), model.config, tokenizer):
        value = getattr(owner, "eos_token_id", None)
        found |= set(value) if isinstance(value, (list, tuple)) else ({value} if value is not None else set())
    if any(not isinstance(token, int) or token < 0 for token in found):
        raise ModelError(f"eos_token_id must be token ids, got {sorted(map(str, found))}")
    return tuple(sorted(found))
