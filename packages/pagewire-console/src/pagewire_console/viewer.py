"""Which data a caller may see: an operator all of them, a tenant its own requests."""

from dataclasses import dataclass

from frontend.auth.authenticator import Authenticator
from frontend.auth.caller import Caller
from frontend.errors import AdminsOnly
from pagewire.host.addresses import is_loopback


@dataclass(frozen=True, slots=True)
class Viewer:
    """A caller of the console.

    caller:      as authenticated.
    is_operator: sees what AdminService shows.
    sees_own:    sees requests of its own tenant; without tokens requests belong to no tenant.
    """

    caller: Caller
    is_operator: bool

    @property
    def sees_own(self) -> bool:
        """True where at least its own requests can be told apart."""
        return self.is_operator or self.caller.tenant is not None

    def require_requests(self) -> None:
        """Raises AdminsOnly where the caller sees no requests at all."""
        if not self.sees_own:
            raise AdminsOnly("without --auth-file this is for browsers on the server's machine")


def viewer_of(caller: Caller, peer: str, authenticator: Authenticator) -> Viewer:
    """Returns what a caller may see, by the rules of AdminService. peer: its address; empty: not
    known."""
    is_operator = is_loopback(peer) if authenticator.admins_are_local else caller.is_admin
    return Viewer(caller, is_operator)
