"""What tests ask of the package's source files: each file is parsed once and gone through once."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

import stepwell

ROOT = Path(stepwell.__file__).parent


class Definition(NamedTuple):
    """A function or a class, and where it is."""

    name: str
    place: str
    is_class: bool
    is_property: bool


@dataclass(slots=True)
class SourceFile:
    """A file of the package. Imports are absolute names, found also inside functions."""

    path: Path
    has_docstring: bool
    imports: set[str] = field(default_factory=set)
    imports_at_runtime: set[str] = field(default_factory=set)
    """Without those for type checkers only."""
    definitions: list[Definition] = field(default_factory=list)
    docstring_lines: set[int] = field(default_factory=set)
    num_code_lines: int = 0
    """Without blank lines, comments and docstrings."""

    def add_node(self, node: ast.AST, is_runtime: bool) -> None:
        names: set[str] = set()
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            self.docstring_lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        elif isinstance(node, ast.Import):
            names = {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{self.path}: relative imports hide what a folder depends on"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            place = f"{self.path.relative_to(ROOT)}:{node.lineno}"
            is_property = any("property" in ast.unparse(line) for line in node.decorator_list)
            self.definitions.append(Definition(node.name, place, isinstance(node, ast.ClassDef), is_property))
        self.imports |= names
        if is_runtime:
            self.imports_at_runtime |= names


def _walk(node: ast.AST, is_runtime: bool = True) -> Iterator[tuple[ast.AST, bool]]:
    """Every statement below, and whether it runs: what `if TYPE_CHECKING` holds does not."""
    todo = [(node, is_runtime)]
    while todo:
        node, is_runtime = todo.pop()
        yield node, is_runtime
        for name, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
                    todo.append((child, is_runtime and not (name == "body" and _is_for_types(node))))


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


@cache
def read_sources() -> dict[Path, SourceFile]:
    """Every file of the package by its path."""
    sources = {}
    for path in sorted(ROOT.rglob("*.py")):
        text = path.read_text()
        tree = ast.parse(text)
        sources[path] = source = SourceFile(path, bool(ast.get_docstring(tree)))
        for node, is_runtime in _walk(tree):
            source.add_node(node, is_runtime)
        lines = [
            line.lstrip() for n, line in enumerate(text.split("\n"), 1) if n not in source.docstring_lines
        ]
        source.num_code_lines = sum(bool(line) and not line.startswith("#") for line in lines)
    return sources
