"""What `pagewire drain` and `pagewire resume` have in common: which frontends, and how they are shown."""

from pagewire.client.frontends import FrontendStatus
from pagewire.command_config import FrontendChoice
from pagewire.flags import UsageError

_SHOWN_ID = 8


def check_choice(config: FrontendChoice) -> None:
    """Raises UsageError when the flags name one frontend and all of them."""
    if config.all and config.frontend:
        raise UsageError("--frontend and --all exclude each other")


def show(frontends: list[FrontendStatus]) -> int:
    """Prints a line for each frontend; returns the command's exit code: 1 when one of them has an error."""
    for one in frontends:
        name = one.name or "frontend"
        state = f"error: {one.error}" if one.error else f"{one.state}, {one.in_flight} requests in flight"
        print(f"{name} ({one.instance_id[:_SHOWN_ID]}) at {one.address}: {state}")
    return int(any(one.error for one in frontends))
