"""Who may call what.

A method is open to everybody, to whoever is known, or to admins. What is in no list is for whoever is known:
a method that somebody forgets here is closed, and so is one that does not exist.
"""

from collections.abc import Iterable
from enum import Enum, auto
from typing import Protocol

from frontend.auth.caller import ANYBODY, Caller


class Access(Enum):
    """Whom a method is for."""

    EVERYBODY = auto()
    KNOWN = auto()
    ADMINS = auto()


_FOR_EVERYBODY = frozenset({"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"})
"""Load balancers ask these, and have no token."""
_FOR_ADMINS = frozenset({"/pagewire.v1.ModelService/LoadAdapter", "/pagewire.v1.ModelService/UnloadAdapter"})
_FOR_ADMINS_WHOLLY = ("/pagewire.v1.AdminService/",)

Metadata = Iterable[tuple[str, str | bytes]]


def access_of(method: str) -> Access:
    """method: as gRPC names it, "/package.Service/Method"; it need not exist."""
    if method in _FOR_EVERYBODY:
        return Access.EVERYBODY
    if method in _FOR_ADMINS or method.startswith(_FOR_ADMINS_WHOLLY):
        return Access.ADMINS
    return Access.KNOWN


class Gate(Protocol):
    """Decides about a call by its method and its metadata, before anything else of it is read."""

    admins_are_local: bool
    """Whether methods for admins are for peers on this machine, instead of for callers with a token."""

    def admit(self, method: str, metadata: Metadata) -> Caller:
        """Who calls. Raises Unauthenticated, PermissionDenied."""


class OpenGate:
    """No authentication. Methods for admins are for this machine alone."""

    admins_are_local = True

    def admit(self, method: str, metadata: Metadata) -> Caller:
        """Anybody."""
        return ANYBODY
