"""`pagewire health`."""

import http.client
import ssl
import sys
import time

from pagewire.cli.connect import connect
from pagewire.command_config import HealthConfig
from pagewire.flags import UsageError
from pagewire_client.errors import RpcError

_TIMEOUT_S = 3.0
_POLL_S = 0.2


def run(config: HealthConfig) -> int:
    """Returns 0 if the service accepts requests, 1 if it does not within --wait seconds."""
    where = config.http or config.address
    problem = _ask_http(config) if config.http else _ask_service(config)
    if problem:
        print(f"NOT_SERVING: {where}: {problem}", file=sys.stderr)
        return 1
    print(f"SERVING: {where}")
    return 0


def _ask_service(config: HealthConfig) -> str:
    """Returns the problem, or an empty string."""
    with connect(config) as client:
        try:
            client.wait_ready(config.wait)
        except RpcError as error:
            return error.message
    return ""


def _ask_http(config: HealthConfig) -> str:
    """Returns the problem of one process by its HTTP port, or an empty string."""
    deadline = time.monotonic() + config.wait
    tls = None
    if config.tls or config.tls_ca:
        try:
            tls = ssl.create_default_context(cafile=config.tls_ca or None)
        except OSError as error:  # ssl.SSLError is one
            raise UsageError(f"cannot use --tls-ca {config.tls_ca}", error.strerror or str(error)) from None
    while problem := _check(config.http, tls):
        if time.monotonic() + _POLL_S > deadline:
            break
        time.sleep(_POLL_S)
    return problem


def _check(address: str, tls: ssl.SSLContext | None) -> str:
    try:
        connection = (
            http.client.HTTPConnection(address, timeout=_TIMEOUT_S)
            if tls is None
            else http.client.HTTPSConnection(address, timeout=_TIMEOUT_S, context=tls)
        )
    except http.client.InvalidURL as error:
        raise UsageError(f"--http {address} is no address", str(error)) from None
    try:
        connection.request("GET", "/readyz")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return str(error) or type(error).__name__
    finally:
        connection.close()
    return "" if status == http.client.OK else f"/readyz answers {status}"


COMMANDS = {"health": (HealthConfig, run)}
