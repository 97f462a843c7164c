"""Makes the long description of the package: README.md with links that work away from the repository.

Settings are in pyproject.toml. A package index shows the README alone, so relative links lead nowhere there.
With `Repository` in [project.urls], relative links and images become links into the tag of this version.
Without it, links become plain text and images are left out.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\[\]]*)\]\((?P<path>[^)\s]+)\)")


def resolve_links(text: str, repository: str | None, version: str) -> str:
    """Markdown without relative links."""

    def replace(link: re.Match[str]) -> str:
        path = link["path"]
        if re.match(r"[a-z][a-z0-9+.-]*:|#", path):
            return link[0]
        if repository is None:
            return "" if link["image"] else link["text"]
        kind = "raw" if link["image"] else "blob"
        return f"{link['image']}[{link['text']}]({repository.rstrip('/')}/{kind}/v{version}/{path})"

    return _LINK.sub(replace, text)


def read_repository_url() -> str | None:
    """The repository's address in pyproject.toml, if it has one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project.get("urls", {}).get("Repository")


def read_version() -> str:
    """The version in the package, which is not imported."""
    source = (ROOT / "src" / "stepwell" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"', source, flags=re.MULTILINE)
    assert found, "src/stepwell/__init__.py has no __version__"
    return found[1]


if __name__ == "__main__":
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    setup(
        long_description=resolve_links(readme, read_repository_url(), read_version()),
        long_description_content_type="text/markdown",
    )
