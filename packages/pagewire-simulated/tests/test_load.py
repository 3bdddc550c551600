"""What a simulated worker finds out at start-up, and refuses."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pagewire.config import WorkerConfig
from pagewire.errors import StartupError
from pagewire.internal.v1 import worker_pb2
from pagewire_simulated.platform import SimulatedPlatform
from worker.load import load

Initialize = Callable[..., worker_pb2.Initialize]


def ready(initialize: worker_pb2.Initialize) -> worker_pb2.Ready:
    return load(initialize, SimulatedPlatform(WorkerConfig()))[1]


def test_facts_of_a_model_without_weights(initialize: Initialize):
    facts = ready(initialize(max_model_len=50))
    assert facts.device == "simulated"
    assert facts.model.architecture == "LlamaForCausalLM"
    assert (facts.model.dtype, facts.model.vocab_size, facts.model.max_model_len) == ("bfloat16", 320, 50)
    assert list(facts.model.eos_token_ids) == [2, 7]
    layer = 48 * (4 + 2 * 2) * 12 + 48 * 48 + 3 * 48 * 80 + 2 * 48
    assert facts.model.weight_bytes == 2 * (2 * layer + 48 + 2 * 320 * 48)


def test_blocks_are_no_more_than_useful(initialize: Initialize):
    """8 sequences of 50 tokens in blocks of 4: 13 each. A block is 4 tokens * 2 layers * 2 * 2 * 12."""
    facts = ready(initialize(max_model_len=50, dtype="float32"))
    assert facts.num_blocks == 8 * 13
    assert facts.kv_cache_bytes == 8 * 13 * (4 * 2 * 2 * 2 * 12 * 4)
    assert ready(initialize(num_blocks=7)).num_blocks == 7


def test_an_8b_model_fills_an_h200(tmp_path: Path, initialize: Initialize):
    """0.9 * 141 GB less 16.06 GB of weights: 845,632 tokens of 128 KiB in blocks of 16."""
    fields = {
        "architectures": ["LlamaForCausalLM"],
        "dtype": "bfloat16",
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 8192,
    }
    made = initialize(profile="h200", block_size=16, max_num_seqs=256, max_num_batched_tokens=2048)
    (tmp_path / "config.json").write_text(json.dumps(fields))
    facts = ready(made)
    assert facts.model.weight_bytes == 2 * 8_030_261_248
    assert facts.num_blocks == (126_900_000_000 - 2 * 8_030_261_248) // (16 * 131_072)
    assert facts.num_blocks * 16 == pytest.approx(845_632, abs=100)
    assert facts.swap_us_per_block == pytest.approx(16 * 131_072 / 50e3), "42 us at 50 GB/s"
    assert 18 < facts.prefill_us_per_token < 20, "14 GFLOP at 790 TFLOP/s, and some attention"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"profile": "abacus"}, "there is no profile 'abacus'"),
        ({"tensor_parallel_size": 2}, "2 is built for CPUs, and the device is simulated"),
        ({"max_model_len": 129}, "max_model_len = 129, but the model goes to 128"),
        ({"num_blocks": 1 << 31}, "has room for"),
        ({"gpu_memory_utilization": 1e-9}, "has room for 0 KV blocks"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], why: str, initialize: Initialize):
    with pytest.raises(StartupError) as raised:
        ready(initialize(**changes))
    assert why in raised.value.why and raised.value.todo


def test_a_model_that_is_not_known(folder: Callable[..., Path], initialize: Initialize):
    made = initialize()
    folder(architectures=["NobodysForCausalLM"])
    with pytest.raises(StartupError, match="NobodysForCausalLM is not known"):
        ready(made)
