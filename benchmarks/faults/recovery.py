"""How long streams pause when the worker or the engine core of a real model is killed.

    python -m benchmarks.faults.recovery demo
    python -m benchmarks.faults.recovery MODEL --victim engine --kills 20 --standbys 0
    python -m benchmarks.faults.recovery MODEL --victim engine --prompt-tokens 3000

Streams run all the time. Every few seconds one process is killed; the pause is the longest silence of any
stream around that moment. Outputs are compared with those of streams that no kill disturbed.
"""

import argparse
import math
import os
import random
import signal
import statistics
import threading
import time
from dataclasses import dataclass, field
from itertools import pairwise

from benchmarks.service.processes import by_role, start_ticks
from pagewire import Client
from pagewire.config import ServeConfig
from pagewire.local_service import Service

OUTPUT_TOKENS = 200
_PROMPT = "Once upon a time there was a"

Prompt = str | list[int]


@dataclass
class Arrivals:
    """When one client received something, and how often its output was not the expected one."""

    times: list[float] = field(default_factory=list)
    wrong: int = 0

    def silence(self, start: float, end: float) -> float:
        """The longest time in seconds between two messages, of those that are not over at `start` and have
        begun by `end`; 0 if there are none."""
        silences = (later - at for at, later in pairwise(self.times) if later > start and at <= end)
        return max(silences, default=0.0)


def prompt_of(num_tokens: int) -> Prompt:
    """Returns a sentence; or so many token ids, which are in every vocabulary, if num_tokens is not 0."""
    return [10 + 7 * i % 300 for i in range(num_tokens)] or _PROMPT


def stream(
    address: str, prompt: Prompt, expected: list[int], arrivals: Arrivals, stopping: threading.Event
) -> None:
    """Streams one answer after another."""
    with Client(address) as client:
        while not stopping.is_set():
            ids: list[int] = []
            for delta in client.stream(prompt, max_tokens=OUTPUT_TOKENS, ignore_eos=True, seed=7):
                arrivals.times.append(time.monotonic())
                ids += delta.token_ids
            arrivals.wrong += ids != expected


def active(service: Service, victim: str) -> int:
    """Returns the process to kill: the one that serves, which is older than its standby."""
    return min(by_role(service.pid)[victim], key=start_ticks)


def measure(service: Service, options: argparse.Namespace) -> tuple[list[tuple[float, int, float]], int]:
    """Returns of each kill the pause in seconds, its number from 1 on, and the seconds from the streams'
    recovery from the last one; and the number of outputs that differ."""
    prompt = prompt_of(options.prompt_tokens)
    with Client(service.address) as client:
        alone = client.generate(prompt, max_tokens=OUTPUT_TOKENS, ignore_eos=True, seed=7)
    expected, stopping, chance = list(alone.token_ids), threading.Event(), random.Random(options.seed)
    clients = [Arrivals() for _ in range(options.streams)]
    threads = [
        threading.Thread(target=stream, args=(service.address, prompt, expected, one, stopping))
        for one in clients
    ]
    for thread in threads:
        thread.start()
    pauses = []
    for number in range(1, options.kills + 1):
        calm = chance.uniform(options.least, options.most)
        time.sleep(calm)
        killed_at = time.monotonic()
        os.kill(active(service, options.victim), signal.SIGKILL)
        while not all(one.times and one.times[-1] > killed_at + 0.1 for one in clients):
            time.sleep(0.01)
        pause = max(one.silence(killed_at, killed_at + 0.1) for one in clients)
        pauses.append((pause, number, calm))
    stopping.set()
    for thread in threads:
        thread.join()
    return pauses, sum(one.wrong for one in clients)


def percentile(ordered: list[float], percent: int) -> float:
    """Returns the least value that so many percent do not exceed."""
    return ordered[math.ceil(len(ordered) * percent / 100) - 1]


def main() -> None:
    """Runs, prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--victim", choices=("worker", "engine"), default="worker")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--prompt-tokens", type=int, default=0, help="0: a sentence")
    parser.add_argument("--least", type=float, default=6.0, help="seconds between kills, at least")
    parser.add_argument("--most", type=float, default=8.0, help="and at most")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--standbys", type=int, default=ServeConfig.standbys, help="from the start")
    options = parser.parse_args()
    config = ServeConfig(
        model=options.model, port=0, device="cpu", log_level="error", standbys=options.standbys
    )
    with Service(config) as service:
        kills, wrong = measure(service, options)
    kills.sort()
    pauses = [pause for pause, _, _ in kills]
    print(
        f"{options.kills} kills of the {options.victim}, {options.streams} streams,"
        f" {options.standbys} standbys from the start"
    )
    print(
        f"pause: median {statistics.median(pauses):.2f} s, p90 {percentile(pauses, 90):.2f} s,"
        f" p99 {percentile(pauses, 99):.2f} s, least {pauses[0]:.2f} s, most {pauses[-1]:.2f} s"
    )
    longest = (f"{pause:.2f} s of kill {number}, {calm:.1f} s later" for pause, number, calm in kills[:-4:-1])
    print(f"the longest: {'; '.join(longest)}")
    print(f"outputs that differ: {wrong}")


if __name__ == "__main__":
    main()
