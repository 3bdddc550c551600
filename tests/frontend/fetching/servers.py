"""A server of pictures for tests: it answers from a script, on loopback, and counts its connections."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

Answer = Callable[[socket.socket, bytes], None]
"""Answers one request, given its head."""


def answer(body: bytes = b"", status: str = "200 OK", **headers: str) -> Answer:
    """Returns a whole answer, after which the connection closes. headers: with _ for -."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}"]
    lines += ["Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    head = "\r\n".join(lines).encode() + b"\r\n\r\n"
    return lambda client, request: client.sendall(head + body)


def redirect(url: str) -> Answer:
    return answer(status="302 Found", Location=url)


@dataclass
class Pictures:
    """port: of the server. answers: by path. heads: of the requests. num_connections: accepted."""

    port: int
    answers: dict[str, Answer] = field(default_factory=dict)
    heads: list[bytes] = field(default_factory=list)
    num_connections: int = 0
    over: threading.Event = field(default_factory=threading.Event)


@contextmanager
def serving(tls: ssl.SSLContext | None = None, **answers: Answer) -> Iterator[Pictures]:
    """A server within the block. tls: of a server. answers: by the name in the path."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        made = Pictures(listener.getsockname()[1], {f"/{name}": each for name, each in answers.items()})
        threads: list[threading.Thread] = []

        def answer_one(client: socket.socket) -> None:
            try:
                with client if tls is None else tls.wrap_socket(client, server_side=True) as connected:
                    head = b""
                    while b"\r\n\r\n" not in head and (piece := connected.recv(4096)):
                        head += piece
                    made.heads.append(head)
                    if head:
                        made.answers[head.split()[1].decode()](connected, head)
            except OSError:  # the client has left
                client.close()

        def accept() -> None:
            while not made.over.is_set():
                client, _ = listener.accept()
                if made.over.is_set():
                    client.close()
                    return
                made.num_connections += 1
                threads.append(threading.Thread(target=answer_one, args=(client,)))
                threads[-1].start()

        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield made
        finally:
            made.over.set()
            socket.create_connection(("127.0.0.1", made.port)).close()
            accepting.join()
            for thread in threads:
                thread.join()
