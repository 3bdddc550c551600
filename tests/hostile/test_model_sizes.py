"""A configuration whose sizes no machine holds: refused by its field, before anything is made of it.

One process loads all of them, with little memory beyond what sound checkpoints take.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from pagewire.config import WorkerConfig
from pagewire.errors import StartupError
from pagewire.internal.v1 import worker_pb2
from tests.checkpoints import make_checkpoint
from tests.gguf_files import write_gguf
from tests.hostile.test_checkpoints import ROOT, SECONDS
from tests.worker.weights.formats import quantizers
from worker.config.hf_config import MAX_SIZE
from worker.cpu.weights import OwnBits
from worker.families.registry import read_model_config
from worker.load import load
from worker.platforms.cpu import CpuPlatform
from worker.startup.model import load_model

MEMORY = 200 << 20
"""Bytes that a refusal may take beyond what a sound checkpoint of its kind takes."""
HUGE = (4096, 10**6, 10**9, 10**12)
"""The first two are sizes that some field of some model has."""
SHAPE = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "head_dim": 16}
LOADS = """
import json, resource, sys
from pathlib import Path
from pagewire.errors import StartupError
from tests.hostile.test_checkpoints import SECONDS, load

def peak(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))

sound, broken = json.load(sys.stdin)
for folder in sound:
    load(Path(folder))
before = peak("VmRSS")
resource.setrlimit(resource.RLIMIT_AS, (peak("VmSize") + int(sys.argv[1]),) * 2)
for folder in broken:
    resource.setrlimit(resource.RLIMIT_CPU, (int(resource.getrusage(0).ru_utime) + SECONDS, -1))
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    try:
        load(Path(folder))
        line = "it was loaded"
    except StartupError as error:
        line = str(error)
    print(json.dumps([line, peak("VmHWM") - before]), flush=True)
"""


def refusals(sound: Sequence[Path], broken: Sequence[Path]) -> list[str]:
    """Returns the line of each. Fails where one takes memory."""
    command = [sys.executable, "-c", LOADS, str(2 * MEMORY)]
    paths = json.dumps([list(map(str, sound)), list(map(str, broken))])
    done = subprocess.run(
        command, cwd=ROOT, input=paths, capture_output=True, text=True, timeout=10 * SECONDS
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answers = [json.loads(answer) for answer in done.stdout.splitlines()]
    for path, (line, taken) in zip(broken, answers, strict=True):
        assert taken < MEMORY, (path, line, taken)
    return [line for line, _ in answers]


def with_config(sound: Path, folder: Path, **changes: Any) -> Path:
    """Links the files of a checkpoint, but for config.json, some of whose fields are others."""
    folder.mkdir()
    for path in sound.iterdir():
        if path.name != "config.json":
            (folder / path.name).hardlink_to(path)
    values = json.loads((sound / "config.json").read_text())
    inner = values.get("text_config", values)
    inner |= {name: value for name, value in changes.items() if value is not None}
    for name in (name for name, value in changes.items() if value is None):
        inner.pop(name, None)
    (folder / "config.json").write_text(json.dumps(values))
    return folder


LLAMA = ("hidden_size", "vocab_size", "intermediate_size", "num_attention_heads", "head_dim")
FIELDS: dict[str, tuple[str, ...]] = {
    "llama": (*LLAMA, "num_hidden_layers"),
    "deepseek_v3": (
        *("kv_lora_rank", "q_lora_rank", "v_head_dim", "n_routed_experts", "n_shared_experts"),
        *("moe_intermediate_size", "hidden_size", "num_hidden_layers"),
    ),
    "qwen3_next": (
        *("linear_key_head_dim", "linear_value_head_dim", "linear_num_key_heads", "num_experts"),
        *("moe_intermediate_size", "shared_expert_intermediate_size", "linear_num_value_heads"),
    ),
    "falcon_h1": ("mamba_d_ssm", "mamba_d_state", "mamba_n_heads", "mamba_d_conv", "intermediate_size"),
    "bamba": ("mamba_expand", "mamba_n_groups", "hidden_size"),
    "gemma4": ("hidden_size_per_layer_input", "vocab_size_per_layer_input", "num_key_value_heads"),
    "llama4": ("num_local_experts", "intermediate_size", "intermediate_size_mlp", "vocab_size"),
    "gpt_oss": ("num_local_experts", "intermediate_size", "num_attention_heads"),
    "gpt2": ("n_embd", "n_positions", "n_head", "n_layer", "n_inner", "vocab_size"),
    "opt": ("hidden_size", "ffn_dim", "word_embed_proj_dim", "max_position_embeddings", "num_hidden_layers"),
}
OTHERS = {
    "mamba_d_ssm": "mamba_d_head",
    "mamba_n_heads": "mamba_d_head",
    "mamba_expand": "mamba_d_head",
    "hidden_size": "mamba_d_head",
}
"""Fields that follow from others: without them, these are what is wrong."""
FORMATS: dict[str, tuple[quantizers.Quantizer, dict[str, object]]] = {
    "GPTQ": (quantizers.gptq(4, 1, False), {"quant_method": "gptq", "bits": 4, "group_size": 32}),
    "AWQ": (quantizers.awq, {"quant_method": "awq", "bits": 4, "group_size": 32}),
    "FP8": (quantizers.fp8("channel"), {"quant_method": "fp8"}),
    "bitsandbytes": (quantizers.bitsandbytes_4(True), {"quant_method": "bitsandbytes"}),
}
GGUF = {
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention__head_count": "num_attention_heads",
    "attention__key_length": "head size",
    "block_count": "num_hidden_layers",
}
TOGETHER: dict[str, dict[str, int]] = {
    "far more weights than the checkpoint has": {"intermediate_size": 320, "num_hidden_layers": 30}
    | {"moe_intermediate_size": 320, "num_local_experts": 320},
    "head_dim is 320, but 320 times that": dict.fromkeys(
        ("num_attention_heads", "num_key_value_heads", "head_dim"), 320
    ),
}
Lines = dict[tuple[str, str, int], str]


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Lines:
    """What is said of each broken checkpoint: by family or format, field, and value."""
    folder = tmp_path_factory.mktemp("sizes")
    sound = {family: make_checkpoint(family, folder / family) for family in (*FIELDS, "qwen3_moe")}
    small = make_checkpoint("llama", folder / "small", **SHAPE)
    for name, (quantizer, config) in FORMATS.items():
        sound[name] = folder / name
        quantizers.quantize_checkpoint(small, sound[name], quantizer, config)
    sound["GGUF"] = write_gguf(small, folder / "sound.gguf")
    broken: dict[tuple[str, str, int], Path] = {}
    fields = FIELDS | dict.fromkeys(FORMATS, LLAMA)
    for kind, field, value in ((each, name, v) for each in fields for name in fields[each] for v in HUGE):
        changes = {field: value, **({OTHERS[field]: None} if field in OTHERS else {})}
        broken[kind, field, value] = with_config(sound[kind], folder / f"{kind} {field} {value}", **changes)
    for key, value in ((key, v) for key in GGUF for v in (4096, 10**6, 10**9, 2**32 - 1)):
        path = folder / f"{key}{value}.gguf"
        broken["GGUF", key, value] = write_gguf(small, path, **{f"llama__{key}": value})
    for line, changes in TOGETHER.items():
        broken["together", line, 0] = with_config(sound["qwen3_moe"], folder / line[:8], **changes)
    said = refusals(list(sound.values()), list(broken.values()))
    return dict(zip(broken, said, strict=True))


@pytest.mark.parametrize(
    ("family", "field"), [(family, each) for family in FIELDS for each in FIELDS[family]]
)
def test_sizes_of_every_kind_of_layer(lines: Lines, family: str, field: str) -> None:
    for value in HUGE:
        line = lines[family, field, value]
        assert "config.json: " in line and str(value) in line, line


@pytest.mark.parametrize("name", FORMATS)
def test_sizes_in_every_format(lines: Lines, name: str) -> None:
    """What a file has is said of the weights, not of what they are packed in."""
    for field in LLAMA:
        line = lines[name, field, 4096]
        assert line.endswith("a tensor: lm_head.weight in model.safetensors has 320"), line
        assert f"config.json: {field} is 4096, but " in line or "16, but 4096 times that" in line, line


@pytest.mark.parametrize("key", GGUF)
def test_sizes_of_gguf_files(lines: Lines, key: str) -> None:
    for value in (4096, 10**6, 10**9, 2**32 - 1):
        line = lines["GGUF", key, value]
        assert f"{key}{value}.gguf: " in line and str(value) in line.partition(".gguf")[2], line
    assert GGUF[key] in lines["GGUF", key, 10**9]


@pytest.mark.parametrize("line", TOGETHER)
def test_several_fields_at_once(lines: Lines, line: str) -> None:
    """Each within what some tensor has: together they are far more than the files have."""
    assert line in lines["together", line, 0]


def test_random_weights_are_bounded_by_the_memory(tmp_path: Path) -> None:
    """There is no checkpoint to compare with; nothing is allocated."""
    sizes = {
        "hidden_size": MAX_SIZE,
        "vocab_size": MAX_SIZE,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
    }
    folder = with_config(make_checkpoint("llama", tmp_path / "a"), tmp_path / "b", **sizes, head_dim=16)
    initialize = worker_pb2.Initialize(model_path=str(folder), load_format="dummy")
    config, bits = read_model_config(folder), OwnBits("torch computes")
    with pytest.raises(StartupError, match=r"far more weights than [0-9]+ MiB of memory have room for"):
        load_model(config, initialize, torch.device("cpu"), lambda *_: None, lambda dtype: dtype, bits)


def test_rows_are_as_long_as_the_cache(tmp_path: Path) -> None:
    """A context of 2^31 tokens takes nothing where there is no room for it."""
    folder = with_config(
        make_checkpoint("llama", tmp_path / "a"), tmp_path / "b", max_position_embeddings=2**31 - 1
    )
    command = worker_pb2.Initialize(model_path=str(folder), num_blocks=6, block_size=16, max_num_seqs=256)
    command.max_num_batched_tokens = 64
    executor, ready = load(command, CpuPlatform(WorkerConfig(threads=1)))
    assert ready.model.max_model_len == 2**31 - 1 and executor.rows.max_model_len == 96
