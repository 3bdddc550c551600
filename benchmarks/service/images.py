"""The first token of a prompt with an image, the longest gap of running streams beside images, and many
streams with images.

    python -m benchmarks.service.images                    # a small model of random weights: half a minute
    python -m benchmarks.steps.encoder --make FOLDER
    python -m benchmarks.service.images FOLDER --rounds 5

Eight streams of text run. Then --images prompts arrive at once, each with an image of its own of
--megapixels, and, in turns with them, as many prompts of text of as many tokens. A gap is the time between
two messages of one stream. Lines have the longest gap alone, beside images and beside text, in milliseconds,
of each round; the next ones have the medians, and of the ratio of the latter two, and the time until the
first token of one prompt with an image of a megapixel. The last line has --streams prompts at once, each with
an image of a megapixel and an answer of 32 tokens.
"""

import asyncio
import io
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image as Pillow

from benchmarks.options import make_parser
from benchmarks.service.adapter_load import arrivals, gaps_between
from benchmarks.steps.encoder import SMALL, make
from pagewire import AsyncClient, Image, SamplingParams
from pagewire.config import ServeConfig
from pagewire.local_service import Service

STREAMS = 8
ONE = SamplingParams(temperature=0, max_tokens=1)
SHORT = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True)


def file_of(megapixels: float, number: int) -> bytes:
    """Returns a JPEG of smooth noise, three fourths as high as wide."""
    width = round((megapixels * 1e6 * 4 / 3) ** 0.5)
    coarse = np.random.default_rng(number).integers(0, 256, (48, 64, 3), dtype=np.uint8)
    file = io.BytesIO()
    Pillow.fromarray(coarse).resize((width, width * 3 // 4), Pillow.Resampling.BICUBIC).save(file, "JPEG")
    return file.getvalue()


def conversation(file: bytes) -> list[dict[str, Any]]:
    """A question about an image."""
    return [{"role": "user", "content": [Image(file), "What is this?"]}]


async def seconds_of(client: AsyncClient, prompts: list[Any], params: SamplingParams) -> float:
    """Returns what it takes until all prompts, which are sent at once, have their answers."""
    began = time.perf_counter()
    await asyncio.gather(*(client.generate(prompt, params) for prompt in prompts))
    return time.perf_counter() - began


async def longest_gap(client: AsyncClient, prompts: list[Any], tokens: int) -> tuple[float, float]:
    """Returns the longest gap of streams that run alone, and while prompts are answered by one token."""
    running = [asyncio.create_task(arrivals(client, number, tokens)) for number in range(STREAMS)]
    await asyncio.sleep(1)
    quiet_from = time.perf_counter()
    await asyncio.sleep(1)
    began = time.perf_counter()
    await asyncio.gather(*(client.generate(prompt, ONE) for prompt in prompts))
    ended = time.perf_counter()
    times = await asyncio.gather(*running)
    if min(each[-1] for each in times) < ended:
        raise SystemExit("the streams ended before the prompts did: more --tokens are needed")
    return max(gaps_between(times, quiet_from, began)), max(gaps_between(times, began, ended))


async def measure(address: str, options: Any) -> None:
    """Prints the figures of all rounds."""
    alone, beside_images, beside_text, firsts = list[float](), list[float](), list[float](), list[float]()
    async with AsyncClient(address) as client:
        for number in range(options.rounds):
            files = [file_of(options.megapixels, 1000 * number + n) for n in range(options.images + 1)]
            firsts.append(await seconds_of(client, [conversation(file_of(1.0, 1000 * number + 900))], ONE))
            answer = await client.generate(conversation(files.pop()), ONE)
            length = answer.usage.prompt_tokens
            images = [conversation(file) for file in files]
            draw = np.random.default_rng(number)
            texts = [draw.integers(10, 300, length).tolist() for _ in files]
            quiet, seeing = await longest_gap(client, images, options.tokens)
            _, reading = await longest_gap(client, texts, options.tokens)
            alone.append(quiet)
            beside_images.append(seeing)
            beside_text.append(reading)
            print(f"{length} tokens: alone {quiet:.0f}, images {seeing:.0f}, text {reading:.0f}", flush=True)
        ratios = [one / other for one, other in zip(beside_images, beside_text, strict=True)]
        print(
            f"longest gap, medians: alone {statistics.median(alone):.0f} ms, beside images "
            f"{statistics.median(beside_images):.0f}, beside text {statistics.median(beside_text):.0f}, "
            f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f}..{max(ratios):.2f})"
        )
        print(f"first token of a prompt with an image of 1 MP: {1000 * statistics.median(firsts):.0f} ms")
        asked = [conversation(file_of(1.0, 10**6 + number)) for number in range(options.streams)]
        seconds = await seconds_of(client, asked, SHORT)
    rates = f"{len(asked) / seconds:.2f} images/s, {SHORT.max_tokens * len(asked) / seconds:.0f} tokens/s"
    print(f"{len(asked)} streams with an image each: {rates}")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--megapixels", type=float, default=4.0)
    parser.add_argument("--images", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=3000, help="of each stream of text, at most")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, default=16, help="with an image each, at the end")
    parser.add_argument("--max-num-encoder-tokens", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.model is None:
            options.model = Path(folder)
            make(options.model, SMALL)
        serve(options)


def serve(options: Any) -> None:
    """Starts a service, and measures."""
    config = ServeConfig(
        model=str(options.model),
        port=0,
        max_num_seqs=STREAMS + max(options.images, options.streams),
        max_num_encoder_tokens=options.max_num_encoder_tokens,
        log_level="error",
    )
    with Service(config) as service:
        asyncio.run(measure(service.address, options))


if __name__ == "__main__":
    main()
