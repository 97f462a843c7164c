"""Files of facts inside installed packages: found, not imported, since only the tables are wanted."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path

from stepwell.core.errors import ConfigError

INSTALL = "pip install 'stepwell[facts]' && pip install --no-deps mendeleev"


def find_package_file(package: str, path: str) -> Path:
    """A file of a package; a package that is not there is named with how to install it."""
    spec = importlib.util.find_spec(package)
    places = list(spec.submodule_search_locations or ()) if spec else []
    for place in places:
        if (Path(place) / path).is_file():
            return Path(place) / path
    problem = f"package {package} has no {path}" if places else f"package {package} is not installed"
    raise ConfigError(f"the facts of this environment ship in packages, and {problem}: {INSTALL}")


def digest_file(path: Path) -> str:
    """Content hash of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=8)).hexdigest()
