"""Warns in one log line when a service can be reached or overheard from other machines."""

import logging

from pagewire.config import FrontendConfig
from pagewire.host.loopback import is_loopback
from pagewire.telemetry.watch import NO_PORT

log = logging.getLogger(__name__)


def log_exposure(config: FrontendConfig) -> None:
    """Logs a warning when other machines can call the service without a token or read its traffic."""
    if config.http_port != NO_PORT and not is_loopback(config.http_host):
        log.warning("any host that reaches %s may read the metrics of this service", config.http_host)
    warning = exposure(config)
    if warning is not None:
        log.warning("%s", warning)
    elif is_loopback(config.host):
        log.info("only this machine can connect; --host opens it to others (docs/security.md)")


def exposure(config: FrontendConfig) -> str | None:
    """Returns the warning, or None."""
    hosts = [config.host] if config.openai_port is None else [config.host, config.openai_host]
    host = next((host for host in hosts if not is_loopback(host)), None)
    if host is None:
        return None
    open_to_all = not config.auth_file and not config.tls_client_ca
    plain = not config.tls_cert
    if open_to_all:
        listeners = " and read its traffic" if plain else ""
        return (
            f"any host that reaches {host} may use this service{listeners}: there is no --auth-file"
            f"{' and no --tls-cert' if plain else ''} (docs/security.md)"
        )
    if plain:
        return f"tokens and prompts travel in plain text to {host}: there is no --tls-cert"
    return None
