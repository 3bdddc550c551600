"""A service under mixed load, kills, and connections that come and go: its memory and descriptors must stay.

    python -m benchmarks.faults.soak --minutes 60
    python -m benchmarks.faults.soak --minutes 10 --device cpu --model demo

In the first half of the time nothing is killed, so that every process can be judged; in the second half, a
random process but the supervisor and the first frontend every few seconds. A process that was seen for a
minute or more is judged by the growth of its resident set and of its descriptors over the second half of that
time. Every answer is compared with the first one to the same request. Exit code 1: something grows, differs,
or does not end.
"""

import argparse
import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter

from benchmarks.faults.soak.load import MixedLoad
from benchmarks.faults.soak.samples import LEAST_SECONDS, Sampler, table
from benchmarks.options import make_parser
from benchmarks.service.processes import by_role
from pagewire.config import ServeConfig
from pagewire.local_service import Service

SAMPLE_S = 2.0
WARM_UP_S = 20.0
"""Until the first sample: caches fill."""
END_S = 120.0
"""In which the last requests have to end."""


async def soak(service: Service, options: argparse.Namespace) -> bool:
    """Runs and prints; returns whether everything stayed."""
    load, half = MixedLoad(service.address, options.seed), 30.0 * options.minutes
    clients = asyncio.create_task(load.run(options.clients))
    await asyncio.sleep(min(WARM_UP_S, half))
    calm = await _watch(service, clients, half)
    kills: Counter[str] = Counter()
    killing = asyncio.create_task(_kill(service.pid, options, kills))
    under_kills = await _watch(service, clients, half)
    killing.cancel()
    await asyncio.wait([killing])
    load.stopping = True
    await asyncio.wait_for(clients, END_S)
    judged = [*calm.judged(), *under_kills.judged()]
    print(table(judged))
    print("requests:", _listed(load.done))
    print("errors:", _listed(load.refused))
    print(f"kills: {_listed(kills)}; answers that differ: {load.wrong}")
    return bool(judged) and not load.wrong and not any(each.grows for each in judged)


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())) or "none"


async def _watch(service: Service, clients: "asyncio.Task[None]", seconds: float) -> Sampler:
    """Samples for so long. Raises what a client raises."""
    sampler, end = Sampler(service.pid), time.monotonic() + seconds
    while time.monotonic() < end:
        if clients.done():
            clients.result()
        assert service.is_running, "the service has ended"
        sampler.look()
        await asyncio.sleep(SAMPLE_S)
    return sampler


async def _kill(supervisor: int, options: argparse.Namespace, kills: "Counter[str]") -> None:
    """Kills a random process but the supervisor and the first frontend, now and then, without end."""
    dice, spared = random.Random(options.seed), min(by_role(supervisor)["frontend"])
    while True:
        await asyncio.sleep(dice.uniform(0.5, 1.5) * options.every)
        with contextlib.suppress(OSError, ValueError, IndexError):  # a process ended while it was read
            roles = by_role(supervisor)
            role = dice.choice(sorted(roles))
            victims = [pid for pid in roles[role] if pid != spared]
            if victims:
                os.kill(dice.choice(victims), signal.SIGKILL)
                kills[role] += 1


def main() -> int:
    """Starts a service, runs, prints."""
    parser = make_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--device", choices=("simulated", "cpu"), default="simulated")
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--every", type=float, default=8.0, help="seconds between two kills")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if 30.0 * options.minutes <= LEAST_SECONDS:
        parser.error(
            f"--minutes: a half of them must be more than {LEAST_SECONDS:g} s, to judge a process by"
        )
    config = ServeConfig(
        model=options.model,
        device=options.device,
        frontends=2,
        port=0,
        log_level="error",
        worker_fault=("slow-factor=100",) if options.device == "simulated" else (),
    )
    with Service(config) as service:
        return 0 if asyncio.run(soak(service, options)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
