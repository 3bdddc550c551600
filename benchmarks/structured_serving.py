"""What a schema on all rows costs a service: W2 with one beside W2 without, in turns.

    python -m benchmarks.structured_serving                            # the demo model
    python -m benchmarks.structured_serving --model /data/models/M1    # benchmarks/models.py

W2 is 32 requests at once (pagewire/bench/workloads.py). The schema is a list of so many objects that no
answer ends before its tokens are made. A turn is one round with it and one without, at the same service;
the ratio is the median over turns of tokens per second with the schema over those without.
"""

import argparse
import asyncio
import statistics
import time
from typing import Any

from pagewire import AsyncClient
from pagewire.bench.workloads import WORKLOADS, Request
from pagewire.config import ServeConfig
from pagewire.local_service import Service

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


async def compare(address: str, options: argparse.Namespace) -> list[float]:
    """Prints the table; returns the ratios at the last temperature."""
    async with AsyncClient(address) as client:
        model = await client.model()
        print("| temperature | tokens/s without | ratio | lowest, highest |")
        print("| ---: | ---: | ---: | --- |")
        for temperature in map(float, options.temperatures.split(",")):
            turns = []
            for turn in range(options.turns + 1):
                requests = WORKLOAD.requests(turn, model.vocab_size, model.max_model_len)
                rounds = forms(max(request.output for request in requests))
                speeds = {}
                for name in sorted(rounds, reverse=turn % 2 == 1):
                    how = {**rounds[name], "temperature": temperature, "seed": turn}
                    speeds[name] = await run(client, requests, how)
                turns.append(speeds)
            turns = turns[1:]  # the first one warms up
            ratios = sorted(speeds["schema"] / speeds["plain"] for speeds in turns)
            speed = statistics.median(speeds["plain"] for speeds in turns)
            ratio = statistics.median(ratios)
            print(
                f"| {temperature:g} | {speed:,.0f} | {ratio:.2f} | {ratios[0]:.2f}, {ratios[-1]:.2f} |",
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
        asyncio.run(compare(service.address, options))


if __name__ == "__main__":
    main()
