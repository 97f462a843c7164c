"""Addresses: what is allowed is contacted, and nothing else."""

from __future__ import annotations

import pytest

from stepwell.core import InputError
from stepwell.envs.web.addresses import AllowedHosts, resolve_typed_address, write_resolver_rules


@pytest.mark.parametrize(
    ("hosts", "url", "is_allowed"),
    [
        (["a.test"], "http://a.test:81/x", True),
        (["a.test"], "https://A.TEST/", True),
        (["a.test"], "http://a.test@evil.example/", False),
        (["a.test"], "http://a.test.evil.example/", False),
        (["a.test:80"], "http://a.test/", True),
        (["a.test:80"], "https://a.test/", False),
        (["*.b.test"], "http://x.y.b.test/", True),
        (["*.b.test"], "http://b.test/", False),
        (["*.b.test"], "http://evilb.test/", False),
        (["a.test"], "file:///etc/passwd", False),
        (["a.test"], "http://a.test:99999/", False),
        (["a.test"], "http://[::1/", False),
        ([], "about:blank", True),
    ],
)
def test_a_host_is_matched_whole(hosts: list[str], url: str, is_allowed: bool) -> None:
    assert AllowedHosts.from_names(hosts).allow_address(url) is is_allowed


@pytest.mark.parametrize("name", ["a.test, MAP * 1.2.3.4", "a test", "http://a.test", "*", ""])
def test_a_name_that_is_no_host_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="an allowed host is"):
        AllowedHosts.from_names([name])


def test_the_browser_knows_the_allowed_hosts_and_no_others() -> None:
    allowed = AllowedHosts.from_names(["a.test", "b.test:81"])
    assert (
        write_resolver_rules(allowed, None) == "MAP a.test a.test, MAP b.test:81 b.test:81, MAP * ~NOTFOUND"
    )
    assert write_resolver_rules(allowed, 9).endswith("MAP b.test:81 127.0.0.1:9, MAP * ~NOTFOUND")


@pytest.mark.parametrize(
    ("typed", "url"),
    [
        ("shop.localhost", "http://shop.localhost/"),
        ("localhost:8000/a", "http://localhost:8000/a"),
        ("/b c", "http://a.test/b%20c"),
        ("?q=1", "http://a.test/x?q=1"),
        ("HTTPS://u:p@A.test:443/%20#b", "https://a.test/%20#b"),
        ("javascript:alert(1)", ""),
        ("data:text/html,x", ""),
        ("", "http://a.test/x"),
    ],
)
def test_an_address_is_read_as_a_browser_reads_it(typed: str, url: str) -> None:
    assert resolve_typed_address(typed, "http://a.test/x") == url
