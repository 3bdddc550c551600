"""How fast weights are loaded, and how much memory that takes beside them.

    python -m benchmarks.loading --gigabytes 8 --shards 16
    python -m benchmarks.loading --gigabytes 6 --shards 16 --format mxfp4

Makes a Llama in bfloat16, or a gpt-oss with experts in MXFP4, whose shards are sparse files of zeros.
Reads and packs it as a worker on a CPU does. Files come from memory: this is the speed of the loader, not of
a disk. Memory is the process's own (RssAnon); pages of files belong to the system, which takes them back when
it needs them.
"""

import argparse
import json
import math
import struct
import tempfile
import threading
import time
from pathlib import Path

from worker.cpu.threads import prepare_threads

prepare_threads()  # before torch is imported

import torch  # noqa: E402

from pagewire.internal.v1.worker_pb2 import Initialize  # noqa: E402
from worker.cpu.kernel_selection import use_cpu_kernels  # noqa: E402
from worker.cpu.weights import load_cpu_weights  # noqa: E402
from worker.families.registry import read_model_config  # noqa: E402
from worker.models.registry import FAMILIES  # noqa: E402
from worker.parallel import Placement  # noqa: E402
from worker.startup.model import model_bytes  # noqa: E402
from worker.weights import loader  # noqa: E402
from worker.weights.checkpoint import INDEX_FILE  # noqa: E402
from worker.weights.weight_table import weight_table  # noqa: E402

VOCAB = 32_000
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "dtype": "bfloat16",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": VOCAB,
    "max_position_embeddings": 2048,
}
GPT_OSS = {
    "architectures": ["GptOssForCausalLM"],
    "dtype": "bfloat16",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "vocab_size": VOCAB,
    "rope_parameters": {"rope_type": "default", "rope_theta": 150000.0},
    "quantization_config": {"quant_method": "mxfp4"},
}
FORMATS = {"bfloat16": LLAMA, "mxfp4": GPT_OSS}
BLOCK = 32
"""Values of MXFP4 with one exponent."""
CPU = torch.device("cpu")
Stored = list[tuple[str, str, tuple[int, ...]]]
"""Name, type as safetensors calls it, and shape of each tensor."""


def make_checkpoint(folder: Path, kind: str, gigabytes: float, shards: int) -> None:
    """Writes configuration, index and sparse shards of about so many bytes. kind: of FORMATS."""
    one, two = (sum(map(_bytes_of, _tensors(folder, kind, layers))) for layers in (1, 2))
    layers = max(1, int((gigabytes * 1e9 - one) / (two - one)) + 1)
    tensors = sorted(_tensors(folder, kind, layers))
    weight_map = {}
    for number in range(shards):
        name = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        part = tensors[len(tensors) * number // shards : len(tensors) * (number + 1) // shards]
        _write_sparse(folder / name, part)
        weight_map |= dict.fromkeys((tensor for tensor, _, _ in part), name)
    (folder / INDEX_FILE).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def _tensors(folder: Path, kind: str, layers: int) -> Stored:
    """Writes the configuration. Returns the tensors of a model with so many layers."""
    config = FORMATS[kind] | {"num_hidden_layers": layers}
    (folder / "config.json").write_text(json.dumps(config))
    loaded = read_model_config(folder)
    family = FAMILIES[loaded.architecture]
    model = family.build(loaded, Placement(torch.bfloat16, torch.device("meta")))
    table = weight_table(model, family.names)
    stored: Stored = []
    for name, shape in {weight.name: weight.shape for weight in table}.items():
        if kind == "mxfp4" and len(shape) == 3:
            experts, inputs, outputs = shape
            groups = experts, outputs, inputs // BLOCK
            stored += [(f"{name}_blocks", "U8", (*groups, BLOCK // 2)), (f"{name}_scales", "U8", groups)]
        else:
            stored.append((name, "BF16", shape))
    return stored


def _bytes_of(tensor: tuple[str, str, tuple[int, ...]]) -> int:
    _, kind, shape = tensor
    return math.prod(shape) * (2 if kind == "BF16" else 1)


def _write_sparse(path: Path, tensors: Stored) -> None:
    """Writes a safetensors file whose data are a hole."""
    header, end = {}, 0
    for tensor in tensors:
        name, kind, shape = tensor
        begin, end = end, end + _bytes_of(tensor)
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [begin, end]}
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


def measure(folder: Path, quantization: str) -> str:
    """Loads the weights once, and packs them for the kernels."""
    path = str(folder)
    command = Initialize(model_path=path, dtype="bfloat16", load_format="auto", quantization=quantization)
    config = read_model_config(folder)
    with PeakMemory() as peak:
        begin = time.monotonic()
        weights = load_cpu_weights(command, config, lambda *_: None, None)
        seconds, model = time.monotonic() - begin, weights.model
        size, read = model_bytes(model), peak.most
        of_kernels = model.attention_heads(), weights.arena, lambda *_: None, False, quantization
        use_cpu_kernels(model, weights.dtype, CPU, 16, *of_kernels)
        total = time.monotonic() - begin
    held = model_bytes(model)
    return (
        f"{size / 1e9:.2f} GB in {seconds:.2f} s, {size / seconds / 1e9:.2f} GB/s, at most"
        f" {(read - size) / 1e6:.0f} MB beside them; packed after {total:.2f} s, {held / 1e9:.2f} GB,"
        f" at most {peak.most / 1e9:.2f} GB in all"
    )


def main() -> None:
    """Prints a line for each number of tensors that are read at once."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gigabytes", type=float, default=4.0, help="of the files; default: %(default)s")
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--format", choices=FORMATS, default="bfloat16")
    parser.add_argument("--quantization", default="", help="as of pagewire serve")
    parser.add_argument("--readers", type=int, nargs="*", default=[loader.READERS])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        make_checkpoint(Path(name), options.format, options.gigabytes, options.shards)
        for loader.READERS in options.readers:
            result = measure(Path(name), options.quantization)
            print(f"{options.shards} shards, {loader.READERS} at once: {result}")


if __name__ == "__main__":
    main()
