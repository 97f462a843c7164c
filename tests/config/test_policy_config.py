"""Policy settings: sensible defaults, and mistakes refused by name."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from stepwell.config import LoraConfig, PolicyConfig


def test_a_misspelt_setting_is_refused_by_name() -> None:
    with pytest.raises(ValidationError, match=r"gradient_checkpoint\n.*Extra inputs are not permitted"):
        PolicyConfig(gradient_checkpoint=True)


def test_values_out_of_range_are_refused_by_name() -> None:
    with pytest.raises(ValidationError, match=r"lora\.rank\n.*greater than or equal to 1"):
        PolicyConfig.model_validate({"lora": {"rank": 0}})
    with pytest.raises(ValidationError, match="critic\n"):
        PolicyConfig(critic="sometimes")


def test_settings_do_not_change_after_they_were_made() -> None:
    settings = PolicyConfig(model="smollm2-135m", lora=LoraConfig(rank=8))
    with pytest.raises(ValidationError, match="frozen"):
        settings.model = "other"
    assert PolicyConfig.model_validate(settings.model_dump()) == settings
