"""Fetching, from servers on loopback that tests alone may reach, by a resolver and a judge of their own."""

import socket
import ssl
from collections.abc import Sequence
from time import monotonic

import pytest
import trustme

from frontend.errors import InvalidRequest, MediaUnavailable
from frontend.fetching import fetch as fetch_module
from frontend.fetching.addresses import is_public
from frontend.fetching.fetch import BROKEN, MAX_REDIRECTS, REDIRECTED, TOO_LARGE, TOO_LONG, Fetcher
from frontend.fetching.urls import REFUSED, MediaHosts, NotFetched
from tests.frontend.fetching.servers import answer, redirect, serving
from tests.patience import PATIENCE_S

HERE = ["127.0.0.1"]
MOST = 1000


def loopback(host: str, port: int) -> Sequence[str]:
    return HERE


def fetcher(port: int, resolve: fetch_module.Resolve = loopback, **options: object) -> Fetcher:
    """Returns one that reaches loopback. port: of the server, which is named pictures.test."""
    names = (f"http://pictures.test:{port}", f"pictures.test:{port}", f"http://*:{port}")
    return Fetcher(MediaHosts(names[: 2 + bool(options.pop("any", False))]), resolve, judge=HERE.__contains__)


def fetched(made: Fetcher, url: str, seconds: float = PATIENCE_S, most: int = MOST) -> bytes:
    return made.fetch(url, monotonic() + seconds, most)


def refusal(made: Fetcher, url: str, seconds: float = PATIENCE_S) -> str:
    with pytest.raises(NotFetched) as caught:
        fetched(made, url, seconds)
    return str(caught.value)


def test_a_file_is_fetched_by_the_name_of_its_host() -> None:
    with serving(**{"a.png?b=1": answer(b"picture")}) as server:
        url = f"http://pictures.test:{server.port}/a.png?b=1"
        assert fetched(fetcher(server.port), url) == b"picture"
        (head,) = server.heads
    assert head.startswith(b"GET /a.png?b=1 HTTP/1.1\r\n")
    assert f"\r\nHost: pictures.test:{server.port}\r\n".encode() in head
    assert b"Cookie" not in head and b"Authorization" not in head


def test_no_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as proxy, serving(a=answer(b"x")) as server:
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert fetched(fetcher(server.port), f"http://pictures.test:{server.port}/a") == b"x"
        assert not proxy.num_connections


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def contexts(authority: trustme.CA, name: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Returns those of a server of that name, and of a client that trusts its authority."""
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert(name).configure_cert(server)
    authority.configure_trust(client)
    return server, client


def test_tls_is_verified_for_the_name_that_was_resolved(authority: trustme.CA) -> None:
    seen: list[str | None] = []
    for name, expected in (("pictures.test", b"x"), ("other.test", "no valid certificate")):
        tls, trusts = contexts(authority, name)
        tls.sni_callback = lambda _, asked, __: seen.append(asked)
        with serving(tls, a=answer(b"x")) as server:
            made, url = fetcher(server.port), f"https://pictures.test:{server.port}/a"
            made.tls = trusts
            if isinstance(expected, bytes):
                assert fetched(made, url) == expected
            else:
                assert expected in refusal(made, url)
    assert seen == ["pictures.test"] * 2


INSIDE = ("127.0.0.1", "10.0.0.1", "169.254.169.254", "0.0.0.0", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1")


@pytest.mark.parametrize("address", INSIDE)
def test_nothing_inside_is_connected_to(address: str) -> None:
    """Whatever name has the address, alone or beside a public one."""
    with serving(a=answer(b"x")) as canary:
        for found in ([address], ["1.1.1.1", address], [address, "1.1.1.1"]):
            made = Fetcher(MediaHosts((f"http://*:{canary.port}",)), lambda host, port, found=found: found)
            assert refusal(made, f"http://inside.test:{canary.port}/a") == REFUSED
        assert not canary.num_connections


@pytest.mark.parametrize("host", ["127.0.0.1", "2130706433", "0177.0.0.1", "0x7f.1", "127.1", "0", "[::1]"])
def test_other_forms_of_loopback(host: str) -> None:
    """By the resolver of the machine, which reads them as numbers."""
    with serving(a=answer(b"x")) as canary:
        made = Fetcher(MediaHosts((f"http://*:{canary.port}",)))
        assert refusal(made, f"http://{host}:{canary.port}/a") == REFUSED
        assert not canary.num_connections


def test_a_name_that_does_not_resolve_is_refused_as_one_that_is_inside() -> None:
    def fails(host: str, port: int) -> Sequence[str]:
        raise socket.gaierror

    def cannot(host: str, port: int) -> Sequence[str]:
        raise UnicodeError

    for resolve in (fails, cannot, lambda host, port: []):
        assert refusal(fetcher(80, resolve), "http://pictures.test:80/a") == REFUSED


def test_a_name_is_resolved_once_so_that_it_cannot_change() -> None:
    answers = [HERE, ["10.0.0.1"]]
    with serving(a=answer(b"x")) as server:
        made = fetcher(server.port, lambda host, port: answers.pop(0))
        assert fetched(made, f"http://pictures.test:{server.port}/a") == b"x"
    assert answers == [["10.0.0.1"]]


def test_the_next_address_is_tried_when_one_refuses() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed, serving(a=answer(b"x")) as server:
        port = closed.getsockname()[1]
        closed.close()
        both = ["127.0.0.2", "127.0.0.1"]
        made = Fetcher(MediaHosts((f"http://*:{server.port}",)), lambda host, _: both, both.__contains__)
        assert fetched(made, f"http://pictures.test:{server.port}/a") == b"x"
        unreachable = Fetcher(MediaHosts((f"http://*:{port}",)), loopback, HERE.__contains__)
        assert refusal(unreachable, f"http://pictures.test:{port}/a") == BROKEN


def test_redirects_are_followed_and_each_is_judged() -> None:
    with serving(x=answer(b"secret")) as canary, serving(last=answer(b"x")) as server:
        names = {"pictures.test": HERE, "inside.test": ["10.0.0.1"], "there.test": HERE}
        made = fetcher(server.port, lambda host, port: names[host], any=True)
        base = f"http://pictures.test:{server.port}"
        for place in range(MAX_REDIRECTS):
            following = "last" if place == MAX_REDIRECTS - 1 else str(place + 1)
            server.answers[f"/{place}"] = redirect(f"http://there.test:{server.port}/{following}")
        assert fetched(made, f"{base}/0") == b"x"
        server.answers["/more"] = redirect("/0")
        assert "redirected more than 3 times" in refusal(made, f"{base}/more")
        inside = (
            "http://inside.test:{}/x",
            "//127.0.0.1:{}/x",
            "https://pictures.test:22/{}",
            "http://pictures.test/{}",
        )
        for place in inside:
            server.answers["/in"] = redirect(place.format(canary.port))
            assert refusal(made, f"{base}/in") == REDIRECTED
        for place in (
            "file:///etc/passwd",
            "http://a:b@pictures.test/",
            "gopher://x",
            "http://[",
            "http://é/",
        ):
            server.answers["/odd"] = redirect(place)
            assert refusal(made, f"{base}/odd") in (REDIRECTED, BROKEN)
        count, server.answers["/odd"] = server.num_connections, redirect("")
        assert refusal(made, f"{base}/odd") == REDIRECTED and server.num_connections == count + 1
        assert not canary.num_connections


def endless(client: socket.socket, head: bytes) -> None:
    client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        client.sendall(b"x" * 65536)


def chunked(client: socket.socket, head: bytes) -> None:
    client.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        client.sendall(b"100\r\n" + b"x" * 256 + b"\r\n")


def continuing(client: socket.socket, head: bytes) -> None:
    while True:
        client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n" * 64)


def silent(client: socket.socket, head: bytes) -> None:
    client.recv(1)


def stops(client: socket.socket, head: bytes) -> None:
    client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
    client.recv(1)


BODIES = {
    "endless": (endless, TOO_LARGE),
    "chunked": (chunked, TOO_LARGE),
    "stated": (answer(b"x" * (MOST + 1)), TOO_LARGE),
    "silent": (silent, TOO_LONG),
    "stops": (stops, TOO_LONG),
    "continuing": (continuing, TOO_LONG),
    "cut": (lambda client, head: client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"), BROKEN),
    "no answer": (lambda client, head: None, BROKEN),
    "no http": (lambda client, head: client.sendall(b"SSH-2.0-x\r\n"), BROKEN),
    "many headers": (lambda client, head: client.sendall(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 500), BROKEN),
    "long header": (lambda client, head: client.sendall(b"HTTP/1.1 200 OK\r\na:" + b"b" * 99999), BROKEN),
    "empty": (answer(b""), "an empty file"),
    "missing": (answer(b"x", "404 Not Found"), "answers 404"),
    "partial": (answer(b"x", "206 Partial Content"), "answers 206"),
}


@pytest.mark.parametrize("name", BODIES)
def test_bodies_that_are_refused(name: str) -> None:
    body, expected = BODIES[name]
    with serving(a=body) as server:
        seconds = 0.05 if expected == TOO_LONG else PATIENCE_S
        assert expected in refusal(fetcher(server.port), f"http://pictures.test:{server.port}/a", seconds)


def test_a_body_as_large_as_allowed() -> None:
    with serving(a=answer(b"x" * MOST)) as server:
        assert len(fetched(fetcher(server.port), f"http://pictures.test:{server.port}/a")) == MOST


def test_media_of_a_request_share_bytes_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(a=answer(b"x" * 60), b=answer(b"y" * 40), c=answer(b"z")) as server:
        made, base = fetcher(server.port), f"http://pictures.test:{server.port}"
        monkeypatch.setattr(fetch_module, "MAX_FETCHED_BYTES", 100)
        named = [(f"prompt.media[{place}].uri", f"{base}/{name}") for place, name in enumerate("abc")]
        assert made.fetch_all(named[:2]) == [b"x" * 60, b"y" * 40]
        with pytest.raises(InvalidRequest) as caught:
            made.fetch_all(named)
        assert caught.value.violations == {"prompt.media[2].uri": TOO_LARGE}
        monkeypatch.setattr(fetch_module, "TIME_LIMIT", 0.0)
        with pytest.raises(MediaUnavailable) as late:
            made.fetch_all(named[:1])
        assert late.value.violations == {"prompt.media[0].uri": TOO_LONG}
        assert server.num_connections == 5


def test_what_may_pass_is_told_apart_from_what_will_not() -> None:
    """A stream that goes on elsewhere is not ended by it."""
    with serving() as server:
        base = f"http://pictures.test:{server.port}"
        for status, kind in (
            ("429 Too Many Requests", MediaUnavailable),
            ("503 Service Unavailable", MediaUnavailable),
            ("404 Not Found", InvalidRequest),
            ("401 Unauthorized", InvalidRequest),
        ):
            server.answers["/a"] = answer(b"", status)
            with pytest.raises(kind, match=f"p.uri: cannot be fetched: its server answers {status[:3]}"):
                fetcher(server.port).fetch_all([("p.uri", f"{base}/a")])


def test_a_machine_judges_by_itself_what_is_public() -> None:
    assert Fetcher(MediaHosts())._judge is is_public
