"""Which addresses this machine alone reaches, and which names no page of the web can have."""

import pytest

from pagewire.host.addresses import host_name, is_loopback, is_no_site


@pytest.mark.parametrize("host", ["127.0.0.1", "127.255.0.9", "::1", "::ffff:127.0.0.1", "localhost"])
def test_addresses_of_this_machine(host: str):
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    [
        "0.0.0.0",
        "::",
        "::ffff:0.0.0.0",
        "::ffff:10.0.0.1",
        "10.0.0.1",
        "126.0.0.1",
        "128.0.0.1",
        "fe80::1",
        "",
        "localhost.example.com",
        "127.0.0.1.example.com",
        "127.1",
    ],
)
def test_addresses_that_others_reach(host: str):
    """Or whose meaning is left to a resolver."""
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("localhost", "localhost"),
        ("LocalHost:8000", "localhost"),
        ("127.0.0.1:8000", "127.0.0.1"),
        ("[::1]:8000", "::1"),
        ("[::1]", "::1"),
        ("Example.COM:80", "example.com"),
        ("localhost:", "localhost"),
        *((header, "") for header in ("", ":80", "[::1", "[::1]evil", "[]", "::1", "localhost:80:80")),
        *(
            (header, "")
            for header in ("localhost:80@evil.com", "localhost@evil.com", "localhost:8o", "localhost/")
        ),
        *((header, "") for header in (" localhost", "localhost\n", "localhost, evil.com", "[localhost]")),
    ],
)
def test_names_in_a_host_header(header: str, name: str):
    assert host_name(header) == name


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "192.168.0.7", "::1", "2001:db8::1"])
def test_names_that_do_not_resolve_to_another_address(name: str):
    assert is_no_site(name)


@pytest.mark.parametrize(
    "name",
    ["example.com", "localhost.example.com", "127.0.0.1.nip.io", "localhost.", "2130706433", "0x7f.1", ""],
)
def test_names_that_a_page_may_have(name: str):
    """Its owner may let them resolve to this machine."""
    assert not is_no_site(name)
