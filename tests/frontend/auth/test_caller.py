"""Whose requests are whose."""

import pytest

from frontend.auth.caller import ANONYMOUS, Caller, scope
from frontend.errors import AdminsOnly, InvalidRequest, TenantMismatch

ALICE = Caller("alice")
ADMIN = Caller("operators", is_admin=True)


def test_without_authentication_every_request_names_its_tenant():
    assert ANONYMOUS.act_as("alice") == "alice" and ANONYMOUS.act_as("") == ""
    assert ANONYMOUS.scope("x") == "x" and not ANONYMOUS.is_admin


@pytest.mark.parametrize("caller", [ALICE, ADMIN], ids=["tenant", "admin"])
def test_a_token_is_for_one_tenant(caller):
    assert caller.act_as("") == caller.tenant == caller.act_as(caller.tenant)
    with pytest.raises(TenantMismatch) as caught:
        caller.act_as("bob")
    assert caught.value.message.startswith("tenant:")


def test_ids_of_tenants_do_not_meet():
    assert ALICE.scope("x") == scope("alice", "x") != Caller("bob").scope("x")
    assert ALICE.scope("b/x") != Caller("alice-b").scope("x")


def test_abort_is_for_ones_own_requests_and_for_admins():
    assert ANONYMOUS.may_abort_for("") is None
    assert ALICE.may_abort_for("") == "alice" == ALICE.may_abort_for("alice")
    assert ADMIN.may_abort_for("bob") == "bob"
    with pytest.raises(AdminsOnly):
        ALICE.may_abort_for("bob")
    with pytest.raises(InvalidRequest) as caught:
        ANONYMOUS.may_abort_for("bob")
    assert "tenant" in caught.value.violations
