#!/usr/bin/env python
"""Counts of the package, as `docs/structure.md` lists them.

    python scripts/count_package.py                          of this version
    python scripts/count_package.py FOLDER                   of another version's src/stepwell
    python scripts/count_package.py --page docs/structure.md    also writes the column "today" of that page

Code is what is left without blank lines, comments and docstrings. A repeated line is a line of code, imports
left out, that is part of six lines in a row which occur again to the letter, in the same file or another one.
What a training run reaches is found by imports, from `runs/run.py` and the pool's migrations on: also inside
functions, for types only, and by names in texts ("stepwell.envs.shop.env:ShopEnv"). `tests/test_names.py` and
`tests/test_layout.py` count participles, names used twice and circles, and limit what a run reaches.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "src" / "stepwell"
RUN_LENGTH = 6
MAX_FILE, MAX_FUNCTION = 400, 60
_NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def read_code(text: str, *, has_imports: bool = True) -> list[str]:
    """The lines of code."""
    used: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NOT_CODE:
            used.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_text and isinstance(node.value.value, str):  # of a module, class, function or variable
            used -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        if isinstance(node, ast.Import | ast.ImportFrom) and not has_imports:
            used -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return [line.rstrip() for number, line in enumerate(text.splitlines(), 1) if number in used]


def list_functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def count_repeated(files: list[list[str]]) -> int:
    """Lines of code in runs that occur more than once."""
    runs = Counter(
        tuple(code[i : i + RUN_LENGTH]) for code in files for i in range(len(code) - RUN_LENGTH + 1)
    )
    total = 0
    for code in files:
        repeated: set[int] = set()
        for i in range(len(code) - RUN_LENGTH + 1):
            if runs[tuple(code[i : i + RUN_LENGTH])] > 1:
                repeated.update(range(i, i + RUN_LENGTH))
        total += len(repeated)
    return total


def list_imports(text: str) -> set[str]:
    """Every dotted name of ours that a file imports, or names in a text."""
    found = set(re.findall(r"""["'](stepwell\.[\w.]+)""", text))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.startswith("stepwell.")}


def list_starts(modules: Iterable[str]) -> list[str]:
    """The modules of a training run that no other module imports."""
    return ["stepwell.runs.run", *(name for name in modules if name.startswith("stepwell.pool.migrations."))]


def find_reached(imports: Mapping[str, set[str]], starts: Iterable[str]) -> set[str]:
    """The modules that `starts` import, directly or through others, and their packages.

    The top package is left out: it only lists the names of the Python API.
    """
    reached: set[str] = set()
    todo = list(starts)
    while todo:
        parts = todo.pop().split(".")
        for end in range(len(parts), 1, -1):
            name = ".".join(parts[:end])
            if name in imports and name not in reached:
                reached.add(name)
                todo += imports[name]
    return reached


def name_module(path: Path, root: Path) -> str:
    parts = ("stepwell", *path.relative_to(root).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def write_page(page: Path, rows: dict[str, str]) -> None:
    """Replace the third cell of each row of the page's table that a count belongs to."""
    lines = page.read_text(encoding="utf-8").split("\n")
    for label, value in rows.items():
        (place,) = [i for i, line in enumerate(lines) if line.startswith(f"| {label} |")]
        cells = lines[place].split(" | ")
        lines[place] = " | ".join([*cells[:2], value, *cells[3:]])
    page.write_text("\n".join(lines), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", default=PACKAGE, help="default: this version")
    parser.add_argument("--page", type=Path, help="the page to write the counts into")
    args = parser.parse_args()
    root: Path = args.folder
    paths = sorted(root.rglob("*.py"))
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    lines = {path: len(text.splitlines()) for path, text in texts.items()}
    code = {path: read_code(text) for path, text in texts.items()}
    core = [path for path in paths if path.relative_to(root).parts[0] != "envs"]
    imports = {name_module(path, root): list_imports(text) for path, text in texts.items()}
    reached = find_reached(imports, list_starts(imports))
    used = [path for path in core if name_module(path, root) in reached]
    functions = [node for text in texts.values() for node in list_functions(ast.parse(text))]
    plain = [node.name.strip("_") for node in functions if not node.name.startswith("__")]
    long_functions = [n for n in functions if (n.end_lineno or 0) - n.lineno + 1 > MAX_FUNCTION]
    long_files = sorted(
        (lines[path], str(path.relative_to(root))) for path in paths if lines[path] > MAX_FILE
    )
    checked = [read_code(text, has_imports=False) for text in texts.values()]
    repeated = f"{count_repeated(checked):,} of {sum(map(len, checked)):,}"
    rows = {
        "package: lines, files": f"{sum(lines.values()):,}, {len(paths)}",
        "of it code: without blank lines, comments and docstrings": f"{sum(map(len, code.values())):,}",
        "core (all but `envs/`): lines": f"{sum(lines[path] for path in core):,}",
        "of it code": f"{sum(len(code[path]) for path in core):,}",
        "of it what a training run reaches: lines of files": f"{sum(lines[path] for path in used):,}",
        "of it what a training run reaches: files, code": f"{len(used)}, {sum(len(code[p]) for p in used):,}",
        "functions that are a bare participle": f"0 of {len(plain):,}",  # `tests/test_names.py` says so
        "functions with a name of one word": f"{100 * sum('_' not in n for n in plain) / len(plain):.0f} %",
        f"files above {MAX_FILE} lines": str(len(long_files)),
        f"functions above {MAX_FUNCTION} lines": str(len(long_functions)),
        "lines in runs of six that occur again to the letter": repeated,
    }
    for name, value in rows.items():
        print(f"{name:60} {value}")
    for number, name in reversed(long_files):
        print(f"  {number} {name}")
    for node in long_functions:
        print(f"  {node.name}")
    if args.page is not None:
        write_page(args.page, rows)


if __name__ == "__main__":
    main()
