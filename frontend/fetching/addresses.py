"""Whether an address is one of the public internet, and not of this machine or a network around it. Pure."""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

_UNICAST = IPv6Network("2000::/3")
"""All of IPv6 that is assigned to hosts of the public internet."""
_SPECIAL_4 = tuple(map(IPv4Network, ("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32")))
_SPECIAL_6 = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "3fff::/20")))
"""Blocks for protocols and documentation, which not every version of `ipaddress` calls private; and where
machines of Azure reach their host."""
_NAT64 = IPv6Network("64:ff9b::/96")
"""The last 32 bits are an IPv4 address (RFC 6052)."""


def is_public(address: str) -> bool:
    """Returns whether an address, as the resolver writes it, is global. An IPv6 address that stands for an
    IPv4 address (mapped, NAT64, 6to4) is as global as that; one of Teredo is not."""
    try:
        found = ip_address(address)
    except ValueError:
        return False
    if isinstance(found, IPv4Address):
        return _is_public_4(found)
    if (inner := _inner(found)) is not None:
        return _is_public_4(inner)
    is_special = any(found in block for block in _SPECIAL_6)
    return found in _UNICAST and found.is_global and found.scope_id is None and not is_special


def _is_public_4(address: IPv4Address) -> bool:
    is_special = address.is_multicast or any(address in block for block in _SPECIAL_4)
    return address.is_global and not is_special


def _inner(address: IPv6Address) -> IPv4Address | None:
    """Returns the IPv4 address that an IPv6 address stands for; None: it is one by itself."""
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour
