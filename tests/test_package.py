"""What the wheel holds, by its settings; `scripts/first_hour.sh` builds it and looks."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "stepwell"


def test_every_file_that_is_no_module_is_package_data() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = settings["tool"]["setuptools"]["package-data"]["stepwell"]
    packed = {path for pattern in patterns for path in PACKAGE.glob(pattern)}
    files = {path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert files and files <= packed, f"not in the wheel: {sorted(map(str, files - packed))}"


def test_the_extra_all_is_part_of_dev_and_names_extras_that_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (everything,) = extras["all"]
    assert set(everything.removeprefix("stepwell[").removesuffix("]").split(",")) <= set(extras)
    assert "stepwell[all]" in extras["dev"]
