"""What drafts gain and cost: a service with --speculate beside one without, in turns, as clients see them.

    python -m benchmarks.speculation                            # the demo model
    python -m benchmarks.speculation --model /data/models/M1 --texts random     # benchmarks/models.py

`repeats` continues a text that repeats itself, greedy: with the demo model, drafts are right. `random` draws
at temperature 1 from random tokens: with random weights, nothing is ever accepted. A turn is one round with
drafts and one without, of as many requests as there are streams; a ratio is the median over turns of tokens
per second with drafts over those without. The outputs of both are compared.
"""

import argparse
import asyncio
import random
import statistics
import time
from dataclasses import dataclass
from typing import Any

from pagewire import AsyncClient
from pagewire.config import ServeConfig
from pagewire.local_service import Service
from pagewire.speculation import parse_speculation

REPEATED = "1, 2, 3, "


@dataclass(frozen=True)
class Round:
    """Requests that were sent at once."""

    tokens_per_second: float
    outputs: list[list[int]]
    num_drafted: int
    num_accepted: int


def requests(kind: str, streams: int, turn: int, vocab_size: int) -> list[tuple[Any, dict[str, Any]]]:
    """Prompts and sampling of one turn; every turn has other ones, both services the same."""
    draw = random.Random(f"{kind} {streams} {turn}")
    if kind == "repeats":
        greedy = {"temperature": 0}
        return [(REPEATED * draw.randint(8, 16), greedy) for _ in range(streams)]
    return [
        (
            [draw.randrange(16, vocab_size) for _ in range(32)],
            {"temperature": 1, "seed": draw.randrange(1 << 32)},
        )
        for _ in range(streams)
    ]


async def run(client: AsyncClient, wanted: list[tuple[Any, dict[str, Any]]], tokens: int) -> Round:
    """Sends all requests at once and waits for their ends."""
    began = time.monotonic()
    results = await asyncio.gather(
        *(client.generate(prompt, max_tokens=tokens, ignore_eos=True, **how) for prompt, how in wanted)
    )
    seconds = time.monotonic() - began
    return Round(
        len(wanted) * tokens / seconds,
        [result.outputs[0].token_ids for result in results],
        sum(result.usage.draft_tokens for result in results),
        sum(result.usage.accepted_draft_tokens for result in results),
    )


async def compare(addresses: tuple[str, str], options: argparse.Namespace) -> None:
    """Prints the table. addresses: without drafts, and with them."""
    async with AsyncClient(addresses[0]) as plain, AsyncClient(addresses[1]) as drafting:
        vocab_size = (await plain.model()).vocab_size
        print("| text | streams | tokens/s without | ratio | lowest, highest | drafted | accepted |")
        print("| --- | ---: | ---: | ---: | --- | ---: | ---: |")
        for kind in options.texts.split(","):
            for streams in map(int, options.streams.split(",")):
                turns = []
                for turn in range(options.turns + 1):
                    wanted = requests(kind, streams, turn, vocab_size)
                    order = (plain, drafting) if turn % 2 else (drafting, plain)
                    rounds = {client: await run(client, wanted, options.tokens) for client in order}
                    assert rounds[plain].outputs == rounds[drafting].outputs, "drafts changed a token"
                    turns.append((rounds[plain], rounds[drafting]))
                print(describe(kind, streams, turns[1:]), flush=True)  # the first turn warms up


def describe(kind: str, streams: int, turns: list[tuple[Round, Round]]) -> str:
    """Returns a row of the table."""
    ratios = sorted(drafts.tokens_per_second / plain.tokens_per_second for plain, drafts in turns)
    speed = statistics.median(plain.tokens_per_second for plain, _ in turns)
    total = sum(len(output) for plain, _ in turns for output in plain.outputs)
    drafted = sum(drafts.num_drafted for _, drafts in turns) / total
    accepted = sum(drafts.num_accepted for _, drafts in turns) / total
    return (
        f"| {kind} | {streams} | {speed:,.0f} | {statistics.median(ratios):.2f} |"
        f" {ratios[0]:.2f}, {ratios[-1]:.2f} | {drafted:.0%} | {accepted:.0%} |"
    )


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--speculate", default="lookup")
    parser.add_argument("--texts", default="repeats,random")
    parser.add_argument("--streams", default="1,8,32")
    parser.add_argument("--tokens", type=int, default=128, help="of each request")
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args()
    if parse_speculation(options.speculate) is None:
        parser.error("--speculate is empty")

    def config(speculate: str) -> ServeConfig:
        return ServeConfig(model=options.model, port=0, log_level="error", speculate=speculate)

    with Service(config("")) as plain, Service(config(options.speculate)) as drafting:
        asyncio.run(compare((plain.address, drafting.address), options))


if __name__ == "__main__":
    main()
