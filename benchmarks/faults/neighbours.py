"""What a tenant has left beside a hostile one: throughput and latency, attack by attack.

    python -m benchmarks.faults.neighbours
    python -m benchmarks.faults.neighbours --seconds 10 --attacks resets,aborts --json figures.json

The demo model on a simulated H200; two tenants of equal weight, each in a process of its own. Bob
keeps eight streams of 64 tokens going; Alice does the same ("none", the measure of the others), or attacks.
Throughput and latency are Bob's, as ratios to "none". All processes share the cores, so what Alice's own
process computes is taken from Bob as well; the column behind it relates Bob's tokens to the core seconds that
Alice's process has left. Memory is the largest resident set during the attack.
"""

import argparse
import asyncio
import itertools
import json
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing.synchronize import Event
from pathlib import Path

import grpc

from benchmarks.service.processes import by_role, cpu_seconds, resident_mb
from frontend.auth.tokens import digest_of, entry_line, new_token
from pagewire import AsyncClient
from pagewire.client.errors import RpcError
from pagewire.config import ServeConfig
from pagewire.local_service import Service
from pagewire.v1 import generation_pb2, generation_pb2_grpc, pooling_pb2, pooling_pb2_grpc
from tests.hostile.test_frames import Http2, framed

STREAMS = 8
THREADS = 4
PROMPT = "The quick brown fox jumps over the lazy dog. " * 4
NONE = "none"
GOAL_THROUGHPUT, GOAL_LATENCY = 0.4, 3.0


@dataclass
class Figures:
    """Bob's, beside one attack."""

    attack: str
    tokens_per_second: float
    ttft_ms: float
    attacker_cores: float  # that Alice's process uses
    tokens_per_core_second: float  # of Bob's, in what Alice's process leaves
    frontend_mb: float
    core_mb: float


async def bob(address: str, token: str, seconds: float) -> tuple[int, list[float]]:
    """Returns tokens, and times to the first token in seconds, of streams that follow one another."""
    tokens, first = 0, list[float]()

    async def follow(client: AsyncClient, number: int) -> None:
        nonlocal tokens
        for turn in itertools.count():
            began, heard = time.perf_counter(), False
            if began >= end:
                return
            try:
                async with client.stream(
                    f"{number}.{turn} {PROMPT}", max_tokens=64, ignore_eos=True
                ) as stream:
                    async for delta in stream:
                        if not heard:
                            first.append(time.perf_counter() - began)
                            heard = True
                        tokens += len(delta.token_ids) if time.perf_counter() < end else 0
            except RpcError:
                await asyncio.sleep(0.1)

    end = time.perf_counter() + seconds
    async with AsyncClient(address, token=token) as client:
        await asyncio.gather(*(follow(client, number) for number in range(STREAMS)))
    return tokens, first


def bob_process(address: str, token: str, seconds: float, queue: "multiprocessing.Queue[object]") -> None:
    """Bob, and puts his figures into the queue."""
    queue.put(asyncio.run(bob(address, token, seconds)))


Attack = Callable[[str, str, Event], None]


def calls(address: str, token: str, stop: Event, requests: Iterator[generation_pb2.GenerateRequest]) -> None:
    """Streams of these requests, 64 at a time in each thread's channel."""
    metadata = (("authorization", f"Bearer {token}"),)
    with grpc.insecure_channel(address) as channel:
        stub, open_calls = generation_pb2_grpc.GenerationServiceStub(channel), []
        while not stop.is_set():
            open_calls.append(stub.GenerateUnary.future(next(requests), metadata=metadata, timeout=60))
            open_calls = [call for call in open_calls if not call.done()]
            if len(open_calls) >= 64:
                time.sleep(0.01)
        for call in open_calls:
            call.cancel()


def request(**changes: object) -> generation_pb2.GenerateRequest:
    """A request of Alice's."""
    fields: dict[str, object] = {
        "prompt": {"text": PROMPT},
        "stopping": {"max_tokens": 64, "ignore_eos": True},
    }
    return generation_pb2.GenerateRequest(**(fields | changes))  # type: ignore[arg-type]


def generating(**changes: object) -> Attack:
    """An attack by such requests."""
    return lambda address, token, stop: calls(address, token, stop, itertools.repeat(request(**changes)))


def well_behaved(address: str, token: str, stop: Event) -> None:
    """What Bob does, in one of the threads."""
    if threading.current_thread().name == "attack 0":
        while not stop.is_set():
            asyncio.run(bob(address, token, 1.0))


def half_uploads(address: str, token: str, stop: Event) -> None:
    """Messages that stop 1 KiB before their end."""
    body, bearer = framed(bytes(63 << 10), length=64 << 10), f"Bearer {token}"
    raw(address, stop, lambda http: http.call(body, end=False, authorization=bearer))


def zero_windows(address: str, token: str, stop: Event) -> None:
    """Answers for which there is never room."""
    body, bearer = framed(request().SerializeToString()), f"Bearer {token}"
    raw(address, stop, lambda http: http.call(body, authorization=bearer), window=0)


def ten_thousand(address: str, token: str, stop: Event) -> None:
    """Long streams on a few connections, until 10,000 calls are open or refused, again and again."""
    message = request(stopping={"max_tokens": 900, "ignore_eos": True})
    body, bearer = framed(message.SerializeToString()), f"Bearer {token}"
    raw(address, stop, lambda http: http.call(body, authorization=bearer), most=10_000 // THREADS)


def giant_continuations(address: str, token: str, stop: Event) -> None:
    """Four million tokens of output that no server has made."""
    generating(
        sampling={"seed": 1, "temperature": 1},
        output={"token_ids": True},
        continuation={"sequences": [{"token_ids": [7] * 4_000_000}]},
    )(address, token, stop)


def left_behind(address: str, token: str, stop: Event) -> None:
    """Calls with ids of their own that are cancelled once they run: the core keeps them for the grace."""
    metadata, name = (("authorization", f"Bearer {token}"),), threading.current_thread().name
    with grpc.insecure_channel(address) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        for turn in itertools.count():
            if stop.is_set():
                return
            message = request(request_id=f"{name}-{turn}", stopping={"max_tokens": 900, "ignore_eos": True})
            call = stub.Generate(message, metadata=metadata, timeout=30)
            with suppress(grpc.RpcError, StopIteration):
                next(call)
            call.cancel()


def resets(address: str, token: str, stop: Event) -> None:
    """HEADERS and RST_STREAM, as fast as it goes."""
    bearer = f"Bearer {token}"

    def reset(http: Http2) -> None:
        http.state.reset_stream(http.call(b"", end=False, authorization=bearer))

    raw(address, stop, reset, most=1 << 30)


def raw(
    address: str, stop: Event, attack: Callable[[Http2], object], window: int = 65535, most: int = 90
) -> None:
    """Repeats a step on a connection; after `most` it waits, and opens another one."""
    while not stop.is_set():
        with suppress(Exception), Http2(address) as http:  # the server may hang up
            http.state.update_settings({4: window})
            for _ in range(most):
                if stop.is_set():
                    return
                attack(http)
                http.flush()
            stop.wait(5.0)


def aborts(address: str, token: str, stop: Event) -> None:
    """256 ids that no request has, again and again."""
    metadata = (("authorization", f"Bearer {token}"),)
    with grpc.insecure_channel(address) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        for turn in itertools.count():
            if stop.is_set():
                return
            ids = [f"{turn}-{place}" for place in range(256)]
            with suppress(grpc.RpcError):
                stub.Abort(generation_pb2.AbortRequest(request_ids=ids), metadata=metadata, timeout=30)


def scoring(address: str, token: str, stop: Event) -> None:
    """64 continuations of one prompt."""
    metadata, message = (
        (("authorization", f"Bearer {token}"),),
        pooling_pb2.ScoreContinuationsRequest(
            prompt={"text": PROMPT}, continuations=[f"answer {number}" for number in range(64)]
        ),
    )
    with grpc.insecure_channel(address) as channel:
        stub = pooling_pb2_grpc.PoolingServiceStub(channel)
        while not stop.is_set():
            with suppress(grpc.RpcError):
                stub.ScoreContinuations(message, metadata=metadata, timeout=30)


ATTACKS: dict[str, Attack] = {
    NONE: well_behaved,
    "streams": generating(),
    "10000 streams": ten_thousand,
    "left behind": left_behind,
    "half uploads": half_uploads,
    "zero windows": zero_windows,
    "resets": resets,
    "aborts": aborts,
    "priorities": generating(priority=-1000),
    "n = 8": generating(sampling={"n": 8}),
    "n = 32": generating(
        sampling={"n": 32}, stopping={"max_tokens": 900, "ignore_eos": True}
    ),  # long ones; refused under --max-sequences 16
    "n = 64": generating(sampling={"n": 64}),
    "beams": generating(sampling={"beam_search": {"width": 8}, "n": 1}),
    "continuations": generating(
        sampling={"seed": 1, "temperature": 1},
        stopping={"max_tokens": 900, "ignore_eos": True},
        output={"token_ids": True},
        continuation={"sequences": [{"token_ids": [7] * 800}]},
    ),
    "giant continuations": giant_continuations,
    "scoring": scoring,
}


def alice_process(attack: str, address: str, token: str, stop: Event) -> None:
    """Alice, in some threads."""
    threads = [
        threading.Thread(
            target=ATTACKS[attack], args=(address, token, stop), name=f"attack {number}", daemon=True
        )
        for number in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    stop.wait()
    os._exit(0)


def measure(service: Service, tokens: tuple[str, str], attack: str, seconds: float) -> Figures:
    """Bob beside one attack."""
    context = multiprocessing.get_context("spawn")
    stop, queue = context.Event(), context.Queue()
    alice = context.Process(target=alice_process, args=(attack, service.address, tokens[0], stop))
    alice.start()
    time.sleep(2.0)
    assert alice.pid is not None
    pids, used, began = by_role(service.pid), cpu_seconds(alice.pid), time.perf_counter()
    victim = context.Process(target=bob_process, args=(service.address, tokens[1], seconds, queue))
    victim.start()
    memory = [0.0, 0.0]
    while victim.is_alive() and queue.empty():
        memory = [
            max(before, resident_mb(pids[role][0]))
            for before, role in zip(memory, ("frontend", "engine"), strict=True)
        ]
        time.sleep(0.25)
    made, first = queue.get(timeout=10)
    wall = time.perf_counter() - began
    cores = (cpu_seconds(alice.pid) - used) / wall
    stop.set()
    for process in (alice, victim):
        process.join()
    time.sleep(2.0)
    left = max((os.cpu_count() or 1) - cores, 0.01)
    ttft = 1000 * statistics.median(first) if first else float("inf")
    return Figures(attack, made / seconds, ttft, cores, made / seconds / left, *memory)


def show(rows: list[Figures]) -> None:
    """The table; the first row is what the others are measured by."""
    base = rows[0]
    print(
        "| Alice | Bob's tokens/s | of none | of none, per core left | TTFT p50 ms | of none | Alice's cores"
        " | MB: frontend, core |"
    )
    print("|" + " --- |" * 8)
    for row in rows:
        tokens, ttft = row.tokens_per_second, row.ttft_ms
        share = row.tokens_per_core_second / base.tokens_per_core_second
        print(
            f"| {row.attack} | {tokens:.0f} | {tokens / base.tokens_per_second:.2f} | {share:.2f}"
            f" | {ttft:.0f} | {ttft / base.ttft_ms:.1f} | {row.attacker_cores:.2f}"
            f" | {row.frontend_mb:.0f}, {row.core_mb:.0f} |"
        )
    missed = [
        row.attack
        for row in rows
        if row.tokens_per_core_second < GOAL_THROUGHPUT * base.tokens_per_core_second
        or row.ttft_ms > GOAL_LATENCY * base.ttft_ms
    ]
    print(
        f"below {GOAL_THROUGHPUT:.0%} of the throughput or above {GOAL_LATENCY:g} times the latency: ", end=""
    )
    print(", ".join(missed) or "none")


def main() -> None:
    """Starts a service and measures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="of each attack")
    parser.add_argument("--attacks", default=",".join(ATTACKS), help="names, with commas; none comes first")
    parser.add_argument("--max-sequences", type=int, default=16, help="of each tenant's token; 0: no limit")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    attacks = [NONE, *(name for name in options.attacks.split(",") if name != NONE)]
    tokens = new_token(), new_token()
    with tempfile.TemporaryDirectory() as folder:
        path, terms = Path(folder) / "tokens.yaml", {"max_sequences": options.max_sequences}
        lines = (
            entry_line(digest_of(t), tenant, terms)
            for t, tenant in zip(tokens, ("alice", "bob"), strict=True)
        )
        path.write_text("tokens:\n" + "".join(lines))
        config = ServeConfig(
            port=0,
            http_port=-1,
            device="simulated",
            max_num_seqs=32,
            auth_file=str(path),
            log_level="error",
            no_standby=True,
        )
        with Service(config) as service:
            rows = [measure(service, tokens, attack, options.seconds) for attack in attacks]
    show(rows)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
