"""Addresses that only this machine reaches, and names by which pages of the web reach them."""

import ipaddress


def is_loopback(host: str) -> bool:
    """True if only this machine can connect to a socket that listens on `host`, or connects from it."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def host_name(header: str) -> str:
    """Returns the name or address in a Host header, "name:port", in lower case and without brackets."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0].lower()


def is_no_site(name: str) -> bool:
    """True for `localhost` and IP addresses.

    Any other name may be that of a page's site which resolves to this machine (DNS rebinding), and then a
    browser lets the page read the answer.
    """
    if name == "localhost":
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
