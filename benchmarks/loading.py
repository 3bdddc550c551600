"""How fast weights are loaded, and how much memory that takes beside them.

    python -m benchmarks.loading --gigabytes 8 --shards 16

Makes a Llama in bfloat16 whose shards are sparse files of zeros, so it needs no disk, and reads it as a
worker on a CPU does. Files come from memory: this is the speed of the loader, not of a disk. Memory is the
process's own (RssAnon); pages of files belong to the system, which takes them back when it needs them.
"""

import argparse
import json
import struct
import tempfile
import threading
import time
from pathlib import Path

import torch

from kernels.cpu.runtime.arena import Arena
from pagewire.internal.v1.worker_pb2 import Initialize
from worker.families.registry import read_model_config
from worker.models.registry import FAMILIES
from worker.parallel import Placement
from worker.startup.model import load_model
from worker.weights import loader
from worker.weights.loader import INDEX_FILE, weight_table

HIDDEN, INNER, VOCAB = 2048, 5632, 32_000
_LAYER_BYTES = 2 * (HIDDEN * HIDDEN * 5 // 2 + 3 * HIDDEN * INNER)
CPU = torch.device("cpu")


def make_checkpoint(folder: Path, gigabytes: float, shards: int) -> None:
    """Writes configuration, index and sparse shards."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "dtype": "bfloat16",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "num_hidden_layers": max(1, int(gigabytes * 1e9 / _LAYER_BYTES)),
        "vocab_size": VOCAB,
        "max_position_embeddings": 2048,
    }
    (folder / "config.json").write_text(json.dumps(config))
    loaded = read_model_config(folder)
    family = FAMILIES[loaded.architecture]
    table = weight_table(family.build(loaded, Placement(torch.bfloat16, torch.device("meta"))), family.names)
    shapes = sorted({weight.name: weight.shape for weight in table}.items())
    weight_map = {}
    for number in range(shards):
        name = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        part = shapes[len(shapes) * number // shards : len(shapes) * (number + 1) // shards]
        _write_sparse(folder / name, part)
        weight_map |= dict.fromkeys((tensor for tensor, _ in part), name)
    (folder / INDEX_FILE).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def _write_sparse(path: Path, tensors: list[tuple[str, tuple[int, ...]]]) -> None:
    """Writes a safetensors file whose data are a hole."""
    header, end = {}, 0
    for name, shape in tensors:
        begin, end = end, end + 2 * torch.Size(shape).numel()
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


class PeakMemory:
    """The largest RssAnon while this context lasts, in bytes, beside that at its start."""

    def __init__(self) -> None:
        self.most, self._start, self._done = 0, _anonymous(), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.01):
            self.most = max(self.most, _anonymous() - self._start)


def _anonymous() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) << 10


def main() -> None:
    """Prints a line for each number of tensors that are read at once."""
    parser = argparse.ArgumentParser(description="how fast weights are loaded")
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--readers", type=int, nargs="*", default=[1, loader.READERS])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        make_checkpoint(Path(name), options.gigabytes, options.shards)
        for loader.READERS in options.readers:
            print(f"{options.shards} shards, {loader.READERS} at once: {measure(Path(name))}")


def measure(folder: Path) -> str:
    """Loads the weights once."""
    command = Initialize(model_path=str(folder), dtype="bfloat16", load_format="auto")
    config = read_model_config(folder)
    with PeakMemory() as peak:
        begin = time.monotonic()
        model, _ = load_model(config, command, CPU, lambda *_: None, arena=Arena())
        seconds = time.monotonic() - begin
    held = sum(parameter.nbytes for parameter in model.parameters())
    size, most = held / 1e9, (peak.most - held) / 1e6
    return f"{size:.2f} GB in {seconds:.2f} s, {size / seconds:.2f} GB/s; at most {most:.0f} MB beside them"


if __name__ == "__main__":
    main()
