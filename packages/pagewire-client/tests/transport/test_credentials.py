"""How clients identify themselves; tests/e2e/test_auth.py has them talk to a service."""

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from pagewire import cli
from pagewire.cli.connect import connect
from pagewire.command_config import HealthConfig
from pagewire.flags import UsageError
from pagewire.v1 import generation_pb2
from pagewire_client.errors import from_status
from pagewire_client.transport import channel
from pagewire_client.transport.credentials import Credentials
from pagewire_client.transport.recovery import Recovery

REMOTE = "10.0.0.1:50051"


def test_every_call_carries_the_token():
    assert Credentials().metadata() == ()
    assert Credentials(token="abc").metadata() == (("authorization", "Bearer abc"),)
    tokens = iter(["one", "two"])
    credentials = Credentials(token=lambda: next(tokens))
    assert [credentials.metadata()[0][1] for _ in range(2)] == ["Bearer one", "Bearer two"]


@pytest.mark.parametrize("token", ["a b", "a\n", "ä", "a\0b"])
def test_a_token_that_cannot_travel_is_not_quoted(token):
    with pytest.raises(ValueError, match="printable ASCII") as caught:
        Credentials(token=token)
    assert token not in str(caught.value)
    with pytest.raises(ValueError, match="printable ASCII"):
        Credentials(token=lambda: token).metadata()


def test_no_proxy_sees_a_token():
    """With TLS it may pass one: that carries bytes it cannot read."""
    secret = ("grpc.enable_http_proxy", 0)
    assert secret not in channel.options(REMOTE)
    assert secret in channel.options(REMOTE, Credentials(token="abc"))
    assert secret not in channel.options(REMOTE, Credentials(token="abc", tls=True))


def test_credentials_do_not_show_their_token():
    assert "abc" not in repr(Credentials(token="abc"))


def test_what_belongs_together():
    assert not Credentials().secure and Credentials(tls=True).secure and Credentials(tls="ca.pem").secure
    assert Credentials(tls_cert="c", tls_key="k").secure
    for options in ({"tls_cert": "c"}, {"tls_key": "k"}, {"tls_server_name": "x"}):
        with pytest.raises(ValueError, match="tls_"):
            Credentials(**options)


@pytest.mark.parametrize("code", ["UNAUTHENTICATED", "PERMISSION_DENIED"])
def test_authentication_errors_are_not_retried(code):
    recovery = Recovery(generation_pb2.GenerateRequest(), num_servers=3, server=0, timeout=None)
    assert recovery.after(from_status(grpc.StatusCode[code], "no", ())) is None


@pytest.mark.parametrize("flag", ["token_file", "tls_ca", "tls_cert", "tls_key"])
def test_files_of_the_command_line_are_named(tmp_path, flag):
    paths = {flag: str(tmp_path / "gone")}
    if flag in ("tls_cert", "tls_key"):
        (tmp_path / "there").touch()
        paths = {"tls_cert": str(tmp_path / "there"), "tls_key": str(tmp_path / "there")} | paths
    with pytest.raises(UsageError) as caught:
        connect(HealthConfig(**paths))
    assert "--" + flag.replace("_", "-") in caught.value.what


def test_the_token_of_the_command_line(tmp_path, monkeypatch):
    """It comes from a file or a variable: a flag would show in the list of processes."""
    monkeypatch.setenv("PAGEWIRE_TOKEN", "of-the-variable")
    path = tmp_path / "token"
    path.write_text("of-the-file\n")
    with connect(HealthConfig()) as client:
        assert client._credentials.metadata()[0][1] == "Bearer of-the-variable"
    with connect(HealthConfig(token_file=str(path))) as client:
        assert client._credentials.metadata()[0][1] == "Bearer of-the-file"
    path.write_text("two words")
    with pytest.raises(UsageError) as caught:
        connect(HealthConfig(token_file=str(path)))
    assert "two words" not in str(caught.value)
    with pytest.raises(UsageError, match="together"):
        connect(HealthConfig(tls_cert=str(path)))
    with pytest.raises(UsageError, match="unknown argument '--token'"):
        cli.run(["health", "--token=abc"])


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        ("Connection refused", "pagewire serve"),
        ("ipv4:127.0.0.1:1: Socket closed", "--tls"),
        ("Tls handshake failed (...)", "certificate"),
    ],
)
def test_what_to_do_where_no_server_is_reached(message: str, hint: str):
    assert hint in from_status(grpc.StatusCode.UNAVAILABLE, message, ()).todo


def test_what_to_do_where_a_server_says_not_now():
    """That the service might not run is no help then."""
    status = status_pb2.Status(code=14)
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason="ENGINE_NOT_READY", domain="pagewire"))
    trailers = [("grpc-status-details-bin", status.SerializeToString())]
    assert "health --wait" in from_status(grpc.StatusCode.UNAVAILABLE, "starting", trailers).todo
