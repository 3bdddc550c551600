"""Adapters that peft writes change the weights that peft's merged models have changed, of every family."""

import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.checkpoints import FAMILIES
from tests.worker.adapters.peft_files import change, linear_modules, load, model_of, weights_of, write_adapter
from worker.layers.matrix import MatrixOwner

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
        if not isinstance(layer, MatrixOwner):
            continue
        assert isinstance(other, MatrixOwner)
        expected = weights_of(other) - weights_of(layer)
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


EXPERTS = [
    *("mixtral", "qwen2_moe", "qwen3_moe", "qwen3_next", "qwen3_5_moe", "olmoe", "granitemoe"),
    *("granite_hybrid", "glm4_moe", "minimax_m2", "gpt_oss", "llama4", "deepseek_v3"),
]
ALL_EXPERTS = ["experts.gate_up_proj", "experts.down_proj"]


@pytest.mark.parametrize("family", EXPERTS)
def test_stacked_experts(family: str, checkpoint: Checkpoints, tmp_path: Path) -> None:
    """Gates and up projections that alternate, and parameters [N, in, out], too."""
    base = checkpoint(family)
    fields = {"r": 3, "lora_alpha": 5, "target_modules": [], "target_parameters": ALL_EXPERTS}
    patterns = {"rank_pattern": {"experts.down_proj": 2}, "alpha_pattern": {"experts.gate_up_proj": 7}}
    changed = check(base, write_adapter(base, tmp_path, **fields, **patterns))
    assert changed and all(re.search(r"\.expert_(gate_up|down)$", path) for path in changed)


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe"])
def test_one_expert_after_another(family: str, checkpoint: Checkpoints, tmp_path: Path) -> None:
    """As peft wrote them for transformers 4; peft's own conversion is the reference."""
    from peft import PeftModel  # takes seconds

    base = checkpoint(family)
    block, names = {
        "mixtral": ("block_sparse_moe.experts", ("w1", "w3", "w2")),
        "qwen3_moe": ("mlp.experts", ("gate_proj", "up_proj", "down_proj")),
    }[family]
    tensors, generator = dict[str, torch.Tensor](), torch.Generator().manual_seed(3)
    for name, weight in load_file(base / "model.safetensors").items():
        if re.search(r"\.experts\.\d+\.", name):
            module = f"base_model.model.{name.removesuffix('.weight')}"
            for half, shape in (("A", (3, weight.shape[1])), ("B", (weight.shape[0], 3))):
                tensors[f"{module}.lora_{half}.weight"] = torch.randn(shape, generator=generator) / 10
    assert any(f"{block}.1.{names[0]}.lora_A" in name for name in tensors)
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 3, "lora_alpha": 5, "target_modules": names}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    with warnings.catch_warnings(action="ignore"):  # of patterns that peft makes
        model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path)
        model.merge_and_unload().save_pretrained(tmp_path / "merged")
    assert check(base, tmp_path)


def test_experts_of_an_older_peft(checkpoint: Checkpoints, tmp_path: Path) -> None:
    """Before 0.19 it took inputs for outputs."""
    base = checkpoint("qwen3_moe")
    fields = {"r": 3, "target_modules": [], "target_parameters": ALL_EXPERTS}
    path = write_adapter(base, tmp_path, **fields) / "adapter_model.safetensors"
    turned = dict[str, torch.Tensor]()
    for name, tensor in load_file(path).items():
        other = name.replace("lora_A", "lora_C").replace("lora_B", "lora_A").replace("lora_C", "lora_B")
        if "lora_A" in name:  # [N * r, in]
            turned[other] = tensor.view(6, 3, -1).permute(2, 1, 0).reshape(-1, 18).contiguous()
        else:  # [out, r * N]
            turned[other] = tensor.view(-1, 3, 6).permute(2, 1, 0).reshape(18, -1).contiguous()
    save_file(turned, path)
    assert check(base, tmp_path)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3", "gemma4", "opt"])
@pytest.mark.parametrize("tied", [False, True])
def test_heads_and_embeddings(family: str, tied: bool, checkpoint: Checkpoints, tmp_path: Path) -> None:
    """Beside whole copies of the base's, which peft writes for them. Where weights are tied, both change
    them."""
    base = checkpoint(family, tie_word_embeddings=tied)
    embedding = {"gpt2": "wte"}.get(family, "embed_tokens")
    fields = {"target_modules": ["lm_head", embedding], "rank_pattern": {embedding: 2}}
    merged = write_adapter(base, tmp_path, r=3, lora_alpha=5, **fields)
    assert check(base, merged) == ({"embedding"} if tied else {"embedding", "head"})


@pytest.mark.parametrize(
    ("family", "router"),
    [("qwen2_moe", "gate"), ("deepseek_v3", "gate"), ("gpt_oss", "router"), ("granitemoe", "router")],
)
def test_routers(family: str, router: str, checkpoint: Checkpoints, tmp_path: Path) -> None:
    """Parameters of modules that are no linear layers, whose patterns have the parameters' names."""
    base = checkpoint(family)
    fields = {"target_modules": [], "target_parameters": [f"{router}.weight"]}
    patterns = {"rank_pattern": {f"{router}.weight": 2}, "alpha_pattern": {f"{router}.weight": 7}}
    changed = check(base, write_adapter(base, tmp_path, r=3, lora_alpha=5, **fields, **patterns))
    assert changed and all(path.endswith(".router") for path in changed)
