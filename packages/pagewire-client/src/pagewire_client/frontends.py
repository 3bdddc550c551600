"""Frontends as operators see them, made from the messages of AdminService."""

import dataclasses

from pagewire.v1 import admin_pb2


@dataclasses.dataclass(frozen=True, slots=True)
class FrontendStatus:
    """A frontend after drain() or resume()."""

    instance_id: str
    """Hexadecimal, unique per start of the process."""
    name: str
    """Of the process, such as "frontend-1"; may be empty."""
    address: str
    """"host:port"; frontends of one host may share it."""
    state: str
    """"starting", "serving", "draining" or "failed"; "unknown" where the frontend did not answer."""
    in_flight: int
    """Requests."""
    error: str
    """Why the call had no effect there; empty: it had."""


def frontend_states(response: admin_pb2.DrainResponse | admin_pb2.ResumeResponse) -> list[FrontendStatus]:
    """Returns the frontends that a response names."""
    return [
        FrontendStatus(
            instance_id=status.instance_id,
            name=status.name,
            address=status.address,
            state=_word(status.state),
            in_flight=status.in_flight_requests,
            error=status.error,
        )
        for status in response.frontends
    ]


def _word(state: "admin_pb2.ServerState") -> str:
    known = state in admin_pb2.ServerState.values() and state != admin_pb2.SERVER_STATE_UNSPECIFIED
    return admin_pb2.ServerState.Name(state).removeprefix("SERVER_STATE_").lower() if known else "unknown"
