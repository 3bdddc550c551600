"""Keeps web pages from elsewhere away from a service without tokens.

A browser lets any page send requests to any address, and marks them with an Origin header. A page whose own
name resolves to this machine (DNS rebinding) is of the same origin as far as the browser knows; but then the
Host header has that name. So without tokens Host must be an IP address, `localhost`, or a name that the
operator has allowed. With tokens a page would need one, and any Host is served.
"""

from collections.abc import Collection

from frontend.http.errors import ForeignHost
from pagewire.host.loopback import host_name, is_no_site


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
    name = host_name(headers.get("host", ""))
    if not (any_host or name in allowed_hosts or is_no_site(name)):
        raise ForeignHost("Host is not known here; see --openai-allowed-host")
