"""Measures what authentication costs a unary call to a server that does nothing.

    python -m benchmarks.auth [--calls N] [--rounds N] [--tokens N]

Processor time of client and server together, in one process, so that what others do on the machine counts
little. The three servers take turns in short rounds; the difference is the gate's, and its median over all
rounds is what is printed. Then the gate alone, without gRPC.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import grpc

from frontend.auth.authenticator import AnonymousAuthenticator, Authenticator, TokenAuthenticator
from frontend.auth.caller import Caller, Terms
from frontend.auth.tokens import TokenEntry, TokenTable, digest_of, new_token
from frontend.rpc.interceptors.auth import AuthInterceptor

METHOD = "/pagewire.v1.ModelService/ListModels"


async def nothing(request: bytes, context: Any) -> bytes:
    """The method that is called."""
    return b""


def serve(gate: Authenticator | None) -> tuple[grpc.aio.Server, int]:
    """A server and its port."""
    interceptors = [AuthInterceptor(gate)] if gate is not None else []
    server = grpc.aio.server(interceptors=interceptors, options=[("grpc.so_reuseport", 0)])
    _, service, method = METHOD.split("/")
    handlers = {method: grpc.unary_unary_rpc_method_handler(nothing)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, handlers)])
    return server, server.add_insecure_port("127.0.0.1:0")


async def microseconds(port: int, calls: int, metadata: Sequence[tuple[str, str]]) -> float:
    """Of processor time per call, one after another."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(METHOD)
        for _ in range(20):
            await call(b"", metadata=metadata)
        start = time.process_time()
        for _ in range(calls):
            await call(b"", metadata=metadata)
        return 1e6 * (time.process_time() - start) / calls


async def measure(
    gates: dict[str, Authenticator | None], token: str, calls: int, rounds: int
) -> dict[str, float]:
    """The median over all rounds, of what none costs and of what each gate adds in the same round. All
    calls carry the token, whether the server reads it or not."""
    servers = {name: serve(gate) for name, gate in gates.items()}
    for server, _ in servers.values():
        await server.start()
    metadata = (("authorization", f"Bearer {token}"),)
    found: dict[str, list[float]] = {name: [] for name in servers}
    for _ in range(rounds):
        for name, (_, port) in servers.items():
            found[name].append(await microseconds(port, calls, metadata))
    for server, _ in servers.values():
        await server.stop(None)
    first, *others = found
    added = {name: [a - b for a, b in zip(found[name], found[first], strict=True)] for name in others}
    return {first: statistics.median(found[first])} | {n: statistics.median(d) for n, d in added.items()}


async def alone(gate: Authenticator, token: str, calls: int) -> float:
    """Microseconds of the interceptor, called in a loop, without gRPC."""
    interceptor = AuthInterceptor(gate)
    details = SimpleNamespace(
        method=METHOD, invocation_metadata=(("user-agent", "x"), ("authorization", f"Bearer {token}"))
    )

    async def continuation(_: object) -> object:
        return nothing

    start = time.process_time()
    for _ in range(calls):
        await interceptor.intercept_service(continuation, details)  # type: ignore[arg-type]  # has what is read
    return 1e6 * (time.process_time() - start) / calls


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=1000)
    arguments = parser.parse_args()
    token = new_token()
    others = [new_token() for _ in range(arguments.tokens - 1)]
    entries = [TokenEntry(digest_of(each), Caller("tenant", terms=Terms())) for each in (token, *others)]
    closed = TokenAuthenticator(SimpleNamespace(table=TokenTable(entries)))
    gates: dict[str, Authenticator | None] = {
        "none": None,
        "anonymous": AnonymousAuthenticator(),
        "tokens": closed,
    }
    medians = asyncio.run(measure(gates, token, arguments.calls, arguments.rounds))
    for name, value in medians.items():
        what = "per unary call" if gates[name] is None else "more"
        print(f"{name:<11} {value:7.1f} us {what}  (median of {arguments.rounds} x {arguments.calls} calls)")
    for name, gate in gates.items():
        if gate is not None:
            cost = min(asyncio.run(alone(gate, token, 20_000)) for _ in range(5))
            print(f"{name:<11} {cost:7.1f} us alone  (least of 5 x 20000; {arguments.tokens} tokens)")


if __name__ == "__main__":
    main()
