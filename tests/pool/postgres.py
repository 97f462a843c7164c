"""A real PostgreSQL server of one's own: on loopback, a random port, in a folder that goes away.

    python tests/pool/postgres.py --install    # apt-get install postgresql, where it is missing

The server runs as an unprivileged user (PostgreSQL refuses root) and dies with the process that
started it, also when that one is killed.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg

PACKAGE = "postgresql"
MISSING = f"PostgreSQL is not installed: apt-get install {PACKAGE} (make test does it where it may)"
_USER = "postgres"  # made by Debian's package
_PR_SET_PDEATHSIG = 1


def binaries() -> Path | None:
    """The folder of initdb and postgres, the newest version first; None where there is none."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    found.sort(key=lambda path: int(path.parent.name), reverse=True)
    on_path = shutil.which("initdb")
    if found:
        return found[0]
    return Path(on_path).resolve().parent if on_path else None


def install() -> int:
    """Install PostgreSQL where it is missing and we may; says what to do where we may not."""
    if binaries() is not None:
        return 0
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        print(f"{MISSING}; its tests are skipped", file=sys.stderr)
        return 0
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-q"], env=environment, check=False)
    command = ["apt-get", "install", "-qy", "--no-install-recommends", PACKAGE]
    return subprocess.run(command, env=environment).returncode


@contextmanager
def server(**settings: str) -> Iterator[str]:
    """Start a server with `settings` of its configuration; gives the URL of its `postgres` database."""
    folder = binaries()
    assert folder is not None, MISSING
    user = _USER if os.geteuid() == 0 else None
    home = Path(tempfile.mkdtemp(prefix="stepwell-postgres-"))
    password = secrets.token_hex(8)
    (home / "password").write_text(password)
    if user is not None:
        shutil.chown(home, user)
        shutil.chown(home / "password", user)
    try:
        _initialize(folder, home, user)
        port = _free_port()
        process = _start(folder, home, user, {**settings, "port": str(port)})
        try:
            url = f"postgresql://owner:{password}@127.0.0.1:{port}/postgres"
            _wait_until_it_answers(url, process, home)
            yield url
        finally:
            process.send_signal(signal.SIGQUIT)
            process.wait(timeout=20)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _initialize(folder: Path, home: Path, user: str | None) -> None:
    subprocess.run(
        [
            folder / "initdb", "-D", home / "data", "-U", "owner", "-E", "UTF8", "--locale=C",
            "--auth=password", f"--pwfile={home / 'password'}", "--no-sync",
        ],
        user=user, cwd=home, check=True, capture_output=True,
    )  # fmt: skip


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _start(folder: Path, home: Path, user: str | None, settings: dict[str, str]) -> subprocess.Popen[bytes]:
    libc = ctypes.CDLL(None)
    own = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "max_connections": "200"}
    options = [part for key, value in {**own, **settings}.items() for part in ("-c", f"{key}={value}")]
    with (home / "log").open("wb") as log:
        return subprocess.Popen(
            [folder / "postgres", "-D", home / "data", *options],
            user=user,
            cwd=home,
            stdout=log,
            stderr=log,
            preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT),
        )


def _wait_until_it_answers(url: str, process: subprocess.Popen[bytes], home: Path) -> None:
    until = time.monotonic() + 30
    while True:
        try:
            psycopg.connect(url, connect_timeout=2).close()
            return
        except psycopg.OperationalError:
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"PostgreSQL did not start:\n{(home / 'log').read_text()}") from None
            time.sleep(0.05)


@contextmanager
def database(server_url: str) -> Iterator[str]:
    """A new database on a server, dropped at the end; gives its URL."""
    name = f"pool_{secrets.token_hex(6)}"
    _command(server_url, f"CREATE DATABASE {name}")
    try:
        yield server_url.rsplit("/", 1)[0] + f"/{name}"
    finally:
        _command(server_url, f"DROP DATABASE {name} WITH (FORCE)")


def _command(server_url: str, command: str) -> None:
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(command)  # type: ignore[call-overload]


if __name__ == "__main__":
    sys.exit(install() if "--install" in sys.argv else __doc__)
