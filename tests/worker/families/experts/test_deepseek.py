"""Configurations as they are published, what is refused, and a model with experts in one call."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.ops.experts.routing import Score
from pagewire.errors import StartupError
from tests.worker.fakes import Driver
from worker.config.decoder import DecoderConfig, LatentConfig
from worker.cpu import weights as cpu_weights
from worker.cpu.fused_decoder.decoder import FusedDecoder
from worker.families.registry import read_model_config
from worker.models.decoder import Decoder

YARN = {
    "type": "yarn",
    "factor": 40,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
V3: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    **{"vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048},
    **{
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
    },
    **{
        "n_shared_experts": 1,
        "n_routed_experts": 256,
        "routed_scaling_factor": 2.5,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
    },
    **{"qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128, "topk_method": "noaux_tc"},
    **{"n_group": 8, "topk_group": 4, "num_experts_per_tok": 8, "moe_layer_freq": 1, "norm_topk_prob": True},
    **{"first_k_dense_replace": 3, "scoring_func": "sigmoid", "aux_loss_alpha": 0.001, "seq_aux": True},
    **{"num_nextn_predict_layers": 1, "ep_size": 1, "max_position_embeddings": 163840, "rope_theta": 10000},
    **{"rope_scaling": YARN, "rms_norm_eps": 1e-6, "attention_bias": False, "tie_word_embeddings": False},
}
V2_LITE = V3 | {
    "architectures": ["DeepseekV2ForCausalLM"],
    **{"vocab_size": 102400, "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408},
    **{"num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16, "n_shared_experts": 2},
    **{"n_routed_experts": 64, "routed_scaling_factor": 1.0, "q_lora_rank": None, "topk_method": "greedy"},
    **{"n_group": 1, "topk_group": 1, "num_experts_per_tok": 6, "norm_topk_prob": False},
    **{"first_k_dense_replace": 1, "scoring_func": "softmax"},
    "rope_scaling": YARN | {"mscale": 0.707, "mscale_all_dim": 0.707},
}


def read(folder: Path, fields: dict[str, Any]) -> DecoderConfig:
    (folder / "config.json").write_text(json.dumps(fields))
    config = read_model_config(folder)
    assert isinstance(config, DecoderConfig)
    return config


def test_v3(tmp_path: Path):
    config = read(tmp_path, V3)
    assert config.latent == LatentConfig(
        rank=512, query_rank=1536, plain_dim=128, rotary_dim=64, value_dim=128, norm_eps=1e-6
    )
    assert config.kv_values == 576 and config.max_position == 163840
    assert config.attention_scale == pytest.approx(192**-0.5 * 1.3689**2, rel=1e-4)
    assert [bool(experts) for experts in config.experts] == [False] * 3 + [True] * 58
    experts = config.experts[-1]
    assert experts is not None and experts.corrected and experts.shared_size == 2048
    assert (experts.routing.groups, experts.routing.top_groups, experts.routing.scale) == (8, 4, 2.5)


def test_v2_lite(tmp_path: Path):
    config = read(tmp_path, V2_LITE)
    assert config.latent is not None and config.latent.query_rank is None
    experts = config.experts[1]
    assert config.experts[0] is None and experts is not None and not experts.corrected
    assert experts.shared_size == 2816 and experts.routing.score is Score.SOFTMAX


@pytest.mark.parametrize(
    ("base", "changes", "message"),
    [
        (V3, {"topk_method": "greedy"}, 'topk_method is "greedy", but nothing else is supported'),
        (V3, {"moe_layer_freq": 2}, "moe_layer_freq is 2"),
        (V3, {"index_topk": 2048}, "index_topk is 2048, but this field is not known"),
        (V2_LITE, {"topk_method": "noaux_tc"}, "only greedy and group_limited_greedy"),
        (V2_LITE, {"norm_topk_prob": True}, "norm_topk_prob is true, but nothing else is supported"),
        (V2_LITE, {"topk_method": "group_limited_greedy", "n_group": 7}, "n_group is 7, but must divide 64"),
    ],
)
def test_what_is_refused(base: dict[str, Any], changes: dict[str, Any], message: str, tmp_path: Path):
    with pytest.raises(StartupError, match=message):
        read(tmp_path, base | changes)


@pytest.mark.cpu_kernels
def test_the_same_bits_in_one_call(checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch):
    """Latents and experts in one program, and layer by layer."""
    sizes = {"q_lora_rank": 32, "kv_lora_rank": 48, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16}
    changes = {"hidden_size": 128, "moe_intermediate_size": 48, "v_head_dim": 16}
    folder = checkpoint("deepseek_v3", **sizes, **changes)

    def logits(kind: type[Decoder | FusedDecoder]) -> list[torch.Tensor]:
        driver = Driver(folder, dtype="bfloat16", block_size=16, num_blocks=100, max_num_seqs=4, budget=30)
        assert isinstance(driver.runner.backend.model, kind)
        sequences = [driver.add([3 + (i * i) % 200 for i in range(length)], 4)[0] for length in (1, 17, 40)]
        driver.run()
        return [torch.stack(sequence.logits) for sequence in sequences]

    fused = logits(FusedDecoder)
    monkeypatch.setattr(cpu_weights, "fuse", lambda model, *_: model)
    assert all(torch.equal(one, other) for one, other in zip(fused, logits(Decoder), strict=True))
