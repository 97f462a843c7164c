"""The reference page says what the models say."""

from __future__ import annotations

from pathlib import Path

from stepwell.config.run import RunConfig
from stepwell.config.schema import MARKER, find_field, update_reference, walk_settings, write_reference

PAGE = Path(__file__).parent.parent.parent / "docs" / "configuration.md"


def test_the_configuration_page_holds_exactly_the_reference() -> None:
    page = PAGE.read_text()
    assert MARKER in page
    assert page == update_reference(page), "run python -m stepwell.config.schema docs/configuration.md"


def test_the_reference_names_every_setting_once() -> None:
    text = write_reference()
    for setting in walk_settings(RunConfig):
        above = ".".join(setting.path[:-1])
        section = text.split(f"## `[{above}]`\n" if above else "## Top level\n")[1].split("\n## ")[0]
        assert section.count(f"| `{setting.path[-1]}` |") == 1, setting.key


def test_what_a_setting_holds_is_told_in_words() -> None:
    told = {setting.key: setting.allowed_values for setting in walk_settings(RunConfig)}
    assert told["train.group_size"] == "a whole number, at least 1"
    assert told["sampling.top_p"] == "a number, above 0, at most 1"
    assert told["eval.stop_at"] == "a number, above 0, at most 1, or none"
    assert told["parity.on_mismatch"] == 'one of "stop", "warn"'
    assert told["policy.lora.target_modules"] == 'a list of text or "all-linear"'
    assert told["env.options"] == "a table"
    assert told["train.token_budget"] == 'a whole number, at least 1 or "auto", or none'


def test_a_path_into_a_free_table_leads_to_that_table() -> None:
    setting = find_field(RunConfig, ("env", "options", "size"))
    assert setting is not None
    assert setting.key == "env.options"
    assert find_field(RunConfig, ("train", "nonsense")) is None
    assert find_field(RunConfig, ("nonsense",)) is None
