"""Addresses that only this machine reaches."""

import ipaddress


def is_loopback(host: str) -> bool:
    """True if only this machine can connect to a socket that listens on `host`, or connects from it."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
