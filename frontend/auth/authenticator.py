"""Who may call what.

A method is open to everybody, to whoever is known, or to admins. What is in no list is for whoever is known:
a method that somebody forgets here is closed, and so is one that does not exist.
"""

import logging
import time
from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import Protocol

from frontend.auth.caller import ANYBODY, Caller
from frontend.auth.tokens import TokenTable, token_in
from frontend.errors import AdminsOnly, ServiceError

log = logging.getLogger(__name__)


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

    def admit(self, method: str, metadata: Metadata) -> Caller | None:
        """Who calls; None: somebody who needs not be known. Raises Unauthenticated, PermissionDenied."""


class OpenGate:
    """No authentication. Methods for admins are for this machine alone."""

    admins_are_local = True

    def admit(self, method: str, metadata: Metadata) -> Caller:
        """Anybody."""
        return ANYBODY


class Tokens(Protocol):
    """Where the tokens are."""

    @property
    def table(self) -> TokenTable:
        """The one that counts now."""


class TokenGate:
    """Who has a token is known by it."""

    admins_are_local = False

    def __init__(self, tokens: Tokens, clock: Callable[[], float] = time.time) -> None:
        """clock: Unix time."""
        self.num_refused = 0
        self._tokens = tokens
        self._clock = clock

    def admit(self, method: str, metadata: Metadata) -> Caller | None:
        """Who calls; nobody where the method is open to everybody. Raises Unauthenticated,
        PermissionDenied."""
        access = access_of(method)
        if access is Access.EVERYBODY:
            return None
        try:
            caller = self._tokens.table.find(token_in(metadata), self._clock())
            if access is Access.ADMINS and not caller.is_admin:
                raise AdminsOnly("this method needs the token of an admin")
        except ServiceError as error:
            self._count_refusal(error)
            raise
        return caller

    def _count_refusal(self, error: ServiceError) -> None:
        self.num_refused += 1
        if self.num_refused.bit_count() == 1:  # 1, 2, 4, 8 ...: a flood must not fill the log
            log.warning("a call was refused: %s (%d refused so far)", error.reason, self.num_refused)
