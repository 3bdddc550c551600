"""Rows that pool, on a CPU: what transformers computes, with the same bits in any batch and any chunks."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from pagewire.internal.v1 import worker_pb2
from pagewire.internal.v1.engine_pb2 import POOLING_TYPE_ALL, POOLING_TYPE_LAST, POOLING_TYPE_MEAN, Pooling
from pagewire.ipc.columns import pack_u32
from tests.worker.fakes import Driver, initialize, load_on_a_cpu
from worker.pooling.rows import PoolRows
from worker.pooling.stages import SparseHead, Stage
from worker.step.rows import PlanError
from worker.step.warmup_plans import prefill_plan

LAST, MEAN = Pooling(type=POOLING_TYPE_LAST), Pooling(type=POOLING_TYPE_MEAN)
ALL = Pooling(type=POOLING_TYPE_ALL, dimensions=5, normalize=True)
LOGITS = Pooling(type=POOLING_TYPE_LAST, token_ids=[70, 5])
PROMPTS = [
    [3 + (7 * row + 5 * place) % 80 for place in range(length)] for row, length in enumerate((1, 9, 30))
]
FITTING = {"head_dim": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
"""Sizes that compiled kernels take."""


def vectors(driver: Driver, pooling: Pooling, prompts: list[list[int]] = PROMPTS) -> list[list[float]]:
    rows = [driver.add(prompt, 1, pooling=pooling)[0] for prompt in prompts]
    driver.run()
    return [row.vector for row in rows]


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_vectors_are_those_of_transformers(checkpoint: Callable[..., Path], family: str):
    folder = checkpoint(family, **FITTING)
    driver = Driver(folder, record=False, dtype="float32", block_size=16)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).model
    for pooling in (LAST, MEAN, ALL, Pooling(type=POOLING_TYPE_LAST, dimensions=5, normalize=True)):
        for prompt, found in zip(PROMPTS, vectors(driver, pooling), strict=True):
            with torch.inference_mode():
                states = model(torch.tensor([prompt])).last_hidden_state[0]
            pooled = {POOLING_TYPE_LAST: states[-1], POOLING_TYPE_MEAN: states.mean(0)}
            state = pooled.get(pooling.type, states)
            if pooling.dimensions:
                state = torch.nn.functional.normalize(state[..., : pooling.dimensions], dim=-1)
            assert np.abs(np.array(found) - state.flatten().numpy()).max() < 2e-4
    assert driver.ready.model.embedding_size == len(states[0])


def test_a_checkpoint_of_the_bare_decoder(checkpoint: Callable[..., Path], tmp_path: Path):
    """Its tensors lack the prefix of a language model's, and it has no head: e5-mistral is such a one."""
    whole = checkpoint("mistral")
    bare = tmp_path / "bare"
    shutil.copytree(whole, bare)
    fields = json.loads((bare / "config.json").read_text()) | {"architectures": ["MistralModel"]}
    (bare / "config.json").write_text(json.dumps(fields))
    tensors = load_file(whole / "model.safetensors")
    kept = {name.removeprefix("model."): value for name, value in tensors.items() if name != "lm_head.weight"}
    save_file(kept, bare / "model.safetensors", {"format": "pt"})
    found = [vectors(Driver(folder, record=False, dtype="float32"), LAST) for folder in (whole, bare)]
    assert found[0] == found[1]


@pytest.mark.cpu_kernels
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_same_bits_alone_in_a_crowd_in_chunks_and_again(checkpoint: Callable[..., Path], dtype: str):
    settings = {"record": False, "dtype": dtype, "block_size": 16}
    driver = Driver(checkpoint("llama", **FITTING), **settings)
    for pooling in (LAST, MEAN, ALL, LOGITS):
        alone = [vectors(driver, pooling, [prompt])[0] for prompt in PROMPTS]
        assert vectors(driver, pooling) == alone
        driver.budget = 4  # chunks
        assert vectors(driver, pooling) == alone
        driver.budget = 8
        source = driver.add(PROMPTS[2], 40)[0]  # another row decodes beside them, in the same steps
        while not source.output:
            driver.step()
        rows = [driver.add(prompt, 1, pooling=pooling)[0] for prompt in PROMPTS]
        driver.step()
        driver.preempt(rows[1])
        driver.run()
        assert [row.vector for row in rows] == alone
        assert len(source.output) == 40


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma", "gemma2"])
def test_logits_of_tokens_are_those_of_transformers(checkpoint: Callable[..., Path], family: str):
    """Also where logits are capped."""
    folder = checkpoint(family, **FITTING)
    driver = Driver(folder, record=False, dtype="float32", block_size=16)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for prompt, found in zip(PROMPTS, vectors(driver, LOGITS), strict=True):
        with torch.inference_mode():
            expected = model(torch.tensor([prompt])).logits[0, -1, [70, 5]].numpy()
        assert np.abs(np.array(found) - expected).max() < 5e-4


@pytest.mark.cpu_kernels
@pytest.mark.parametrize("pooling", [LAST, LOGITS], ids=["state", "logits"])
def test_the_last_token_behind_cached_blocks(checkpoint: Callable[..., Path], pooling: Pooling):
    driver = Driver(checkpoint("llama", **FITTING), record=False, dtype="bfloat16", block_size=16)
    alone = vectors(driver, pooling, PROMPTS[2:])
    source = driver.add(PROMPTS[2], 3)[0]
    driver.step()
    row = driver.add(PROMPTS[2], 1, pooling=pooling)[0]
    driver.share(source, row, 1)
    driver.run()
    assert [row.vector] == alone


def test_a_step_without_memory_for_all(checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch):
    """The last token is computed again with the sampled positions; the mean needs all states at once."""
    runner, _ = load_on_a_cpu(initialize(checkpoint("llama"), dtype="float32"))
    plan = prefill_plan([3, 5], 4)
    plan.new_rows[1].pooling.CopyFrom(LAST)
    again = worker_pb2.StepPlan(step=2, removed_rows=pack_u32([0, 1]))
    expected = runner.execute(plan).vectors[0]
    runner.execute(again)
    compute, calls = runner.backend.compute, []

    def fails_once(*arguments: object) -> torch.Tensor:
        calls.append(arguments)
        if len(calls) == 1:
            raise MemoryError
        return compute(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(runner.backend, "compute", fails_once)
    assert runner.execute(plan).vectors[0] == expected and len(calls) > 1
    runner.execute(again)
    calls.clear()
    plan.new_rows[1].pooling.CopyFrom(MEAN)
    with pytest.raises(MemoryError, match="all of a prompt"):
        runner.execute(plan)


def new_row(**fields: object) -> worker_pb2.NewRow:
    return worker_pb2.NewRow(row=0, token_ids=pack_u32([5, 6]), prompt_len=2, **fields)  # type: ignore[arg-type]


def test_plans_that_do_not_fit_are_refused():
    rows = PoolRows({})
    with pytest.raises(PlanError, match="pooling type 0"):
        rows.add_row(0, new_row(pooling=Pooling()), [5, 6], [])
    with pytest.raises(PlanError, match="has output"):
        rows.add_row(0, new_row(pooling=LAST), [5], [6])
    one = np.ones((1, 1), np.float32)
    with pytest.raises(PlanError, match="row 0 pools logits by 1"):
        PoolRows({3: SparseHead(Stage(one), lambda x: x, one[0])}).add_row(
            0, new_row(pooling=Pooling(type=POOLING_TYPE_LAST, head=3)), [5, 6], []
        )
    with pytest.raises(PlanError, match="needs head 1"):
        rows.add_row(0, new_row(pooling=Pooling(type=POOLING_TYPE_LAST, head=1)), [5, 6], [])
    with pytest.raises(PlanError, match="pools logits, and more"):
        rows.add_row(0, new_row(pooling=Pooling(type=POOLING_TYPE_MEAN, token_ids=[5])), [5, 6], [])
    rows.add_row(0, new_row(pooling=LAST), [5, 6], [])
    with pytest.raises(PlanError, match="is forked"):
        rows.fork_row(1, 0, 1)
    rows.remove_row(0)
    rows.fork_row(1, 0, 1)


def test_a_mean_that_begins_behind_cached_blocks_is_refused(checkpoint: Callable[..., Path]):
    driver = Driver(checkpoint("llama"), record=False, dtype="float32")
    source = driver.add(PROMPTS[1], 3)[0]
    driver.step()
    driver.share(source, driver.add(PROMPTS[1], 1, pooling=MEAN)[0], 1)
    with pytest.raises(PlanError, match="leaves out states"):
        driver.run()
