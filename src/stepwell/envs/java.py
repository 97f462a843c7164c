"""Environments that run in Java: starting their process, talking to it, and leaving none behind.

Two packages (ScienceWorld, TextWorldExpress) start a Java process per engine and talk to it over py4j.

Invariants
* A missing package or a missing Java is a `MissingPackageError` that says what to install.
* Whatever goes wrong in between (the process died, the connection broke) is an `EnvError`: it happened to
  the system, not to the agent. The engine is closed then, and the next reset starts another.
* `stop` returns when the process is gone. The process also ends by itself when its parent is killed: it reads
  its standard input, which closes with the parent.
* What an agent writes is checked here before it is sent: short, and made of characters.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

from stepwell.core import ConfigError, EnvError, InputError
from stepwell.core.errors import MissingPackageError
from stepwell.envs.base import Env
from stepwell.envs.robots.packages import import_simulator

MAX_CHARS = 240
STOP_S = 5.0


def start_engine(module: str, name: str, *, env: str, extra: str) -> Any:
    """A new engine: the class `name` of `module`, with its Java process."""
    package = import_simulator(module, env=env, extra=extra)
    if shutil.which("java") is None:
        raise MissingPackageError(
            f"the environment {env!r} needs Java, and there is no 'java' on the PATH: install a runtime, "
            "version 8 or later (Debian: apt-get install default-jre-headless)"
        )
    return getattr(package, name)(envStepLimit=2**31 - 1)  # the turn limit is ours


def stop_engine(engine: Any) -> None:
    """End an engine and its process."""
    process: subprocess.Popen[bytes] = engine._gateway.java_process
    try:
        engine.close()
        process.wait(STOP_S)
    except Exception:  # a process that is gone or hangs can refuse in many ways; it must not stay
        process.kill()
        process.wait(STOP_S)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):  # what was still to be written has no reader
                pipe.close()


@contextlib.contextmanager
def translate_java_errors(env: Env) -> Iterator[None]:
    """Failures of Java and of the connection to it as `EnvError`, after which `env` starts afresh."""
    try:
        yield
    except (ConfigError, InputError):
        raise
    except Exception as error:
        if not _is_java_error(error):
            raise
        env.close()
        raise EnvError(f"the Java process of {env.name} failed: {error}") from error


def _is_java_error(error: Exception) -> bool:
    """py4j is there only where a package that needs it is: its errors are known by their module."""
    return isinstance(error, OSError) or type(error).__module__.startswith("py4j")


def explain_refusal(text: str) -> str:
    """Why a text is not sent to an engine, as an observation; empty if it may be."""
    if not text:
        return "Nothing happens. The command is empty."
    if len(text) > MAX_CHARS:
        return f"Nothing happens. The command is too long ({len(text)} characters, {MAX_CHARS} at most)."
    if not text.isprintable():
        return "Nothing happens. The command holds characters that cannot be read."
    return ""


def find_remaining_plan(gold: list[str], history: list[str]) -> list[str]:
    """What is left of a solution for one who has followed it so far; [] for one who has left it."""
    return gold[len(history) :] if gold[: len(history)] == history else []
