"""Processes that start warm: forked from one that has imported the heavy libraries. Standard library only.

Importing torch and transformers takes seconds of a core, in every process. A fork server pays that once. Each
process of a run (generator, rank, run of a study) is then forked from it, in a few hundredths of a second,
and shares its memory until it writes.

    parent                        server (per imports and environment)   child
    ──────                        ────────────────────────────            ─────
    prepare_server ── start ──►   import the modules
    fork           ── request ──► fork ─► fork ──────────────────────────► take_over: module as __main__
                   ◄── pid ─────  the process between ends
    waitid(pid)    ◄── adopted by the parent, which was a "child subreaper" during the request ──┘

Invariants
* The parent is the real parent of the child: exit codes, signals and `waitid` are those of any child.
* The server has one thread, has run no tensor operation and has not touched a GPU. If an import starts a
  thread, the server refuses, and children start cold. numpy would start threads for its matrix products:
  in warm processes it uses one thread. torch uses those that it is given.
* What libraries read when they are imported is the same as in a cold start: a server serves one value of
  the variables with the prefixes in `_READ_AT_IMPORT`. All other variables reach the child as they are.
* The server ends with its parent, kill -9 included, and keeps no file, socket or lock of a child.
* Nobody depends on a server. Where there is none (no Linux, a GPU in the machine, a server that died),
  `prepare_server` gives None, and the caller starts the process cold.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

MODEL_MODULES = (
    "numpy",
    "torch",
    "transformers.models.qwen3.modeling_qwen3",
    "stepwell.policies.causal_lm",
    "stepwell.policies.vla.policy",
    "stepwell.engines.embedded",
    "stepwell.runs.run",
)
"""What every process imports that computes with a model."""
_READ_AT_IMPORT: tuple[str, ...] = ("PYTHON", "LD_", "TORCH", "TRITON_", "TRANSFORMERS_", "HF_", "COVERAGE_")
_READ_AT_IMPORT += ("OMP_", "GOMP_", "KMP_", "MKL_", "ATEN_", "DNNL_", "ONEDNN_", "CUDA_")
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
_SET_CHILD_SUBREAPER = 36  # of prctl(2)
_MAX_SERVERS = 6
_READY, _REFUSED = b"+", b"-"
_servers: dict[tuple[Any, ...], ForkServer] = {}  # the one used last comes last
_listing, _adopting = threading.Lock(), threading.Lock()


class ForkedProcess:
    """A process that a server has forked and this process has adopted: the part of `Popen` that is needed."""

    def __init__(self, pid: int, stdin: IO[bytes], stdout: IO[bytes] | None) -> None:
        self.pid, self.stdin, self.stdout = pid, stdin, stdout
        self.returncode: int | None = None

    def wait(self) -> int:
        """Collect its status."""
        if self.returncode is None:
            try:
                self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            except ChildProcessError:  # other code in this process has collected it
                self.returncode = 0
        return self.returncode


class ForkServer:
    """A started server, seen from its parent."""

    def __init__(self, link: socket.socket, pid: int, *, first_answer: bytes | None = None) -> None:
        self.pid = pid
        self._link, self._first_answer = link, first_answer
        self._lock = threading.Lock()  # one request at a time

    def is_ready(self) -> bool:
        """Wait for the imports; whether it can fork."""
        with self._lock:
            if self._first_answer is None:
                self._first_answer = self._link.recv(1)
            return self._first_answer == _READY

    def fork(self, request: dict[str, Any], descriptors: Sequence[int]) -> int:
        """Fork a child, which gets copies of the descriptors; its process id."""
        payload = json.dumps(request).encode()
        with self._lock, _adopt_orphans():
            socket.send_fds(self._link, [len(payload).to_bytes(4)], descriptors)
            self._link.sendall(payload)
            answer = self._link.recv(4)
        if len(answer) < 4:
            raise ConnectionError("the fork server has ended")
        return int.from_bytes(answer)

    def close(self) -> None:
        """End the server. What it has forked goes on."""
        self._link.close()
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)

    def abandon(self) -> None:
        """Close this process's copy of the link, after a fork of the parent."""
        self._link.close()


def _start_server(environment: Mapping[str, str], imports: Sequence[str]) -> ForkServer:
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(theirs.fileno()), *imports],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**environment, **_ONE_THREAD},
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
    process.returncode = 0  # `ForkServer.close` collects it
    return ForkServer(ours, process.pid)


@contextlib.contextmanager
def _adopt_orphans() -> Iterator[None]:
    """Make this process the one that gets orphans among its descendants, as long as the block runs."""
    prctl = ctypes.CDLL(None).prctl
    with _adopting:
        prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            yield
        finally:
            prctl(_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def prepare_server(environment: Mapping[str, str], imports: Sequence[str]) -> ForkServer | None:
    """The server for such processes, after its imports; None if they must start cold."""
    has_gpu = "torch" in imports and Path("/proc/driver/nvidia").exists()
    if sys.platform != "linux" or has_gpu:
        return None
    key = _make_key(environment, imports)
    with _listing:
        server = _servers.pop(key, None)
        if server is None:
            for oldest in list(_servers.values())[: 1 - _MAX_SERVERS]:
                _end_server(oldest)
            server = _start_server(environment, imports)
        _servers[key] = server
    return server if server.is_ready() else None


def _make_key(environment: Mapping[str, str], imports: Sequence[str]) -> tuple[Any, ...]:
    read = sorted(item for item in environment.items() if item[0].startswith(_READ_AT_IMPORT))
    return tuple(imports), tuple(read)


def add_server(server: ForkServer, environment: Mapping[str, str], imports: Sequence[str]) -> None:
    """Use a server that was forked with this process."""
    _servers[_make_key(environment, imports)] = server


def start_warm(
    command: Sequence[str],
    environment: Mapping[str, str],
    imports: Sequence[str],
    *,
    output: int,
    errors: int,
    pass_fds: Sequence[int],
    keeps_server: bool = False,
) -> ForkedProcess | None:
    """Start `[python, (-P), -m, MODULE, *arguments]` from a server, as `Popen` would; None: start it cold.

    With `keeps_server`, the child has such a server too, for children of its own.
    """
    server = prepare_server(environment, imports)
    if server is None:
        return None
    split = command.index("-m")
    request = {
        "arguments": command[split + 1 :],
        "is_safe_path": "-P" in command[:split],
        "environment": dict(environment),
        "folder": os.getcwd(),
        "keeps_server": keeps_server,
        "numbers": [0, 1, 2, *pass_fds],
    }
    with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
        stdin = _open_pipe(theirs, ours, is_input=True)
        stdout = _open_pipe(theirs, ours, is_input=False) if output == subprocess.PIPE else None
        here = stdin[0], output if stdout is None else stdout[0], errors
        pid = _fork_from(server, request, [*here, *pass_fds])
        if pid is None:
            return None
        ours.pop_all()
    return ForkedProcess(pid, stdin[1], None if stdout is None else stdout[1])


def _open_pipe(
    theirs: contextlib.ExitStack, ours: contextlib.ExitStack, *, is_input: bool
) -> tuple[int, IO[bytes]]:
    """The child's end of a pipe, and ours."""
    read, write = os.pipe()
    end, own = (read, write) if is_input else (write, read)
    theirs.callback(os.close, end)
    return end, ours.enter_context(os.fdopen(own, "wb" if is_input else "rb", buffering=0))


def _fork_from(server: ForkServer, request: dict[str, Any], descriptors: Sequence[int]) -> int | None:
    try:
        return server.fork(request, descriptors)
    except BaseException as error:  # it was killed, or Ctrl-C: the next process gets a new one
        with _listing:
            _end_server(server)
        if isinstance(error, OSError):
            return None
        raise


def list_servers() -> list[int]:
    """The process ids of the servers that this process has. They stay when their children have ended."""
    return [server.pid for server in _servers.values()]


def _end_server(server: ForkServer) -> None:
    for key in [key for key, found in _servers.items() if found is server]:
        del _servers[key]
    server.close()


def end_servers() -> None:
    """End every server of this process. What they have forked goes on."""
    with _listing:
        for server in list(_servers.values()):
            _end_server(server)


def _forget_servers() -> None:
    """In a fork of the parent: the servers are not its own."""
    global _listing, _adopting
    _listing, _adopting = threading.Lock(), threading.Lock()
    for server in _servers.values():
        server.abandon()
    _servers.clear()


os.register_at_fork(after_in_child=_forget_servers)
atexit.register(end_servers)


# --- in the server ------------------------------------------------------------------------------


def serve(link: socket.socket) -> dict[str, Any]:
    """Fork a child per request. Returns only in a child, with its request."""
    while True:
        header, received, _, _ = socket.recv_fds(link, 4, 250)
        if len(header) < 4:
            os._exit(0)  # the parent has ended
        size = int.from_bytes(header)
        payload = _receive_bytes(link, size)
        told, tell = os.pipe()
        between = os.fork()
        if between == 0:
            between = os.getpid()
            if os.fork() != 0:
                os._exit(0)
            while os.getppid() == between:  # until it is adopted: what runs here may ask for its parent
                time.sleep(0.0005)
            os.setsid()
            os.write(tell, os.getpid().to_bytes(4))
            for descriptor in (told, tell):
                os.close(descriptor)
            link.close()
            return {**json.loads(payload), "received": received}
        os.waitpid(between, 0)
        pid = os.read(told, 4)
        for descriptor in (told, tell, *received):
            os.close(descriptor)
        link.sendall(pid)


def _receive_bytes(link: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = link.recv(size - len(data))
        if not piece:
            os._exit(0)
        data += piece
    return data


def _keep_server(request: dict[str, Any]) -> dict[str, Any] | None:
    """Fork a server for this child's own children. Returns the request in such a child, None here."""
    if not request["keeps_server"]:
        return None
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        for descriptor in request["received"]:
            os.close(descriptor)
        return serve(theirs)
    theirs.close()
    module = importlib.import_module("stepwell.core.fork_server")  # this one runs as __main__
    module.add_server(module.ForkServer(ours, pid, first_answer=_READY), request["environment"], sys.argv[2:])
    return None


def take_over(request: dict[str, Any]) -> None:
    """Become the process that was asked for."""
    _place_descriptors(request["received"], request["numbers"])
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    if not request["is_safe_path"]:
        sys.path.insert(0, request["folder"])
    tempfile.tempdir = None  # to be read from the environment again
    time.tzset()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # otherwise every child draws the same
    module, *arguments = request["arguments"]
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _place_descriptors(received: Sequence[int], numbers: Sequence[int]) -> None:
    """Give the received descriptors their numbers, whatever has those numbers here."""
    above = max([*received, *numbers]) + 1
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, above) for descriptor in received]
    for descriptor in received:
        os.close(descriptor)
    for descriptor, number in zip(moved, numbers, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)


def _import_modules(names: Sequence[str]) -> bool:
    """Import what children need; whether this process is still safe to fork."""
    gc.disable()  # nearly all that imports make stays: looking for garbage took a seventh of their time
    for module in names:
        importlib.import_module(module)
        if len(os.listdir("/proc/self/task")) > 1:
            return False
    gc.collect()
    gc.freeze()  # collections in a child need not touch, and so copy, what is shared
    gc.enable()
    return True


def main() -> None:
    """Serve on the descriptor named by the first argument; in a child, run what was asked for."""
    link = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(link.fileno(), False)
    on_interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    is_safe = _import_modules(sys.argv[2:])
    link.sendall(_READY if is_safe else _REFUSED)
    if is_safe:
        request = serve(link)
        while (inner := _keep_server(request)) is not None:
            request = inner
        signal.signal(signal.SIGINT, on_interrupt)
        take_over(request)


if __name__ == "__main__":
    main()
