"""Keeps web pages from elsewhere away from a service without tokens.

A browser lets any page send requests to any address, and marks them with an Origin header. A page whose own
name resolves to this machine (DNS rebinding) is of the same origin as far as the browser knows; but then the
Host header has that name. So without tokens Host must be an IP address, `localhost`, or a name that the
operator has allowed. With tokens a page would need one, and any Host is served.
"""

import ipaddress
from collections.abc import Collection

from frontend.http.errors import ForeignHost


def check_origin(headers: dict[str, str], allowed_hosts: Collection[str], *, any_host: bool) -> None:
    """Raises ForeignHost. headers: by lower-case name. any_host: callers need a token."""
    check_host(headers, allowed_hosts, any_host=any_host)
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2].lower() != headers.get("host", "").lower():
        raise ForeignHost("requests of web pages from elsewhere are refused (Origin)")
    if headers.get("sec-fetch-site") in ("cross-site", "same-site"):  # a GET has no Origin
        raise ForeignHost("requests of web pages from elsewhere are refused (Sec-Fetch-Site)")


def check_host(headers: dict[str, str], allowed_hosts: Collection[str], *, any_host: bool) -> None:
    """Raises ForeignHost for an unknown Host. That is enough for a page itself, to which others may link."""
    if not any_host and not _is_known(_name_in(headers.get("host", "")), allowed_hosts):
        raise ForeignHost("Host is not known here; see --openai-allowed-host")


def _name_in(host: str) -> str:
    """Returns the name or address of "name:port", in lower case and without brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()


def _is_known(name: str, allowed: Collection[str]) -> bool:
    if name == "localhost" or name in allowed:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
