"""What a schema on all rows costs a service: W2 with one beside W2 without, in turns.

    python -m benchmarks.structured_serving                            # the demo model
    python -m benchmarks.structured_serving --model /data/models/M1    # benchmarks/models.py

W2 is 32 requests at once (pagewire_bench.workloads). The schema is a list of so many objects that no
answer ends before its tokens are made. A turn is one round with it and one without, at the same service, the
one that comes first in turns; no two rounds have a prompt in common, which the second would find in the
prefix cache. The ratio is the median over turns of tokens per second with the schema over those without. The
last column is the same of tokens per second of processor time, of all processes of the service, which other
processes of the machine change less.
"""

import argparse
import asyncio
import statistics
import time
from typing import Any

from benchmarks.processes import by_role, processor_seconds
from pagewire import AsyncClient
from pagewire.config import ServeConfig
from pagewire.local_service import Service
from pagewire_bench.workloads import WORKLOADS, Request

WORKLOAD = WORKLOADS["batch"]
ITEM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "amount": {"type": "integer"},
        "kind": {"enum": ["goods", "service"]},
    },
    "required": ["name", "amount", "kind"],
    "additionalProperties": False,
}


def forms(longest: int) -> dict[str, dict[str, Any]]:
    """Returns what is beside the prompt, by the name of a round. longest: tokens of an answer."""
    schema = {"type": "array", "items": ITEM, "minItems": longest}
    return {"plain": {"ignore_eos": True}, "schema": {"schema": schema}}


async def run(client: AsyncClient, requests: list[Request], how: dict[str, Any]) -> float:
    """Sends all requests at once; returns tokens per second."""
    began = time.monotonic()
    results = await asyncio.gather(
        *(client.generate(request.prompt, max_tokens=request.output, **how) for request in requests)
    )
    seconds = time.monotonic() - began
    made = sum(len(result.outputs[0].token_ids) for result in results)
    assert made == sum(request.output for request in requests), "an answer ended early"
    return made / seconds


def processor_time(service: Service) -> float:
    """Returns seconds of processor time of all processes of a service."""
    return sum(processor_seconds(pid) for pids in by_role(service.pid).values() for pid in pids)


async def compare(service: Service, options: argparse.Namespace) -> list[float]:
    """Prints the table; returns the ratios at the last temperature."""
    async with AsyncClient(service.address) as client:
        model = await client.model()
        print("| temperature | tokens/s without | ratio | lowest, highest | of processor time |")
        print("| ---: | ---: | ---: | --- | ---: |")
        for temperature in map(float, options.temperatures.split(",")):
            turns, costs = [], []
            for turn in range(options.turns + 1):
                longest = max(output for *_, output in WORKLOAD.lengths(model.max_model_len))
                rounds = forms(longest)
                speeds, cost = {}, {}
                for place, name in enumerate(sorted(rounds, reverse=turn % 2 == 1)):
                    prompts = f"{temperature} {turn} {place}"
                    requests = WORKLOAD.requests(prompts, model.vocab_size, model.max_model_len)
                    how = {**rounds[name], "temperature": temperature, "seed": turn}
                    before = processor_time(service)
                    speeds[name] = await run(client, requests, how)
                    cost[name] = processor_time(service) - before
                turns.append(speeds)
                costs.append(cost["plain"] / cost["schema"])
            turns, costs = turns[1:], costs[1:]  # the first one warms up
            ratios = sorted(speeds["schema"] / speeds["plain"] for speeds in turns)
            speed = statistics.median(speeds["plain"] for speeds in turns)
            ratio = statistics.median(ratios)
            print(
                f"| {temperature:g} | {speed:,.0f} | {ratio:.2f} | {ratios[0]:.2f}, {ratios[-1]:.2f} "
                f"| {statistics.median(costs):.2f} |",
                flush=True,
            )
    return ratios


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--temperatures", default="0,1")
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    with Service(ServeConfig(model=options.model, port=0, log_level="error")) as service:
        asyncio.run(compare(service, options))


if __name__ == "__main__":
    main()
