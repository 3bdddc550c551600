"""Which addresses are public."""

import pytest

from frontend.fetching.addresses import is_public

PUBLIC = (
    "1.1.1.1",
    "93.184.216.34",
    "2606:4700::1111",
    "::ffff:1.1.1.1",
    "64:ff9b::101:101",
    "2002:101:101::1",
)
INSIDE = (
    *("127.0.0.1", "127.8.9.10", "0.0.0.0", "0.1.2.3", "10.0.0.1", "172.16.0.1", "192.168.1.1"),
    *("169.254.169.254", "100.64.0.1", "192.0.0.8", "192.0.2.1", "198.18.0.1", "198.51.100.1"),
    *("224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255"),
    *("::", "::1", "fe80::1", "fe80::1%eth0", "fec0::1", "fc00::1", "fd12::1", "ff02::1", "2001:db8::1"),
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1", "::a9fe:a9fe", "::ffff:0:127.0.0.1"),
    *("64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::101:101"),
    *("2002:7f00:1::1", "2002:a00:1::1", "2001:0:101:101::1", "2606:4700::1111%eth0"),
    *("example.com", "", "2130706433", "0177.0.0.1", "127.1"),
)


@pytest.mark.parametrize("address", PUBLIC)
def test_an_address_of_the_public_internet(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("address", INSIDE)
def test_an_address_that_is_not(address: str) -> None:
    assert not is_public(address)
