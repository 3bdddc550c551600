"""What stands between gRPC and the methods."""

from types import SimpleNamespace

import grpc
import pytest

from frontend.auth.authenticator import AnonymousAuthenticator
from frontend.rpc.interceptors.admission import AuthInterceptor, is_local
from pagewire.v1 import admin_pb2, model_pb2
from tests.frontend.fakes import run_service

ADMIN_METHODS = [method.name for method in admin_pb2.DESCRIPTOR.services_by_name["AdminService"].methods]


@pytest.mark.parametrize(
    ("peer", "local"),
    [
        ("ipv4:127.0.0.1:4711", True),
        ("ipv4:127.8.8.8:4711", True),
        ("ipv6:%5B::1%5D:4711", True),
        ("ipv6:[::1]:4711", True),
        ("ipv6:%5B::ffff:127.0.0.1%5D:4711", True),
        ("unix:", True),
        ("unix:/run/x", True),
        ("unix-abstract:x", True),
        ("ipv4:10.0.0.1:4711", False),
        ("ipv4:0.0.0.0:4711", False),
        ("ipv6:%5B::ffff:10.0.0.1%5D:4711", False),
        ("ipv6:%5B2001:db8::1%5D:4711", False),
        ("dns:localhost:1", False),
        ("127.0.0.1", False),
        ("unknown", False),
        ("", False),
    ],
)
def test_peers_on_this_machine(peer, local):
    assert is_local(peer) is local


@pytest.mark.parametrize("method", ADMIN_METHODS)
async def test_without_tokens_operators_are_on_this_machine(checkpoint, model, method, monkeypatch):
    """Every method of AdminService is covered, also those added later."""
    monkeypatch.setattr("frontend.rpc.interceptors.admission.is_local", lambda peer: False)
    async with run_service(checkpoint, model=model) as service:
        call = service.channel.unary_unary(f"/pagewire.v1.AdminService/{method}")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"")
        assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED
        assert (await service.models.ListModels(model_pb2.ListModelsRequest())).models


async def test_a_wrapped_method_is_wrapped_once():
    inner = grpc.unary_unary_rpc_method_handler(lambda request, context: None)
    interceptor = AuthInterceptor(AnonymousAuthenticator())

    async def continuation(details):
        return inner

    details = SimpleNamespace(method="/pagewire.v1.AdminService/GetLoad", invocation_metadata=())
    first = await interceptor.intercept_service(continuation, details)
    assert first is not inner and first is await interceptor.intercept_service(continuation, details)
    details.method = "/pagewire.v1.GenerationService/Generate"
    assert await interceptor.intercept_service(continuation, details) is inner
