"""Draws models of random shapes, and holds them to transformers and to themselves.

    python -m tests.worker.fuzz --seconds 60 --seed 3             # models of seed 3, 4, ..
    python -m tests.worker.fuzz --seed 17 --models 1 --families llama --cpu-kernels avx2

Each model computes in float32 what transformers computes; then, in a dtype or a quantization drawn for it,
every request gets bit for bit what it gets alone: in a crowd, in chunks, preempted, swapped, with a prefix
cache, with drafts, resumed and with two threads. Prints what differs with the seed that finds it, and exits
with 1 when anything does.
"""

import argparse
import json
import logging
import random
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

import torch

from kernels.cpu.instruction_sets import select
from tests.checkpoints import make_checkpoint
from tests.worker.fuzz.checks import check_bits, check_parity
from tests.worker.fuzz.shapes import ALL, draw_shape


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=60.0, help="no model is begun after these")
    parser.add_argument("--models", type=int, default=1 << 30, help="at most")
    parser.add_argument("--seed", type=int, default=0, help="of the first model")
    parser.add_argument("--families", nargs="*", default=list(ALL))
    parser.add_argument("--cpu-kernels", default="auto", help="auto, none or an instruction set")
    arguments = parser.parse_args()
    select(arguments.cpu_kernels)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    end, counts = time.monotonic() + arguments.seconds, Counter[str]()
    for seed in range(arguments.seed, arguments.seed + arguments.models):
        if time.monotonic() > end:
            break
        try_model(seed, arguments.families, counts)
    print(", ".join(f"{count} {name}" for name, count in counts.items()))
    return int(counts["failed"] > 0)


def try_model(seed: int, families: list[str], counts: Counter[str]) -> None:
    """Draws one model and checks it."""
    draw = random.Random(seed)
    family = draw.choice(families)
    shape = draw_shape(family, draw)
    folder = Path(tempfile.mkdtemp(prefix="pagewire-fuzz-"))
    torch.set_num_threads(1)
    try:
        try:
            checkpoint = make_checkpoint(family, folder / "model", seed=seed, **shape)
        except Exception as error:
            counts["not made"] += 1
            print(f"{seed}: {family} {json.dumps(shape)}: transformers refuses: {str(error)[:200]}")
            return
        counts["models"] += 1
        found = []
        for check in (check_parity, check_bits):
            try:
                found += check(family, checkpoint, draw, counts)
            except Exception:
                found.append(traceback.format_exc())
        if found:
            counts["failed"] += 1
            print(f"{seed}: {family} {json.dumps(shape)}", *found, sep="\n    ", flush=True)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
