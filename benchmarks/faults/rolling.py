"""Restarts frontends under load and counts the calls that fail: behind nginx, and behind gRPC's round robin.

    python -m benchmarks.faults.rolling --rounds 100

Three frontends and a simulated engine on this machine, with the commands and the nginx configuration of
compose.yaml. A restart is SIGTERM, the end of the process, another one that is ready, and a second more. The
figures are in docs/operations.md.
"""

import argparse
import asyncio
import time

from tests.e2e import rolling
from tests.e2e.topology import NGINX, topology


def main() -> None:
    """Prints one line for each way to balance."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100, help="restarts for each way to balance")
    rounds = parser.parse_args().rounds
    for name, run in (("nginx", rolling.behind_nginx), ("round robin", rolling.round_robin)):
        with topology(**rolling.FLAGS, engine=rolling.ENGINE) as service:
            if name == "nginx":
                if NGINX is None:
                    print("nginx: is not installed")
                    continue
                service.start_balancer()
            start = time.monotonic()
            tally = asyncio.run(run(service, rounds))
            print(f"{name}: {tally} ({time.monotonic() - start:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
