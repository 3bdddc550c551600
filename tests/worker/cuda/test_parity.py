"""The CUDA path gives the tokens of the CPU's path, and of transformers."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from pagewire.internal.v1.engine_pb2 import Pooling
from tests.worker.cuda.host_devices import SMALL, interpret, load_on_the_host
from tests.worker.fakes import Driver, resolved_params
from tests.worker.test_parity import assert_equal, prompts, reference

Checkpoints = Callable[..., Path]
MakeDriver = Callable[..., Driver]
SHALLOW = {"num_hidden_layers": 1, "max_position_embeddings": 96}
DEEP = SHALLOW | {"num_hidden_layers": 2}
STATE_FIRST = {"layer_types": ["linear_attention", "full_attention"]}
WINDOW = {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
PROMPT = [5, 100, 33, 210, 7, 8, 9, 9, 9, 250]


@pytest.fixture
def on_the_host(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Driver]:
    """Drives the CUDA path. From its call on kernels are Triton's: the CPU's path has run before."""

    def make(folder: Path, **options: Any) -> Driver:
        interpret(monkeypatch)
        return Driver(folder, loader=load_on_the_host, **{**SMALL, **options})

    return make


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", DEEP),
    "qwen2, window in the upper layers": ("qwen2", DEEP | WINDOW | {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", SHALLOW),
    "llama, rope dynamic": ("llama", SHALLOW | {"rope_parameters": DYNAMIC, "max_position_embeddings": 20}),
    "mixtral": ("mixtral", SHALLOW),
    "qwen2_moe, one for all tokens with a gate": ("qwen2_moe", SHALLOW),
    "qwen3_moe": ("qwen3_moe", SHALLOW),
    "glm4_moe, groups": ("glm4_moe", SHALLOW | {"first_k_dense_replace": 0}),
    "minimax_m2": ("minimax_m2", SHALLOW),
    "gpt_oss": ("gpt_oss", SHALLOW | {"layer_types": ["sliding_attention"]}),
    "llama4, chunks": ("llama4", SHALLOW | {"no_rope_layers": [1], "attention_chunk_size": 9}),
    "youtu": ("youtu", SHALLOW),
    "deepseek_v2": ("deepseek_v2", SHALLOW | {"first_k_dense_replace": 0}),
    "deepseek_v3": ("deepseek_v3", SHALLOW | {"first_k_dense_replace": 0}),
    "qwen3_next": ("qwen3_next", DEEP | STATE_FIRST),
    "granite_hybrid": ("granite_hybrid", DEEP | STATE_FIRST),
    "falcon_h1": ("falcon_h1", SHALLOW),
    "gpt2": ("gpt2", {"n_layer": 1, "n_positions": 96}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_tokens_of_transformers(variant: str, checkpoint: Checkpoints, on_the_host: MakeDriver):
    """Prompts cut into odd pieces; decoding rows and pieces of prompts in one step."""
    family, overrides = VARIANTS[variant]
    folder = checkpoint(family, **overrides)
    inputs = prompts(3, longest=16)
    expected = reference(folder, inputs, 4)
    assert_equal(on_the_host(folder, budget=11, shuffle=1), inputs, expected)


def test_forks_and_company(checkpoint: Checkpoints, on_the_host: MakeDriver):
    """Sequences of one prompt, drawn with a seed, whose last block is copied before it is written; others
    beside them. The CPU's path gives the same."""
    folder = checkpoint("llama", **SHALLOW)
    params = resolved_params(temperature=1.2, top_k=50, seed=77, n=3)
    outputs = []
    for make in (partial(Driver, **SMALL), on_the_host):
        driver = make(folder, record=False, budget=16)
        siblings = driver.add(PROMPT, 5, params, n=3)
        other = driver.add(PROMPT * 2, 4)
        driver.run()
        outputs.append([sequence.output for sequence in (*siblings, *other)])
    assert outputs[0] == outputs[1]
    assert len(set(map(tuple, outputs[0]))) == 4


def test_rows_that_pool(checkpoint: Checkpoints, on_the_host: MakeDriver):
    """In chunks beside a row that samples: the vectors are those of the CPU's path, up to the rounding."""
    folder = checkpoint("llama", **SHALLOW)
    found = []
    for make in (partial(Driver, **SMALL), on_the_host):
        driver = make(folder, record=False, budget=5)
        kinds = Pooling(type=1), Pooling(type=2), Pooling(type=1, token_ids=[7, 70])
        rows = [driver.add(PROMPT[:4], 1, pooling=kind)[0] for kind in kinds]
        driver.add(PROMPT[:1], 1)
        driver.run()
        found.append(torch.tensor([x for row in rows for x in row.vector]))
    assert torch.allclose(*found, atol=1e-4) and found[0].abs().max() > 0.1


def test_a_resumed_row_goes_on_where_it_was(checkpoint: Checkpoints, on_the_host: MakeDriver):
    """After a preemption a row begins with its output; it stands in another row and in other blocks."""
    folder = checkpoint("llama", **SHALLOW)
    params = resolved_params(temperature=1.0, seed=5, repetition_penalty=1.3)
    whole = Driver(folder, record=False, **SMALL)
    expected = whole.add(PROMPT, 9, params)[0]
    whole.run()
    resumed = on_the_host(folder, record=False, budget=7, shuffle=3)
    interrupted = resumed.add(PROMPT, 9, params)[0]
    while len(interrupted.output) < 4:
        resumed.step()
    resumed.remove(interrupted)
    again = resumed.add(PROMPT, 9, params, delivered=interrupted.output)[0]
    resumed.run()
    assert again.output == expected.output


def test_graphs_give_what_launches_give(checkpoint: Checkpoints, on_the_host: MakeDriver):
    """Steps, with prompts and without, are padded to the next captured number of tokens, also beyond the
    number of rows, and where all rows are in use: the padding has no effect."""
    folder = checkpoint("llama", **SHALLOW)
    eager, captured = on_the_host(folder), on_the_host(folder)
    for size in (40, 6, 4, 2):
        captured.runner.backend.capture(size)  # type: ignore[attr-defined]
    runs = []
    for driver in (eager, captured):
        sequences = [driver.add(PROMPT[: 3 + index], 2 + index)[0] for index in range(SMALL["max_num_seqs"])]
        driver.run()
        runs.append(sequences)
    for ours, theirs in zip(*runs, strict=True):
        assert ours.output == theirs.output
        assert torch.allclose(torch.stack(ours.logits), torch.stack(theirs.logits), atol=1e-5)
