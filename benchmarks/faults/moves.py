"""Pause of a stream whose engine core is asked to end: another one copies its blocks, or computes them.

    python -m benchmarks.faults.moves MODEL --tokens 2048 --rounds 5

Two engine cores with `--drain-timeout`, on a CPU. In each round a stream with a prompt of so many tokens runs
at the first core, which gets SIGTERM; the pause is the longest gap between two of its messages from then on.
Once with the prefix cache, from which blocks are copied, and once with --no-prefix-cache. Prints the median
and the largest pause of each, and how many blocks were copied.
"""

import os
import random
import re
import signal
import statistics
import time
import urllib.request

from benchmarks.options import make_parser
from pagewire import Client
from pagewire.local_service import Service
from tests.e2e import services

OUTPUT = 64
BEFORE = 8
"""Messages before the signal."""


def main() -> None:
    """Prints a line for each way."""
    parser = make_parser(__doc__)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=2048, help="of the prompt")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="of each worker")
    options = parser.parse_args()
    ways: dict[str, dict[str, object]] = {"copied": {}, "computed": {"no_prefix_cache": True}}
    for name, flags in ways.items():
        with services.start(
            options.model,
            device="cpu",
            data_parallel_size=2,
            drain_timeout=60.0,
            http_port=0,
            max_deaths=1000,
            threads=options.threads,
            **flags,
        ) as service:
            pauses = [pause(service, options.tokens, number) for number in range(options.rounds)]
            print(
                f"{name}: {1000 * statistics.median(pauses):.0f} ms, at most {1000 * max(pauses):.0f} ms,"
                f" n = {len(pauses)}, {copied_blocks(service)} blocks copied"
            )


def pause(service: Service, num_tokens: int, number: int) -> float:
    """Returns the longest gap of a stream after its core was asked to end, in seconds."""
    prompt = random.Random(number).choices(range(10, 200), k=num_tokens)
    with Client(service.address) as client:
        services.wait_until(lambda: len(first_core(service)) == 1 and len(client.load().ranks) == 2)
        (core,) = first_core(service)
        options = {"max_tokens": OUTPUT, "ignore_eos": True, "seed": 1, "data_parallel_rank": 0}
        longest, last = 0.0, None
        with client.stream(prompt, **options) as stream:
            for count, _ in enumerate(stream, start=1):
                now = time.monotonic()
                if last is not None:
                    longest = max(longest, now - last)
                if count == BEFORE:
                    os.kill(core, signal.SIGTERM)
                last = now if count >= BEFORE else None
    services.wait_until(lambda: core not in first_core(service))
    return longest


def first_core(service: Service) -> list[int]:
    """Returns the process of the first engine core, if there is one."""
    listens = f"--listen={services.engine_addresses(service)[0]}"
    running = services.processes(service.pid).get("engine", [])
    return [pid for pid in running if listens in services.words_of(pid)]


def copied_blocks(service: Service) -> int:
    """Returns how many blocks the living cores have copied."""
    with urllib.request.urlopen(f"http://{service.facts['http']}/metrics") as answer:
        text = answer.read().decode()
    values = re.findall(r"^pagewire_core_kv_pulled_blocks_total\S* (\S+)$", text, re.MULTILINE)
    return round(sum(map(float, values)))


if __name__ == "__main__":
    main()
