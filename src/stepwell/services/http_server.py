"""Runs a web application in the foreground until Ctrl-C, or in a thread."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from stepwell.core.errors import ConfigError, InfraError

_STARTING_S, _HEADER_TIMEOUT_S = 30.0, 10.0


def serve(
    app: Any,
    host: str,
    port: int,
    *,
    shutdown_timeout_s: float = 60.0,
    greeting: Callable[[str], str] = "listening on {}".format,
) -> None:
    """Serve until Ctrl-C or SIGTERM. Running calls then finish, new ones are refused.

    `greeting` is what to print once it listens, given its URL.
    """
    server = _make_server(app, shutdown_timeout_s)
    listener = _open_listener(host, port)
    print(greeting(_format_url(host, listener)), flush=True)
    try:
        server.run(sockets=[listener])
    finally:
        listener.close()


def serve_in_thread(app: Any, host: str = "127.0.0.1", port: int = 0) -> tuple[str, Callable[[], None]]:
    """Serve in a thread. Return the base URL and a function that stops it (running calls finish)."""
    server = _make_server(app, 10.0)
    listener = _open_listener(host, port)
    thread = threading.Thread(
        target=server.run, kwargs={"sockets": [listener]}, name="stepwell-serve", daemon=True
    )
    thread.start()

    def stop() -> None:
        server.should_exit = True
        thread.join()
        listener.close()

    until = time.monotonic() + _STARTING_S
    while not server.started:
        if not thread.is_alive() or time.monotonic() > until:
            stop()
            raise InfraError("the service did not start; see its log")
        time.sleep(0.005)
    return _format_url(host, listener), stop


def _make_server(app: Any, shutdown_timeout_s: float) -> Any:
    try:
        import uvicorn
    except ImportError as error:
        raise ConfigError("serving needs the extra 'serve': pip install 'stepwell[serve]'") from error
    from stepwell.services.http_protocol import make_http_protocol

    header_timeout_s = getattr(getattr(app, "state", None), "header_timeout_s", _HEADER_TIMEOUT_S)
    config = uvicorn.Config(
        app,
        http=make_http_protocol(header_timeout_s),
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=max(1, round(shutdown_timeout_s)),
        lifespan="on",
    )
    return uvicorn.Server(config)


def _open_listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        reason = error.strerror if isinstance(error, OSError) else "a port is at most 65535"
        raise ConfigError(f"cannot listen on {host} port {port} ({reason}); choose another port") from error
    listener.listen(2048)
    return listener


def _format_url(host: str, listener: socket.socket) -> str:
    bracketed = f"[{host}]" if ":" in host else host
    return f"http://{bracketed}:{listener.getsockname()[1]}"
