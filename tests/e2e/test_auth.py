"""Access control with real processes: TLS and tokens from the command line to the engine.

The device is simulated: what it says does not matter here, the reader does.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

from pagewire import AsyncClient, Client
from pagewire.local_service import Service
from pagewire_client.errors import PermissionDenied, Unauthenticated, Unavailable
from tests.e2e import services

PROMPT = list(range(10, 110))
"""More than six blocks of 16 tokens."""


@dataclass
class Guarded:
    """A service with the credentials to call it."""

    service: Service
    ca: Path
    client_cert: Path
    client_key: Path
    tokens: dict[str, str]
    auth_file: Path

    def access(self, tenant: str | None) -> dict[str, str]:
        """Keyword arguments of a client."""
        certificates = {"tls_cert": str(self.client_cert), "tls_key": str(self.client_key)}
        token = {"token": self.tokens[tenant]} if tenant else {}
        return {"tls": str(self.ca)} | certificates | token

    def client(self, tenant: str | None) -> Client:
        """Returns the client of a tenant; None: without a token."""
        return Client(self.service.address, **self.access(tenant))

    @contextlib.contextmanager
    def every_caller(self) -> Iterator[list[Client]]:
        """Clients of all tokens."""
        with contextlib.ExitStack() as stack:
            yield [stack.enter_context(self.client(tenant)) for tenant in self.tokens]


def new_token(auth_file: Path, tenant: str, *options: str) -> str:
    """Makes a token as an operator does."""
    command = [sys.executable, "-m", "pagewire", "token", "new", f"--tenant={tenant}", *options]
    command.append(f"--auth-file={auth_file}")
    done = subprocess.run(command, capture_output=True, text=True, timeout=services.PATIENCE_S, check=True)
    return done.stdout.strip()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """mTLS and three tokens, two frontends."""
    folder = tmp_path_factory.mktemp("auth")
    authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
    authority.cert_pem.write_to_path(folder / "ca.pem")
    for name in ("server", "client"):
        issued = authority.issue_cert("127.0.0.1", key_type=trustme.KeyType.ECDSA)
        issued.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
        (folder / f"{name}.key").touch(mode=0o600)
        issued.private_key_pem.write_to_path(folder / f"{name}.key")
    auth_file = folder / "tokens.yaml"
    tokens = {name: new_token(auth_file, name) for name in ("alice", "bob")}
    tokens["operator"] = new_token(auth_file, "operator", "--role=admin")
    with services.start(
        device="simulated",
        profile="instant",
        frontends=2,
        auth_file=str(auth_file),
        tls_cert=str(folder / "server.pem"),
        tls_key=str(folder / "server.key"),
        tls_client_ca=str(folder / "ca.pem"),
    ) as service:
        yield Guarded(
            service, folder / "ca.pem", folder / "client.pem", folder / "client.key", tokens, auth_file
        )


def cached(client: Client, **options) -> int:
    """Returns the number of prompt tokens that were found in the cache."""
    return client.generate(PROMPT, max_tokens=1, temperature=0, **options).usage.cached_prompt_tokens


def test_with_a_token_everything_works(guarded):
    with guarded.client("alice") as client:
        assert client.healthy()
        assert client.generate("hi", max_tokens=5, ignore_eos=True).usage.completion_tokens == 5
        assert len(list(client.stream("hi", max_tokens=5, ignore_eos=True))) >= 1
        assert len(client.score_continuations("hi", [" a", " b"])) == 2
        assert client.detokenize(client.tokenize("hello").token_ids) == "hello"
        assert client.model().limits.max_tenant_bytes


async def test_the_async_client_too(guarded):
    async with AsyncClient(guarded.service.address, **guarded.access("alice")) as client:
        assert (await client.generate("hi", max_tokens=5, ignore_eos=True)).usage.completion_tokens == 5
        assert [delta async for delta in client.stream("hi", max_tokens=5)]
        with pytest.raises(PermissionDenied):
            await client.load()
    access = guarded.access("alice") | {"token": "wrong"}
    async with AsyncClient(guarded.service.address, **access) as client:
        with pytest.raises(Unauthenticated) as caught:
            await client.stream("hi").result()
        assert caught.value.reason == "TOKEN_INVALID"


def test_without_a_token_there_is_health_and_nothing_else(guarded):
    with guarded.client(None) as client:
        assert client.healthy()
        for call in (
            client.models,
            client.load,
            lambda: client.generate("hi"),
            lambda: client.tokenize("hi"),
        ):
            with pytest.raises(Unauthenticated) as caught:
                call()
            assert caught.value.reason == "TOKEN_MISSING"
        with pytest.raises(Unauthenticated):
            client.stream("hi").result()


def test_without_a_certificate_there_is_nothing(guarded):
    token = guarded.tokens["alice"]
    for access in ({"tls": guarded.ca, "token": token}, {"token": token}, {"tls": True}):
        with Client(guarded.service.address, **access) as client, pytest.raises(Unavailable) as caught:
            client.healthy()
    assert "trust" in caught.value.todo


def test_admins_may_call_the_admin_service(guarded):
    with guarded.client("alice") as alice, guarded.client("operator") as operator:
        for call in (alice.load, alice.server_info, alice.reset_cache):
            with pytest.raises(PermissionDenied) as caught:
                call()
            assert caught.value.reason == "ADMIN_ONLY"
        operator.reset_cache()
        shown = str(operator.server_info())
        assert operator.load().ranks and not any(token in shown for token in guarded.tokens.values())


def test_a_tenant_is_its_token(guarded):
    with guarded.client("alice") as alice:
        assert alice.generate("hi", max_tokens=1, tenant="alice").text is not None
        with pytest.raises(PermissionDenied) as caught:
            alice.generate("hi", max_tokens=1, tenant="bob")
        assert caught.value.reason == "TENANT_MISMATCH" and "tenant" in caught.value.message


def test_ids_are_a_tenants_own_across_frontends(guarded):
    """Two clients reach either of two frontends: what they share is the engine."""
    endless = {"max_tokens": 800, "ignore_eos": True, "request_id": "the-same"}
    with (
        guarded.client("alice") as alice,
        guarded.client("bob") as bob,
        guarded.client("operator") as operator,
    ):
        streams = [client.stream("hi", **endless) for client in (alice, bob)]
        for stream in streams:
            next(stream)
        assert bob.abort(["alice/the-same"]) == operator.abort(["the-same"]) == []
        with pytest.raises(PermissionDenied):
            bob.abort(["the-same"], tenant="alice")
        for stream in streams:
            stream.close()


def test_cached_prefixes_of_other_tenants_are_not_found(guarded):
    """S20: a tenant finds its own prefixes, and never another's, whatever tenant it claims to be."""
    with (
        guarded.client("alice") as alice,
        guarded.client("bob") as bob,
        guarded.client("operator") as operator,
    ):
        operator.reset_cache()
        assert cached(alice) == 0 and cached(alice) == 96
        assert cached(alice, cache_salt="mine") == 0 and cached(alice, cache_salt="mine") == 96
        salts = ["", "mine", "alice", "alice/mine", "alice mine", "5:alice", "alicemine", "a"]
        for other in (bob, operator):
            assert [cached(other, cache_salt=salt) for salt in salts] == [0] * len(salts)
            assert [cached(other, cache_salt=salt) for salt in salts] == [96] * len(salts)
        scores = alice.score_continuations(PROMPT, [" x"], cache_salt="alice")
        assert scores and cached(alice) == 96


def test_tokens_are_added_and_removed_at_run_time(guarded):
    token = new_token(guarded.auth_file, "carol")
    with Client(guarded.service.address, **guarded.access(None) | {"token": token}) as carol:

        def comes_in() -> bool:
            try:
                return bool(carol.models())
            except Unauthenticated:
                return False

        services.wait_until(comes_in)
        text = guarded.auth_file.read_text()
        guarded.auth_file.write_text("".join(line for line in text.splitlines(True) if "carol" not in line))
        services.wait_until(lambda: not comes_in())
    with guarded.client("alice") as alice:
        assert alice.models()


def test_commands(guarded, tmp_path):
    """`health`, `generate` and `chat` with tokens and TLS."""
    token_file = tmp_path / "token"
    token_file.write_text(guarded.tokens["alice"] + "\n")
    tls = [f"--tls-ca={guarded.ca}", f"--tls-cert={guarded.client_cert}", f"--tls-key={guarded.client_key}"]

    def pagewire(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pagewire", *arguments, f"--address={guarded.service.address}", *tls]
        return subprocess.run(
            command,
            input="hi\n",
            capture_output=True,
            text=True,
            timeout=services.PATIENCE_S,
            env={**os.environ, **environment},
        )

    assert pagewire("health").returncode == 0
    generated = pagewire("generate", "hi", "--max-tokens=3", f"--token-file={token_file}")
    assert generated.returncode == 0, generated.stderr
    assert pagewire("chat", "--max-tokens=3", PAGEWIRE_TOKEN=guarded.tokens["alice"]).returncode == 0
    refused = pagewire("generate", "hi")
    assert refused.returncode == 1 and "token" in refused.stderr and "PAGEWIRE_TOKEN" in refused.stderr
