"""Which caller may call which method: every method of every service has its row here."""

import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from frontend.auth.authenticator import Access, AnonymousAuthenticator, TokenAuthenticator, access_of
from frontend.auth.caller import ANONYMOUS, Caller
from frontend.auth.tokens import TokenEntry, TokenTable, digest_of
from frontend.errors import AdminsOnly, Unauthenticated
from pagewire.v1 import admin_pb2, generation_pb2, model_pb2, pooling_pb2, tokenizer_pb2

MODULES = (generation_pb2, tokenizer_pb2, model_pb2, pooling_pb2, admin_pb2, health_pb2, reflection_pb2)
METHODS = [
    f"/{service.full_name}/{method.name}"
    for module in MODULES
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
EVERYBODY = {"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"}
KNOWN = {
    "/grpc.health.v1.Health/List",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    *(f"/pagewire.v1.GenerationService/{name}" for name in ("Generate", "GenerateUnary", "Abort")),
    "/pagewire.v1.GenerationService/GenerateMultiplexed",
    *(f"/pagewire.v1.TokenizerService/{name}" for name in ("Tokenize", "Detokenize", "GetTokenizer")),
    *(f"/pagewire.v1.ModelService/{name}" for name in ("ListModels", "GetModel")),
    *(f"/pagewire.v1.PoolingService/{name}" for name in ("Embed", "Score", "Classify")),
    "/pagewire.v1.PoolingService/ScoreContinuations",
}
TENANTS = {f"/pagewire.v1.AdminService/{name}" for name in ("ListRequests", "ExplainRequest")}
ADMINS = {
    "/pagewire.v1.ModelService/LoadAdapter",
    "/pagewire.v1.ModelService/UnloadAdapter",
    "/pagewire.v1.ModelService/ListAdapters",
    *(method for method in METHODS if method.startswith("/pagewire.v1.AdminService/")),
} - TENANTS


class Table:
    """Two tokens: "user" and "admin"."""

    table = TokenTable(
        [
            TokenEntry(digest_of("user"), Caller("alice")),
            TokenEntry(digest_of("admin"), Caller("operators", is_admin=True)),
            TokenEntry(digest_of("old"), Caller("old", is_admin=True), expires=10.0),
        ]
    )


GATE = TokenAuthenticator(Table(), clock=lambda: 100.0)


def bearer(token: str) -> tuple[tuple[str, str]]:
    return (("authorization", f"Bearer {token}"),)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_row(method):
    rows = {
        Access.PUBLIC: EVERYBODY,
        Access.AUTHENTICATED: KNOWN,
        Access.TENANTS: TENANTS,
        Access.ADMINS: ADMINS,
    }
    assert [access for access, methods in rows.items() if method in methods] == [access_of(method)]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("metadata", [(), bearer("wrong"), bearer("old"), bearer("")])
def test_without_a_token_that_counts(method, metadata):
    if method in EVERYBODY:
        assert GATE.authenticate(method, metadata) is None
    else:
        with pytest.raises(Unauthenticated):
            GATE.authenticate(method, metadata)


@pytest.mark.parametrize("method", METHODS)
def test_with_a_token(method):
    """Public methods are told who calls, too: a Watch with a token counts for its tenant."""
    admin = GATE.authenticate(method, bearer("admin"))
    assert admin is not None and admin.is_admin
    if method in ADMINS:
        with pytest.raises(AdminsOnly):
            GATE.authenticate(method, bearer("user"))
    else:
        assert GATE.authenticate(method, bearer("user")) == Caller("alice")


@pytest.mark.parametrize(
    "method",
    ["/vllm.grpc.engine.VllmEngine/GetLoads", "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics"],
)
def test_the_load_of_all_tenants_is_for_operators(method):
    """With tokens those of admins, as AdminService/GetLoad has it; without, any load balancer's."""
    assert access_of(method) is Access.OPERATORS
    assert GATE.authenticate(method, bearer("admin")) == Caller("operators", is_admin=True)
    with pytest.raises(AdminsOnly):
        GATE.authenticate(method, bearer("user"))
    assert AnonymousAuthenticator().authenticate(method, ()) is ANONYMOUS


@pytest.mark.parametrize(
    "method",
    [
        "",
        "/",
        "/pagewire.v1.GenerationService/generate",
        "/grpc.health.v1.Health/Check/",
        "/grpc.health.v1.Health//Check",
        "/grpc.health.v1.health/check",
        "/pagewire.v1.AdminService",
        "/pagewire.v1.NewService/New",
    ],
)
def test_what_is_in_no_list_is_closed(method):
    assert access_of(method) is Access.AUTHENTICATED
    with pytest.raises(Unauthenticated):
        GATE.authenticate(method, ())


def test_refusals_are_counted_and_do_not_fill_the_log(caplog):
    gate = TokenAuthenticator(Table())
    for _ in range(100):
        with pytest.raises(Unauthenticated):
            gate.authenticate("/x/Y", bearer("secret-in-no-line"))
    assert gate.num_refused == 100 and len(caplog.messages) == 7
    assert "secret-in-no-line" not in caplog.text


def test_the_open_gate():
    assert AnonymousAuthenticator().authenticate("/x/Y", ()) is ANONYMOUS
