"""What a simulated worker finds out at start-up, and refuses."""

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from engine_core.io.worker_group import combine_ready
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


def ready_of_ranks(*commands: worker_pb2.Initialize) -> list[worker_pb2.Ready]:
    """Of a group whose ranks are threads."""

    def load_rank(rank: int) -> worker_pb2.Ready:
        return load(commands[rank], SimulatedPlatform(WorkerConfig(rank=rank)))[1]

    with ThreadPoolExecutor(len(commands)) as pool:
        return list(pool.map(load_rank, range(len(commands))))


@pytest.mark.parametrize(("tensor", "stages"), [(2, 1), (4, 1), (1, 2), (2, 2)])
def test_ranks_divide_a_model_evenly(tensor: int, stages: int, initialize: Initialize):
    """And what each has makes the whole, but for bytes that are left over. Stages compute one after the
    other."""
    group = {"group_name": f"of {tensor} x {stages}", "first_rank_pid": os.getpid()}
    group |= {"tensor_parallel_size": tensor, "pipeline_parallel_size": stages}
    size = tensor * stages
    made = initialize(max_model_len=50, profile="h200")
    alone = ready(made)
    together = combine_ready(ready_of_ranks(*[initialize(max_model_len=50, profile="h200", **group)] * size))
    assert together.num_blocks == alone.num_blocks and together.kv_cache_bytes == alone.kv_cache_bytes
    assert together.model == alone.model
    assert (together.prefill_us_per_token < alone.prefill_us_per_token) == (tensor > 1)


def test_ranks_that_are_not_alike_are_refused(initialize: Initialize):
    group = {"tensor_parallel_size": 2, "group_name": "unlike", "first_rank_pid": os.getpid()}
    with pytest.raises(StartupError, match="profile: rank 0 has instant, rank 1 has h200"):
        ready_of_ranks(initialize(**group), initialize(profile="h200", **group))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"profile": "abacus"}, "there is no profile 'abacus'"),
        ({"tensor_parallel_size": 3}, "3 ranks are not a power of two"),
        ({"tensor_parallel_size": 8}, "4 attention heads cannot be divided among 8 ranks"),
        ({"pipeline_parallel_size": 99}, "--pipeline-parallel-size 99, and the model has"),
        ({"tensor_parallel_size": 2, "max_loras": 1}, "ranks do not load adapters"),
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
