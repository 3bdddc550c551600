"""Which kernels a start compiles: those that the model's configuration says it needs. Those of weights in
groups where weights may be in groups: made so, or stored so."""

import json
from collections.abc import Callable
from pathlib import Path

from pagewire.internal.v1 import worker_pb2
from tests.gguf_files import write_gguf
from worker.cpu.precompile import may_have_groups, needed_groups


def needed(path: Path, **changes: str) -> bool:
    return may_have_groups(worker_pb2.Initialize(model_path=str(path), **changes))


def groups_of(folder: Path, config: dict[str, object], **changes: str) -> set[str]:
    """Besides those of every model."""
    (folder / "config.json").write_text(json.dumps(config))
    groups = needed_groups(worker_pb2.Initialize(model_path=str(folder), **changes))
    assert groups >= {"sampler", "model"}
    return groups - {"sampler", "model"}


def test_of_a_dtype(tmp_path: Path) -> None:
    """That of the checkpoint, unless another one is asked for. Integers are made from bfloat16, and those
    of a checkpoint are computed with in bfloat16."""
    bfloat16, both = {"bfloat16", "compact"}, {"bfloat16", "compact", "float32"}
    assert groups_of(tmp_path, {"torch_dtype": "bfloat16"}) == bfloat16
    assert groups_of(tmp_path, {"dtype": "bfloat16"}, dtype="auto") == bfloat16
    assert groups_of(tmp_path, {"text_config": {"dtype": "bfloat16"}}) == bfloat16
    assert groups_of(tmp_path, {"dtype": "bfloat16"}, dtype="float32") == {"float32"}
    assert groups_of(tmp_path, {"dtype": "float16"}) == {"float32"}
    assert groups_of(tmp_path, {}) == both
    assert groups_of(tmp_path, {"dtype": "float16"}, quantization="int8") == {"bfloat16", "int8"}
    assert groups_of(tmp_path, {}, quantization="int4") == {"bfloat16", "int8", "two_levels"}
    assert groups_of(tmp_path, {}, dtype="bfloat16", kv_cache_dtype="fp8") == {*bfloat16, "eight_bits"}
    gptq = {"dtype": "float16", "quantization_config": {"quant_method": "gptq"}}
    assert groups_of(tmp_path, gptq) == {*bfloat16, "groups"}
    assert groups_of(tmp_path, gptq, dtype="float32") == {"float32", "groups"}
    floats = {"dtype": "bfloat16", "quantization_config": {"quant_method": "mxfp4"}}
    assert groups_of(tmp_path, floats) == {*bfloat16, "groups", "e2m1"}


def test_of_an_architecture(tmp_path: Path) -> None:
    """Null stands for nothing."""

    def of(**fields: object) -> set[str]:
        return groups_of(tmp_path, {"dtype": "bfloat16", **fields}) - {"bfloat16", "compact"}

    assert of(num_attention_heads=8) == of(num_local_experts=None) == set()
    assert (
        of(num_local_experts=8) == of(num_experts=8) == of(text_config={"n_routed_experts": 8}) == {"experts"}
    )
    assert of(kv_lora_rank=512) == {"latents"}
    assert of(linear_num_value_heads=4) == of(mamba_d_conv=4) == {"states"}
    (tmp_path / "config.json").unlink()
    assert needed_groups(worker_pb2.Initialize(model_path=str(tmp_path))) == {"sampler", "model", "bfloat16"}


def test_a_folder(tmp_path: Path) -> None:
    """One without a configuration is reported later."""

    def of(method: str, **changes: str) -> bool:
        config = {"quantization_config": {"quant_method": method}} if method else {}
        (tmp_path / "config.json").write_text(json.dumps(config))
        return needed(tmp_path, **changes)

    assert of("", quantization="int4")
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
