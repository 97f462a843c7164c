"""Workers of pytest-xdist that are forked do what those that are started do."""

from __future__ import annotations

import execnet
import pytest
from execnet import gateway_io
from tests.warm_workers import WarmIO

from stepwell.core import fork_server

FACTS = """
import sys
from stepwell.core.fork_server import list_servers
channel.send(("colorsys" in sys.modules, len(list_servers())))
channel.send(channel.receive() * 2)
"""


@pytest.mark.parametrize("imports", [("colorsys",), ("no_such_module",)], ids=["forked", "started"])
def test_a_worker_answers_has_a_server_of_its_own_and_ends(
    imports: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server, "_servers", {})  # those of other tests go on
    monkeypatch.setattr(WarmIO, "imports", imports)
    monkeypatch.setattr(gateway_io, "Popen2IOMaster", WarmIO)
    is_warm = imports == ("colorsys",)
    group = execnet.Group()
    channel = group.makegateway("popen").remote_exec(FACTS)
    assert channel.receive() == (is_warm, int(is_warm))
    long = "x" * 300_000
    channel.send(long)
    assert channel.receive() == long * 2
    group.terminate(timeout=10)
    fork_server.end_servers()
