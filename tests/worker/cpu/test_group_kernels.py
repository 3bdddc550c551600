"""Kernels for weights in groups are compiled where weights may be in groups: made so, or stored so."""

import json
from collections.abc import Callable
from pathlib import Path

from pagewire.internal.v1 import worker_pb2
from tests.gguf_files import write_gguf
from worker.cpu.group_kernels import may_have_groups


def needed(path: Path, **changes: str) -> bool:
    return may_have_groups(worker_pb2.Initialize(model_path=str(path), **changes))


def test_a_folder(tmp_path: Path) -> None:
    """One without a configuration is reported later."""

    def of(method: str, **changes: str) -> bool:
        config = {"quantization_config": {"quant_method": method}} if method else {}
        (tmp_path / "config.json").write_text(json.dumps(config))
        return needed(tmp_path, **changes)

    assert of("", quantization="int4-g64")
    assert all(map(of, ("awq", "compressed-tensors", "gptq", "mxfp4")))
    assert not any((of(""), of("fp8"), of("gptq", quantization="int8"), of("gptq", load_format="dummy")))
    assert not needed(tmp_path / "nothing")


def test_a_file(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    folder = checkpoint("llama", hidden_size=64, intermediate_size=96)
    for kind in ("Q4_0", "Q4_1"):
        path = write_gguf(folder, tmp_path / f"{kind}.gguf", {"ffn_up": kind})
        assert needed(path) == (kind == "Q4_0")
    (tmp_path / "damaged.gguf").write_bytes(b"GGUF")
    assert not needed(tmp_path / "damaged.gguf")
