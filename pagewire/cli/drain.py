"""`pagewire drain` and `pagewire resume`."""

from pagewire.cli.connect import connect
from pagewire.command_config import DrainConfig, FrontendChoice, ResumeConfig
from pagewire.flags import UsageError
from pagewire_client.frontends import FrontendStatus

_SHOWN_ID = 8


def drain(config: DrainConfig) -> int:
    """Starts a drain and prints which frontends drain; 1: one does not. Raises RpcError, UsageError."""
    _check_choice(config)
    with connect(config) as client:
        return _show(client.drain(config.end_after, frontend=config.frontend, all_frontends=config.all))


def resume(config: ResumeConfig) -> int:
    """Ends a drain and prints which frontends serve; 1: one does not. Raises RpcError, UsageError."""
    _check_choice(config)
    with connect(config) as client:
        return _show(client.resume(frontend=config.frontend, all_frontends=config.all))


def _check_choice(config: FrontendChoice) -> None:
    """Raises UsageError when the flags name one frontend and all of them."""
    if config.all and config.frontend:
        raise UsageError("--frontend and --all exclude each other")


def _show(frontends: list[FrontendStatus]) -> int:
    """Prints a line for each frontend; returns the command's exit code: 1 when one of them has an error."""
    for one in frontends:
        name = one.name or "frontend"
        state = f"error: {one.error}" if one.error else f"{one.state}, {one.in_flight} requests in flight"
        print(f"{name} ({one.instance_id[:_SHOWN_ID]}) at {one.address}: {state}")
    return int(any(one.error for one in frontends))


COMMANDS = {"drain": (DrainConfig, drain), "resume": (ResumeConfig, resume)}
