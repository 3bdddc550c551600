"""What drafts gain and cost: a service with --speculate beside one without, in turns, as clients see them.

    python -m benchmarks.speculation                            # the demo model
    python -m benchmarks.speculation --model /data/models/M1 --texts random     # benchmarks/models.py
    python -m benchmarks.speculation --model "$(python -m scripts.real_model --path)" --texts edits,copies
    python -m benchmarks.speculation --model /data/models/M1 --texts greedy --streams 1 --pairs 1 --part 4

`repeats` continues a text that repeats itself, greedy: with the demo model, drafts are right. `random`
draws at temperature 1 from random tokens: with random weights, nothing is ever accepted by lookup. `greedy`
begins with random tokens too, and takes the most probable one. `edits`
asks for a change of a function of the standard library, and `copies` for the same function again: for a
model that follows instructions. Turns take eight functions one after the other, and these answers end where
the model ends them; others have as many tokens as are wanted. A turn is one round with drafts and one
without, of as many requests as there are streams; a ratio is the median over turns of tokens per second with
drafts over those without. The outputs of both are compared.

--pairs N drafts with a model of the first N layers, with --part 4 of a quarter of their widths, once for each
--noise, which says how often it is right (benchmarks/draft_pairs.py). Beside the ratio is then the one of
theory, (1 - a^(k+1)) / ((1 - a) (1 + k c)) of Leviathan et al., for drafts of k tokens, a draft model that
takes c of the target's time for a token, here its share of the weights, and tokens that are right with
probability a: the share of drafts of one token that is accepted, which a round before the others finds.
"""

import argparse
import asyncio
import inspect
import json
import random
import statistics
import tempfile
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.draft_pairs import write_pair
from pagewire import AsyncClient
from pagewire.checkpoints.paths import checkpoint_path
from pagewire.config import ServeConfig
from pagewire.local_service import Service
from pagewire.speculation import parse_speculation

REPEATED = "1, 2, 3, "
ASKED = {
    "edits": "Rename the first parameter of this Python function to `value`. Answer with the function only.",
    "copies": "Repeat this Python function word for word. Answer with the function only.",
}
FUNCTIONS = (
    textwrap.indent,
    textwrap.TextWrapper._split,
    statistics.mean,
    statistics.median_grouped,
    argparse.ArgumentParser.parse_args,
    random.Random.sample,
    random.Random.shuffle,
    json.dumps,
)
"""Whose sources are edited and copied."""


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
    if kind in ASKED:
        numbers = range(turn * streams, (turn + 1) * streams)
        sources = (inspect.getsource(FUNCTIONS[number % len(FUNCTIONS)]) for number in numbers)
        greedy = {"temperature": 0, "ignore_eos": False}
        return [
            ([{"role": "user", "content": f"{ASKED[kind]}\n\n{source}"}], greedy.copy()) for source in sources
        ]
    drawn = {"temperature": 0 if kind == "greedy" else 1}
    return [
        ([draw.randrange(16, vocab_size) for _ in range(32)], drawn | {"seed": draw.randrange(1 << 32)})
        for _ in range(streams)
    ]


async def run(client: AsyncClient, wanted: list[tuple[Any, dict[str, Any]]], tokens: int) -> Round:
    """Sends all requests at once and waits for their ends."""
    began = time.monotonic()
    results = await asyncio.gather(
        *(client.generate(prompt, max_tokens=tokens, **{"ignore_eos": True} | how) for prompt, how in wanted)
    )
    seconds = time.monotonic() - began
    outputs = [result.outputs[0].token_ids for result in results]
    return Round(
        sum(map(len, outputs)) / seconds,
        outputs,
        sum(result.usage.draft_tokens for result in results),
        sum(result.usage.accepted_draft_tokens for result in results),
    )


@dataclass(frozen=True)
class Theory:
    """What drafts of a model should gain."""

    length: int  # k, tokens of a draft
    cost: float  # c, of a drafted token, in tokens of the target

    def ratio(self, right: float) -> float:
        """Returns the speed beside that of the target alone, where each token is right with this
        probability."""
        return sum(right**position for position in range(self.length + 1)) / (1 + self.length * self.cost)


async def compare(addresses: tuple[str, str], options: argparse.Namespace, theory: Theory | None) -> None:
    """Prints the rows of two services. addresses: without drafts, and with them."""
    async with AsyncClient(addresses[0]) as plain, AsyncClient(addresses[1]) as drafting:
        vocab_size = (await plain.model()).vocab_size
        for kind in options.texts.split(","):
            for streams in map(int, options.streams.split(",")):
                expected = (
                    "" if theory is None else await foresee(drafting, kind, vocab_size, options, theory)
                )
                turns = []
                for turn in range(options.turns + 1):
                    wanted = requests(kind, streams, turn, vocab_size)
                    order = (plain, drafting) if turn % 2 else (drafting, plain)
                    rounds = {client: await run(client, wanted, options.tokens) for client in order}
                    assert rounds[plain].outputs == rounds[drafting].outputs, "drafts changed a token"
                    turns.append((rounds[plain], rounds[drafting]))
                print(describe(kind, streams, turns[1:], expected), flush=True)  # the first turn warms up


async def foresee(
    client: AsyncClient, kind: str, vocab_size: int, options: argparse.Namespace, theory: Theory
) -> str:
    """Returns how often a drafted token is right, and what theory makes of it: a cell of the table."""
    wanted = [(prompt, how | {"max_draft_tokens": 1}) for prompt, how in requests(kind, 4, -1, vocab_size)]
    rounds = [await run(client, [one], options.tokens) for one in wanted]
    right = sum(each.num_accepted for each in rounds) / max(1, sum(each.num_drafted for each in rounds))
    return f"{theory.ratio(right):.2f} at {right:.2f}"


def describe(kind: str, streams: int, turns: list[tuple[Round, Round]], expected: str) -> str:
    """Returns a row of the table. expected: by theory."""
    ratios = sorted(drafts.tokens_per_second / plain.tokens_per_second for plain, drafts in turns)
    speed = statistics.median(plain.tokens_per_second for plain, _ in turns)
    total = sum(len(output) for plain, _ in turns for output in plain.outputs)
    drafted = sum(drafts.num_drafted for _, drafts in turns)
    accepted = sum(drafts.num_accepted for _, drafts in turns)
    return (
        f"| {kind} | {streams} | {speed:,.0f} | {statistics.median(ratios):.2f} |"
        f" {ratios[0]:.2f}, {ratios[-1]:.2f} | {expected} | {drafted / total:.0%} | {accepted / total:.0%} |"
        f" {accepted / max(1, drafted):.0%} |"
    )


def measure(model: str, speculate: str, options: argparse.Namespace, theory: Theory | None = None) -> None:
    """Starts both services and prints their rows."""

    def config(method: str) -> ServeConfig:
        return ServeConfig(model=model, port=0, log_level="error", speculate=method)

    with Service(config("")) as plain, Service(config(speculate)) as drafting:
        asyncio.run(compare((plain.address, drafting.address), options, theory))


def measure_pairs(options: argparse.Namespace) -> None:
    """Measures a draft model of the first layers, for each noise."""
    checkpoint = checkpoint_path(options.model)
    for noise in map(float, options.noise.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            target, draft = write_pair(checkpoint, Path(folder), options.pairs, noise, options.part)
            sizes = [(path / "model.safetensors").stat().st_size for path in (draft, checkpoint)]
            theory = Theory(options.draft_tokens, sizes[0] / sizes[1])
            measure(str(target), f"draft:{draft},tokens={options.draft_tokens}", options, theory)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--speculate", default="lookup")
    parser.add_argument("--texts", default="repeats,random", help="repeats, random, greedy, edits, copies")
    parser.add_argument("--streams", default="1,8,32")
    parser.add_argument("--tokens", type=int, default=128, help="of each request")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--pairs", type=int, default=0, help="layers of a draft model; 0: --speculate drafts")
    parser.add_argument("--part", type=int, default=1, help="of --pairs: see benchmarks.draft_pairs")
    parser.add_argument("--noise", default="0.05,0.1,0.2", help="of --pairs")
    parser.add_argument("--draft-tokens", type=int, default=4, help="of --pairs")
    options = parser.parse_args()
    if parse_speculation(options.speculate) is None:
        parser.error("--speculate is empty")
    print("| text | streams | tokens/s off | ratio | lowest, highest | theory | drafted | accepted | right |")
    print("| --- | ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: |")
    if options.pairs:
        measure_pairs(options)
    else:
        measure(options.model, options.speculate, options)


if __name__ == "__main__":
    main()
