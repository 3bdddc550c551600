"""Adapters that peft writes change the weights that peft's merged models have changed, of every family."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.checkpoints import FAMILIES
from tests.worker.adapters.peft_files import change, linear_modules, load, model_of, write_adapter
from worker.layers.matrix import Matrix

Checkpoints = Callable[..., Path]
NOT_BY_PEFT = {"falcon_h1": r"\.out_proj$"} | dict.fromkeys(
    ("qwen3_next", "glm4_moe", "dots1", "deepseek_v2", "deepseek_v3", "glm4_moe_lite"),
    r"\.(gate|up|down)_proj$",
)
"""Modules that peft refuses to adapt, or takes for the experts of all layers."""
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "all linear": {"r": 8, "target_modules": "all-linear"},
    "two modules": {"r": 4, "lora_alpha": 3, "target_modules": ["q_proj", "v_proj"]},
    "pattern of modules": {"r": 4, "target_modules": r".*\.[01]\.mlp\.(up|down)_proj"},
    "one layer": {"r": 4, "target_modules": ["k_proj", "o_proj"], "layers_to_transform": [1]},
    "excluded": {"r": 4, "target_modules": "all-linear", "exclude_modules": ["o_proj"]},
    "rsLoRA": {"r": 12, "lora_alpha": 20, "use_rslora": True, "target_modules": "all-linear"},
    "patterns of ranks and alphas": {
        "r": 4,
        "target_modules": "all-linear",
        "rank_pattern": {"mlp.up_proj": 5, r"model\.layers\.1\..*": 7, "q_proj": 2},
        "alpha_pattern": {r"^model\.layers\.0\.mlp\.down_proj": 40, "layers.2.self_attn.k_proj": 3},
    },
    "patterns, rsLoRA": {
        "r": 4,
        "use_rslora": True,
        "target_modules": ["q_proj", "down_proj"],
        "rank_pattern": {"down_proj": 9},
        "alpha_pattern": {"down_proj": 5},
    },
    "initialized": {"r": 4, "target_modules": ["gate_proj"], "init_lora_weights": "gaussian"},
    "biases of layers without": {"r": 4, "target_modules": ["q_proj"], "bias": "lora_only"},
    "aLoRA": {"r": 4, "target_modules": ["q_proj"], "alora_invocation_tokens": [7, 8]},
    "the largest rank": {"r": 256, "target_modules": ["v_proj"]},
}


def check(base: Path, adapter: Path) -> set[str]:
    """Compares all matrices with those of peft's merged model, and returns the paths of the layers that
    change."""
    model, merged = model_of(base), model_of(adapter / "merged")
    deltas = load(adapter, model).deltas
    changed = set()
    for (path, layer), other in zip(model.named_modules(), merged.modules(), strict=True):
        if not isinstance(layer, Matrix):
            continue
        assert isinstance(other, Matrix)
        expected = other.weight - layer.weight
        found = change(layer, deltas[layer]) if layer in deltas else torch.zeros_like(expected)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, msg=path)
        if layer in deltas:
            changed.add(path)
            assert expected.abs().max() > 1e-3, path
    assert len(changed) == len(deltas)
    return changed


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_what_peft_writes(name: str, checkpoint: Checkpoints, tmp_path: Path) -> None:
    base, is_merged = checkpoint("llama"), name != "aLoRA"
    fields = CONFIGURATIONS[name]
    adapter = write_adapter(base, tmp_path, merge=is_merged, **fields)
    if is_merged:
        assert check(base, adapter)
    found = load(adapter, model_of(base))
    assert found.invocation == tuple(fields.get("alora_invocation_tokens", ()))
    assert found.rank == max([fields["r"], *fields.get("rank_pattern", {}).values()])


@pytest.mark.parametrize("family", FAMILIES)
def test_every_linear_layer_of_a_family(family: str, checkpoint: Checkpoints, tmp_path: Path) -> None:
    """Fused names, rows in the order of the rotation, gates among queries, transposed weights."""
    base = checkpoint(family)
    modules = [name for name in linear_modules(base) if not re.search(NOT_BY_PEFT.get(family, r"(?!)"), name)]
    adapter = write_adapter(base, tmp_path, r=3, lora_alpha=5, target_modules=modules)
    changed = check(base, adapter)
    layers = int(max(path.split(".")[1] for path in changed if path.startswith("blocks.")))
    for layer in range(layers + 1):
        assert any(path.startswith(f"blocks.{layer}.") for path in changed), layer


def test_parts_of_a_fused_weight_share_a(checkpoint: Checkpoints, tmp_path: Path) -> None:
    base = checkpoint("phi3")
    model = model_of(base)
    adapter = load(write_adapter(base, tmp_path, merge=False, r=3, target_modules=["qkv_proj"]), model)
    for parts in adapter.deltas.values():
        assert len(parts) == 3 and len({id(each.a) for each in parts if each is not None}) == 1
    a, b = 3 * 48, 3 * (48 + 24 + 24)
    assert adapter.num_bytes == 4 * 3 * (a + b)
