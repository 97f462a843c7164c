"""Hooks of the site: pages may link to files of the repository that lie outside of docs/.

A link such as `../examples/own_env.py` leads out of the site. The file is copied to `repository/` inside it,
and the link is pointed there, so that the site is complete by itself.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
PLACE = "repository"
_LINK = re.compile(r"(\]\()((?:\.\./)+)([^)#\s]+)")


def on_files(files: Any, config: Any) -> Any:
    """Add every file outside of docs/ that a page links to."""
    added = set()
    for page in files.documentation_pages():
        for link in _LINK.finditer(page.content_string):
            if (path := _find_outside(page.src_uri, link)) and path not in added:
                added.add(path)
                files.append(File.generated(config, f"{PLACE}/{path}", abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Point such links at the copies."""
    here = posixpath.dirname(page.file.src_uri)

    def replace(link: re.Match[str]) -> str:
        path = _find_outside(page.file.src_uri, link)
        return link[0] if path is None else link[1] + posixpath.relpath(f"{PLACE}/{path}", here or ".")

    return _LINK.sub(replace, markdown)


def _find_outside(page: str, link: re.Match[str]) -> str | None:
    """The file that a link names, from the root of the repository; None if it is inside of docs/."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link[2] + link[3]))
    return None if path.startswith(("docs/", "..")) else path
