"""Decides which caller may call which method.

Methods are public, for authenticated callers, for tenants, or for admins. A method that is in no list is for
authenticated callers: one that was forgotten here is closed, and so is one that does not exist.
"""

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from enum import Enum, auto
from typing import Protocol

from frontend.auth.caller import ANONYMOUS, Caller
from frontend.auth.tokens import TokenFile, token_in
from frontend.errors import AdminsOnly, ServiceError

log = logging.getLogger(__name__)


class Access(Enum):
    """Which callers a method is for."""

    PUBLIC = auto()
    AUTHENTICATED = auto()
    TENANTS = auto()
    """Callers with a token, which are shown what is theirs. Without tokens, as ADMINS."""
    OPERATORS = auto()
    """Load balancers, which are shown the load of all tenants: with tokens, those of admins."""
    ADMINS = auto()


_PUBLIC = frozenset({"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"})
"""Methods for load balancers, which have no token."""
_VLLM = "/vllm.grpc.engine.VllmEngine/"
_FOR_ADMINS = frozenset(
    {
        "/pagewire.v1.ModelService/LoadAdapter",
        "/pagewire.v1.ModelService/UnloadAdapter",
        "/pagewire.v1.ModelService/ListAdapters",
        f"{_VLLM}FlushCache",
        f"{_VLLM}StartProfile",
        f"{_VLLM}StopProfile",
        f"{_VLLM}SubscribeKvEvents",  # with the tokens of everyone's prompts
    }
)
_FOR_OPERATORS = frozenset(
    {f"{_VLLM}GetLoads", "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics", "/metrics"}
)
_FOR_TENANTS = frozenset(
    {"/pagewire.v1.AdminService/ListRequests", "/pagewire.v1.AdminService/ExplainRequest"}
)
_ADMIN_SERVICES = ("/pagewire.v1.AdminService/",)

Metadata = Iterable[tuple[str, str | bytes]]
"""Headers of a call: lower-case names and values."""


def access_of(method: str) -> Access:
    """Returns which callers a method is for. method: "/package.Service/Method"; it need not exist."""
    if method in _PUBLIC:
        return Access.PUBLIC
    if method in _FOR_TENANTS:
        return Access.TENANTS
    if method in _FOR_OPERATORS:
        return Access.OPERATORS
    if method in _FOR_ADMINS or method.startswith(_ADMIN_SERVICES):
        return Access.ADMINS
    return Access.AUTHENTICATED


class Authenticator(Protocol):
    """Identifies a caller by method and headers, before the request is read."""

    admins_are_local: bool
    """True when admin methods are for peers on this machine instead of for callers with a token."""

    def authenticate(self, method: str, metadata: Metadata) -> Caller | None:
        """Returns the caller; None when the method is public and the caller unknown. Raises Unauthenticated,
        PermissionDenied."""


class AnonymousAuthenticator:
    """No authentication: every caller is ANONYMOUS, and admin methods are for this machine alone."""

    admins_are_local = True

    def authenticate(self, method: str, metadata: Metadata) -> Caller:
        return ANONYMOUS


class TokenAuthenticator:
    """Identifies callers by bearer token."""

    admins_are_local = False

    def __init__(self, tokens: TokenFile, clock: Callable[[], float] = time.time) -> None:
        """clock: returns Unix time."""
        self.num_refused = 0
        self._tokens = tokens
        self._clock = clock

    def authenticate(self, method: str, metadata: Metadata) -> Caller | None:
        """Returns the token's caller; None when the method is public and no token is valid. Raises
        Unauthenticated, PermissionDenied."""
        access = access_of(method)
        if access is Access.PUBLIC:
            with suppress(ServiceError):
                return self._tokens.table.find(token_in(metadata), self._clock())
            return None
        try:
            caller = self._tokens.table.find(token_in(metadata), self._clock())
            if access in (Access.ADMINS, Access.OPERATORS) and not caller.is_admin:
                raise AdminsOnly("this method needs the token of an admin")
        except ServiceError as error:
            self._count_refusal(error)
            raise
        return caller

    def _count_refusal(self, error: ServiceError) -> None:
        self.num_refused += 1
        if self.num_refused.bit_count() == 1:  # 1, 2, 4, 8 ...: a flood must not fill the log
            log.warning("a call was refused: %s (%d refused so far)", error.reason, self.num_refused)
