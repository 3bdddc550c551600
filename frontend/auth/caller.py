"""The authenticated caller: its tenant, its rights and its quota."""

from dataclasses import dataclass

from frontend.errors import AdminsOnly, InvalidRequest, TenantMismatch, TermsExceeded


@dataclass(frozen=True, slots=True)
class Terms:
    """A tenant's weight, quotas and best class. Weight 0 means the core's default, a quota of 0 no limit.

    min_priority: the best priority class that its requests may have; lower is sooner. adapters: names of
    those that it may use; None: all.
    """

    weight: float = 0.0
    max_requests: int = 0
    max_tokens_per_minute: int = 0
    max_sequences: int = 0
    min_priority: int = 0
    adapters: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller that has passed authentication.

    tenant:   owner of the caller's requests; None: without authentication each request names its own.
    is_admin: may use AdminService, and abort requests of other tenants.
    terms:    of the tenant.
    """

    tenant: str | None
    is_admin: bool = False
    terms: Terms | None = None

    def act_as(self, claimed: str) -> str:
        """Returns the tenant of a request that names `claimed`, or names none (""). Raises
        TenantMismatch."""
        if self.tenant is None:
            return claimed
        if claimed not in ("", self.tenant):
            raise TenantMismatch
        return self.tenant

    def check_terms(self, priority: int, num_sequences: int = 1, path: str = "") -> None:
        """Checks what the terms allow a request. num_sequences: that it runs at once, which `path` asks for.
        Raises TermsExceeded, naming the fields."""
        terms = self.terms
        if terms is None:
            return
        found = {}
        if priority < terms.min_priority:
            found["priority"] = f"must be at least {terms.min_priority} with this token, not {priority}"
        if terms.max_sequences and num_sequences > terms.max_sequences:
            found[path] = f"must be at most {terms.max_sequences} with this token, not {num_sequences}"
        if found:
            raise TermsExceeded(found)

    def may_use_adapter(self, name: str) -> bool:
        """Returns whether the terms allow an adapter."""
        return self.terms is None or self.terms.adapters is None or name in self.terms.adapters

    def scope(self, request_id: str) -> str:
        """Returns the engine's id for a request of this caller, which no other tenant's can equal."""
        return scope(self.tenant, request_id)

    def may_see(self, claimed: str) -> str | None:
        """Returns the tenant whose requests a caller sees that asks for those of `claimed`, or of none ("");
        None: those of all tenants. Raises AdminsOnly."""
        if self.tenant is None or self.is_admin or claimed == self.tenant:
            return claimed or None
        if claimed:
            raise AdminsOnly("tenant: only an admin may see the requests of others")
        return self.tenant

    def may_abort_for(self, claimed: str) -> str | None:
        """Returns the tenant whose requests an Abort that names `claimed`, or none (""), may end. Raises
        AdminsOnly, InvalidRequest."""
        if not claimed or claimed == self.tenant:
            return self.tenant
        if self.tenant is None:
            raise InvalidRequest({"tenant": "must be empty without authentication: ids belong to no tenant"})
        if not self.is_admin:
            raise AdminsOnly("tenant: only an admin may end the requests of others")
        return claimed


ANONYMOUS = Caller(tenant=None)
"""Every caller, where there is no authentication."""


def scope(tenant: str | None, request_id: str) -> str:
    """Returns the engine's id for a tenant's request id. Tenant names contain no "/"."""
    return request_id if tenant is None else f"{tenant}/{request_id}"
