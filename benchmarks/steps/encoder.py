"""Images that a worker encodes per second, beside transformers in a process of its own, in turns.

    python -m benchmarks.steps.encoder MODEL --threads 2 --dtype float32 --rounds 7
    python -m benchmarks.steps.encoder --make FOLDER       # the shape of SmolVLM-256M, with random weights
    python -m benchmarks.steps.encoder MODEL --step        # what a step encodes, beside one of text

MODEL is a folder with an encoder of images of one size. Each round encodes --images random images, one after
the other, here and there. A line has the median of both rates, and the median of the ratios of each round
with the least and the greatest. Vectors of both are compared. With --step, a line has the processor time of
the images that a step of 2048 tokens encodes, over that of such a step of text: eight prompts of 256 tokens.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.steps.cpu_worker import BLOCK_SIZE, load_model, model_options, random_rows
from benchmarks.steps.plans import plan, removal

Encode = Callable[[Any], Any]
"""[height, width, 3] uint8 -> [n, E], tensors."""

STEP_TOKENS, STEP_ROWS = 2048, 8
SMOLVLM_256M: dict[str, dict[str, Any]] = {
    "vision": {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "image_size": 512,
        "patch_size": 16,
        "initializer_range": 0.02,
    },
    "text": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8192,
        "initializer_range": 0.02,
    },
}
SMALL: dict[str, dict[str, Any]] = {
    "vision": SMOLVLM_256M["vision"]
    | {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 4}
    | {"image_size": 256},
    "text": SMOLVLM_256M["text"]
    | {"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 6, "num_attention_heads": 3}
    | {"num_key_value_heads": 1},
}
"""As SmolVLM-256M, of a fiftieth of the work."""


def make(folder: Path, sizes: dict[str, dict[str, Any]] = SMOLVLM_256M) -> None:
    """Writes a model of the shape of SmolVLM-256M: tiles of 512 x 512 pixels, 64 vectors each. sizes: or of
    others, with a vector for 16 patches, too."""
    from tests.vision_models import make_vision_model

    side = sizes["vision"]["image_size"]
    images = {"size": {"longest_edge": 4 * side}, "max_image_size": {"longest_edge": side}}
    processor = {"image_seq_len": (side // sizes["vision"]["patch_size"]) ** 2 // 16}
    make_vision_model(folder, "smolvlm", images=images, processor=processor, **sizes, scale_factor=4)


def image_of(side: int, number: int) -> Any:
    """Returns a random image, a tensor [side, side, 3] uint8."""
    import torch

    found = np.random.default_rng(number).integers(0, 256, (side, side, 3), dtype=np.uint8)
    return torch.from_numpy(found)


def rate_of(encode: Encode, images: list[Any]) -> float:
    """Returns images per second."""
    began = time.perf_counter()
    for image in images:
        encode(image)
    return len(images) / (time.perf_counter() - began)


def transformers_encoder(folder: str, dtype: str, threads: int) -> Encode:
    """Returns the encoder of transformers, of one image."""
    import torch
    from transformers import AutoModelForImageTextToText

    from worker.families.image_processors import pixel_fields, read_pixels
    from worker.vision.pixels import normalized, pixel_table

    torch.set_num_threads(threads)
    model: Any = AutoModelForImageTextToText.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    table = pixel_table(read_pixels(pixel_fields(Path(folder))))
    is_nested = model.config.model_type in ("idefics3", "smolvlm")

    @torch.inference_mode()
    def encode(image: torch.Tensor) -> torch.Tensor:
        pixels = normalized(image, table).permute(2, 0, 1)[None].to(model.dtype)
        made = model.model.get_image_features(pixel_values=pixels[None] if is_nested else pixels)
        return torch.cat([each.reshape(-1, each.shape[-1]) for each in made.pooler_output])

    return encode


def answer(folder: str, dtype: str, threads: int, side: int, count: int) -> None:
    """The peer's process: prints the rate of a round for each line that it reads; first the sum of the
    magnitudes of an image's vectors."""
    encode, images = transformers_encoder(folder, dtype, threads), [image_of(side, n) for n in range(count)]
    print(float(encode(images[0]).float().abs().sum()), flush=True)
    for _ in sys.stdin:
        print(rate_of(encode, images), flush=True)


def compare_steps(options: Any) -> None:
    """Prints what a step encodes by default, beside a step of text, in seconds of processor time."""
    import torch

    runner, ready = load_model(options, STEP_ROWS, 2 * STEP_TOKENS // BLOCK_SIZE, STEP_TOKENS)
    vision, count = runner.backend.model.vision, STEP_TOKENS // STEP_ROWS
    assert vision is not None
    side = vision.config.tower.image_size
    vectors = vision.config.num_vectors(side, side)
    images = [image_of(side, number) for number in range(max(1, vectors_of_step(ready) // vectors))]
    rows = random_rows(ready.model.vocab_size, STEP_ROWS, count, count + 1)
    encoding, text = list[float](), list[float]()
    for _ in range(options.rounds + 1):  # the first one is not counted
        began = time.process_time()
        with torch.inference_mode():
            for image in images:
                vision.forward(image)
        encoding.append(time.process_time() - began)
        began = time.process_time()
        runner.execute(plan(range(STEP_ROWS), 0, count, rows))
        text.append(time.process_time() - began)
        runner.execute(removal(range(STEP_ROWS)))
    ratios = [one / other for one, other in zip(encoding[1:], text[1:], strict=True)]
    print(
        f"{len(images)} images of {vectors} vectors: {statistics.median(encoding[1:]):.3f} s; "
        f"a step of {STEP_TOKENS} tokens: {statistics.median(text[1:]):.3f} s; "
        f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f}..{max(ratios):.2f})"
    )


def vectors_of_step(ready: Any) -> int:
    """Returns how many vectors a step encodes by default (--max-num-encoder-tokens)."""
    return max(1, STEP_TOKENS // 2 // max(1, ready.tokens_per_vector))


def main() -> None:
    parser = model_options(__doc__)
    parser.add_argument("--make", type=Path, metavar="FOLDER")
    parser.add_argument("--images", type=int, default=3, help="of a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--step", action="store_true", help="compare steps")
    parser.add_argument("--peer", type=int, metavar="SIDE", help="(for the process of the peer)")
    options = parser.parse_args()
    if options.make is not None:
        make(options.make)
        return
    dtype, threads = "float32" if options.dtype == "auto" else options.dtype, options.threads or 2
    if options.peer is not None:
        answer(options.model, dtype, threads, options.peer, options.images)
        return
    options.dtype, options.threads = dtype, threads
    if options.step:
        compare_steps(options)
        return
    runner, _ = load_model(options, 1, 8, 64)
    vision = runner.backend.model.vision
    if vision is None or vision.config.tower.any_size:
        raise SystemExit("the model has no encoder of images of one size")
    side = vision.config.tower.image_size
    import torch

    encode = torch.inference_mode()(vision.forward)
    images = [image_of(side, number) for number in range(options.images)]
    words = {"images": options.images, "threads": threads, "dtype": dtype, "peer": side}
    command = [sys.executable, "-m", "benchmarks.steps.encoder", options.model]
    command += [f"--{name}={value}" for name, value in words.items()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peer:
        assert peer.stdin is not None and peer.stdout is not None
        theirs, ours = float(peer.stdout.readline()), float(encode(images[0]).float().abs().sum())
        if abs(theirs - ours) > 0.01 * theirs:
            raise SystemExit(f"the vectors differ: their magnitudes add up to {ours:.1f} and {theirs:.1f}")
        pairs = []
        for _ in range(options.rounds + 1):  # the first one is not counted
            rate = rate_of(encode, images)
            peer.stdin.write("\n")
            peer.stdin.flush()
            pairs.append((rate, float(peer.stdout.readline())))
        peer.stdin.close()
    ratios = [one / other for one, other in pairs[1:]]
    print(
        f"{side} x {side} pixels, {dtype}, {threads} threads, images/s: "
        f"pagewire {statistics.median(rate for rate, _ in pairs[1:]):.3f}, "
        f"transformers {statistics.median(rate for _, rate in pairs[1:]):.3f}, "
        f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f}..{max(ratios):.2f})"
    )


if __name__ == "__main__":
    main()
