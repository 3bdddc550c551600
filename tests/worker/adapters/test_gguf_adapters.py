"""Adapters in GGUF files have the deltas of the folders that they were converted from."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from tests.gguf_files import FAMILY_NAMES, MODULES
from tests.worker.adapters.peft_files import MAX_BYTES, load, model_of, write_adapter
from worker.adapters.adapter import Adapter, AdapterError
from worker.adapters.files import read_folder

Checkpoints = Callable[..., Path]
HEADS = {"q_proj": 4, "k_proj": 2}


def permuted(b: np.ndarray, heads: int) -> np.ndarray:
    """As llama.cpp's converter orders the rows of queries and keys."""
    return b.reshape(heads, 2, -1, b.shape[1]).swapaxes(1, 2).reshape(b.shape)


def write_gguf(folder: Path, path: Path, family: str, alpha: float = 5.0, **metadata: Any) -> Path:
    """Writes what convert_lora_to_gguf.py makes of an adapter in a folder. metadata: texts that replace
    others."""
    writer = gguf.GGUFWriter(path, FAMILY_NAMES.get(family, family))
    fields = {"general.type": "adapter", "adapter.type": "lora"} | metadata
    for key, value in fields.items():
        writer.add_string(key, value)
    writer.add_float32("adapter.lora.alpha", alpha)
    writer.add_array("adapter.alora.invocation_tokens", [7, 8])
    for name, tensor in read_folder(folder, MAX_BYTES).tensors.items():
        *_, layer, part, module, half, _ = name.split(".")
        values = tensor.numpy()
        if family == "llama" and half == "lora_B" and module in HEADS:
            values = permuted(values, HEADS[module])
        target = f"blk.{layer}.{MODULES[f'{part}.{module}']}.weight.{half.lower()}"
        writer.add_tensor(target, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_file_that_is_smaller_than_its_deltas(checkpoint: Checkpoints, tmp_path: Path) -> None:
    """Blocks of 8 bits become float32."""
    model = model_of(checkpoint("llama", hidden_size=64))
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    for key, value in {"general.type": "adapter", "adapter.type": "lora"}.items():
        writer.add_string(key, value)
    writer.add_string("general.base_model.0.name", "a name")
    writer.add_float32("adapter.lora.alpha", 5.0)
    kind = gguf.GGMLQuantizationType.Q8_0
    for half, rows, inputs in (("a", 32, 64), ("b", 32, 32)):
        blocks = gguf.quants.quantize(np.ones((rows, inputs), np.float32), kind)
        writer.add_tensor(f"blk.0.attn_v.weight.lora_{half}", blocks, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    size = 4 * (32 * 64 + 32 * 32)
    found = load(tmp_path / "a.gguf", model, max_bytes=size)
    assert (found.num_bytes, found.base, found.rank) == (size, "a name", 32)
    with pytest.raises(AdapterError, match=f"a.gguf takes {size} bytes, more than {size - 1}"):
        load(tmp_path / "a.gguf", model, max_bytes=size - 1)
    content = (tmp_path / "a.gguf").read_bytes()
    (tmp_path / "a.gguf").write_bytes(content.replace(b"a name", b"a \xff\xfee\n"))
    assert load(tmp_path / "a.gguf", model).base.isprintable()


def assert_same(found: Adapter, expected: Adapter) -> None:
    assert found.deltas.keys() == expected.deltas.keys()
    for layer, parts in expected.deltas.items():
        for one, other in zip(found.deltas[layer], parts, strict=True):
            assert (one is None) == (other is None)
            if one is not None and other is not None:
                assert torch.equal(one.a, other.a) and torch.equal(one.b, other.b)
                assert one.scale == other.scale


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_converted(family: str, checkpoint: Checkpoints, tmp_path: Path) -> None:
    base = checkpoint(family)
    folder = write_adapter(
        base,
        tmp_path,
        merge=False,
        r=4,
        lora_alpha=5,
        target_modules="all-linear",
        rank_pattern={"q_proj": 7},
    )
    model = model_of(base)
    found = load(write_gguf(folder, tmp_path / "a.gguf", family), model)
    assert_same(found, load(folder, model))
    assert found.invocation == (7, 8) and found.rank == 7 and len(found.digest) == 32
    unscaled = load(write_gguf(folder, tmp_path / "b.gguf", family, alpha=0.0), model)
    assert {each.scale for parts in unscaled.deltas.values() for each in parts if each is not None} == {1.0}
    assert unscaled.digest != found.digest


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"general.type": "model"}, "general.type is 'model', not 'adapter'"),
        ({"adapter.type": "control"}, "adapter.type is 'control', not 'lora'"),
    ],
)
def test_other_files(metadata: dict[str, str], message: str, checkpoint: Checkpoints, tmp_path: Path) -> None:
    base = checkpoint("llama")
    folder = write_adapter(base, tmp_path, merge=False, r=4, target_modules=["q_proj"])
    path = write_gguf(folder, tmp_path / "a.gguf", "llama", **metadata)
    with pytest.raises(AdapterError, match=message):
        load(path, model_of(base))


def test_damaged(checkpoint: Checkpoints, tmp_path: Path) -> None:
    base = checkpoint("llama")
    model = model_of(base)
    folder = write_adapter(base, tmp_path, merge=False, r=4, target_modules=["q_proj"])
    path = write_gguf(folder, tmp_path / "a.gguf", "llama")
    content = path.read_bytes()
    for damaged, message in (
        (content[: len(content) // 2], "a.gguf"),
        (
            content.replace(b"blk.0.attn_q.weight.lora_a", b"blk.0.attn_x.weight.lora_a"),
            "attn_x.* is not known",
        ),
        (content.replace(b"blk.0.attn_q.weight.lora_a", b"blk.7.attn_q.weight.lora_a"), "model.layers.[07]"),
        (content.replace(b"adapter.lora.alpha", b"adapter.lora.alphx"), "adapter.lora.alpha is None"),
        (b"", "a.gguf"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(AdapterError, match=message):
            load(path, model)
    with pytest.raises(AdapterError, match="none.gguf has no adapter_config.json"):
        load(tmp_path / "none.gguf", model)
