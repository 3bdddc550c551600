"""Who can reach a service, in one line for whoever starts it."""

import ipaddress
import logging

from pagewire.config import FrontendConfig

log = logging.getLogger(__name__)


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to what listens there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def tell_exposure(config: FrontendConfig) -> None:
    """Logs it: as a warning where strangers may come in, or listen."""
    warning = exposure(config)
    if warning is not None:
        log.warning("%s", warning)
    elif is_loopback(config.host):
        log.info("only this machine can connect; --host opens it to others (docs/security.md)")


def exposure(config: FrontendConfig) -> str | None:
    """What is to be warned of; None: nothing."""
    if is_loopback(config.host):
        return None
    open_to_all = not config.auth_file and not config.tls_client_ca
    plain = not config.tls_cert
    if open_to_all:
        listeners = ", and read along" if plain else ""
        return (
            f"whoever reaches {config.host} may use this service{listeners}: there is no --auth-file"
            f"{' and no --tls-cert' if plain else ''} (docs/security.md)"
        )
    if plain:
        return f"tokens and prompts travel in plain text to {config.host}: there is no --tls-cert"
    return None
