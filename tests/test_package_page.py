"""What a package index shows of this package: metadata as built, with links that lead somewhere."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
URL = "https://example.org/owner/stepwell"
LINKS = re.compile(r"!?\[[^\[\]]*\]\(([^)\s]+)\)")


def build_metadata(folder: Path, url: str | None) -> Message:
    """The metadata that a wheel of this tree would carry, as the build backend writes it."""
    for name in ("setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    project = (ROOT / "pyproject.toml").read_text()
    if url is not None:
        project = project.replace(
            "[project.scripts]", f'[project.urls]\nRepository = "{url}"\n\n[project.scripts]', 1
        )
    (folder / "pyproject.toml").write_text(project)
    package = folder / "src" / "stepwell"
    package.mkdir(parents=True)
    shutil.copy(ROOT / "src" / "stepwell" / "__init__.py", package)
    code = "import setuptools.build_meta as b; print(b.prepare_metadata_for_build_wheel('out'))"
    (folder / "out").mkdir()
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (metadata,) = (folder / "out").glob("*.dist-info/METADATA")
    return message_from_string(metadata.read_text())


def read_description(metadata: Message) -> str:
    text = metadata.get_payload()
    assert isinstance(text, str)
    return text


@pytest.fixture(scope="module")
def with_url(tmp_path_factory: pytest.TempPathFactory) -> Message:
    return build_metadata(tmp_path_factory.mktemp("with_url"), URL)


def test_links_of_the_readme_lead_into_the_tag_of_the_version(with_url: Message) -> None:
    links = LINKS.findall(read_description(with_url))
    inside = [link for link in links if link.startswith(URL)]
    assert len(inside) > 10 and all(link.startswith("https://") for link in links)
    for link in inside:
        kind, tag, path = link.removeprefix(f"{URL}/").split("/", 2)
        assert kind == ("raw" if path.endswith(".svg") else "blob")
        assert tag == f"v{with_url['Version']}"
        assert (ROOT / path.partition("#")[0]).exists(), path


def test_the_page_is_markdown_with_the_image_and_the_first_command(with_url: Message) -> None:
    assert with_url["Description-Content-Type"] == "text/markdown"
    text = read_description(with_url)
    assert f"]({URL}/raw/" in text
    assert "make demo" in text


def test_without_an_address_no_link_is_left_that_leads_nowhere(tmp_path: Path) -> None:
    text = read_description(build_metadata(tmp_path, None))
    assert [link for link in LINKS.findall(text) if not link.startswith("https://")] == []
    assert "Bring your own environment" in text


def test_every_extra_says_what_it_brings(with_url: Message) -> None:
    page = (ROOT / "docs" / "install.md").read_text()
    extras = with_url.get_all("Provides-Extra")
    assert extras
    named = {name.replace("_", "-") for name in re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE)}
    assert named == set(extras)
