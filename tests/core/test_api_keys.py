"""Keys from the environment: read as they are, or refused with the variable's name."""

from __future__ import annotations

import pytest

from stepwell.core.api_keys import read_key
from stepwell.core.errors import ConfigError


def test_a_key_is_read_without_the_line_end_that_a_file_gave_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_ENV_KEY", "sw_trainer_aB-9_x\n")
    assert read_key("STEPWELL_ENV_KEY") == "sw_trainer_aB-9_x"
    monkeypatch.delenv("STEPWELL_ENV_KEY")
    assert read_key("STEPWELL_ENV_KEY") == ""


@pytest.mark.parametrize("key", ["sw_trainer_…", "sw_trainer a", "sw_a\nsw_b"])
def test_a_key_that_no_header_can_carry_is_refused_by_the_name_of_its_variable(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPWELL_WORKER_KEY", key)
    with pytest.raises(ConfigError, match=r"STEPWELL_WORKER_KEY holds .*, which no key has; copy the whole"):
        read_key("STEPWELL_WORKER_KEY")
