"""Who calls.

The interceptor finds it out before a method runs, and leaves it in a context variable, which is the RPC's
own: gRPC runs interceptors and method in one task. A servicer reads it there once, and below the servicers
it is an argument like any other, so that nothing there depends on who has set what.

Without an interceptor nobody is the caller, and a method that asks for one fails: it does not run for
everybody.

A call may be open for days, and take one request after another. It asks again for each: a token that was
taken back in the meantime lets nobody in any more.
"""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

from frontend.errors import AdminsOnly, InvalidRequest, TenantMismatch


@dataclass(frozen=True, slots=True)
class Terms:
    """What a tenant may have; 0: no limit, or for the weight, what the core is configured with."""

    weight: float = 0.0
    max_requests: int = 0
    max_tokens_per_minute: int = 0


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody who has come in.

    tenant:   whose requests these are; None: callers are not told apart, each names a tenant as it likes.
    is_admin: may use AdminService, and end the requests of other tenants.
    terms:    of the tenant.
    """

    tenant: str | None
    is_admin: bool = False
    terms: Terms | None = None

    def act_as(self, claimed: str) -> str:
        """The tenant of a request that names this one, or none (""). Raises TenantMismatch."""
        if self.tenant is None:
            return claimed
        if claimed not in ("", self.tenant):
            raise TenantMismatch
        return self.tenant

    def scope(self, request_id: str) -> str:
        """The id by which the engine knows a request: tenants do not meet one another's ids."""
        return scope(self.tenant, request_id)

    def may_abort_for(self, claimed: str) -> str | None:
        """Whose requests an Abort that names this tenant, or none (""), is for. Raises AdminsOnly,
        InvalidRequest."""
        if not claimed or claimed == self.tenant:
            return self.tenant
        if self.tenant is None:
            raise InvalidRequest({"tenant": "means nothing without authentication: ids belong to nobody"})
        if not self.is_admin:
            raise AdminsOnly("tenant: only an admin may end the requests of others")
        return claimed


ANYBODY = Caller(tenant=None)
"""Where there is no authentication."""

_current: ContextVar[Caller] = ContextVar("caller")
_asking: ContextVar[Callable[[], Caller | None]] = ContextVar("asking")


def set_caller(caller: Caller, ask_again: Callable[[], Caller | None] | None = None) -> None:
    """For the interceptor. ask_again: who it is now; raises Unauthenticated, PermissionDenied."""
    _current.set(caller)
    _asking.set(ask_again or (lambda: caller))


def current_caller() -> Caller:
    """Of the RPC that runs here. Raises LookupError where nobody has let it in."""
    return _current.get()


def caller_now() -> Caller:
    """The same, by the tokens that count now. Raises LookupError, Unauthenticated, PermissionDenied."""
    caller = _asking.get()()
    return _current.get() if caller is None else caller


def scope(tenant: str | None, request_id: str) -> str:
    """The engine's id for a tenant's. No tenant has a "/" in its name."""
    return request_id if tenant is None else f"{tenant}/{request_id}"
