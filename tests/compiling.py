"""Test modules as pytest runs them, compiled by all cores before several processes import them.

pytest rewrites the assertions of a test module when it is first imported and keeps the result beside it. In a
fresh checkout every process of a test run imports the modules in one order at one time: each would do all of
that work. pytest has no public call for it; one without the functions used here compiles as before.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

NEEDED = ("PYC_TAIL", "_rewrite_test", "_write_pyc", "assertstate_key", "get_cache_dir")


def compile_test_modules(config: pytest.Config) -> int:
    """Compile those under the run's arguments that are not compiled, or older than their source; how many."""
    if sys.dont_write_bytecode or not all(hasattr(rewrite, name) for name in NEEDED):
        return 0
    stale = [path for path in find_test_modules(config) if is_stale(path)]
    num_processes = min(os.cpu_count() or 1, len(stale))
    context = multiprocessing.get_context("fork")  # what a configuration holds cannot be sent
    processes = [
        context.Process(target=compile_modules, args=(config, stale[index::num_processes]))
        for index in range(num_processes)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return len(stale)


def find_test_modules(config: pytest.Config) -> list[Path]:
    """Largest first, so that no process is left alone with a long one."""
    root = config.rootpath / "tests"
    given = [config.invocation_params.dir / str(name).partition("::")[0] for name in config.args]
    found = {path for place in given for path in ([place] if place.is_file() else place.rglob("test_*.py"))}
    return sorted((path for path in found if path.is_relative_to(root)), key=measure_size, reverse=True)


def measure_size(path: Path) -> int:
    return path.stat().st_size


def find_compiled(path: Path) -> Path:
    return rewrite.get_cache_dir(path) / f"{path.stem}{rewrite.PYC_TAIL}"


def is_stale(path: Path) -> bool:
    compiled = find_compiled(path)
    return not compiled.exists() or compiled.stat().st_mtime < path.stat().st_mtime


def compile_modules(config: pytest.Config, paths: list[Path]) -> None:
    for path in paths:
        compiled = find_compiled(path)
        compiled.parent.mkdir(exist_ok=True)
        try:
            fingerprint, code = rewrite._rewrite_test(path, config)
        except SyntaxError:
            continue  # pytest tells it when it imports the module
        rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, fingerprint, compiled)
