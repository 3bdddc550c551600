"""A step in one call against the layered model, which is its reference: the same bits."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kernels.attention.block_plan import BlockAttentionPlan
from kernels.batch import InputBatch
from kernels.cpu.program.program import StepProgram
from kernels.cpu.runtime.records import ProductRecord, ProgramRecord
from tests.worker.fakes import Driver
from worker.cpu import weights as cpu_weights
from worker.cpu.fused_decoder import decoder
from worker.cpu.fused_decoder.decoder import FusedDecoder
from worker.models.decoder import Decoder

pytestmark = pytest.mark.cpu_kernels

Checkpoints = Callable[..., Path]
PARTIAL_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.5,
    "short_factor": [1.0 + i / 8 for i in range(8)],
    "long_factor": [1.0 + i for i in range(8)],
}
OPT = {"hidden_size": 128, "word_embed_proj_dim": 128}
FAMILIES = {
    "llama": {"head_dim": 32, "attention_bias": True, "mlp_bias": True},
    "qwen2": {
        "hidden_size": 128,
        "tie_word_embeddings": True,
        "use_sliding_window": True,
        "sliding_window": 20,
        "max_window_layers": 1,
    },
    "qwen3": {"head_dim": 32, "attention_bias": True},
    "phi3": {"hidden_size": 128, "rope_parameters": PARTIAL_LONGROPE, "original_max_position_embeddings": 32},
    "smollm3": {"hidden_size": 128},
    "granite": {"hidden_size": 128},
    "starcoder2": {"hidden_size": 128},
    "stablelm": {"hidden_size": 128, "head_dim": 32, "use_parallel_residual": True},
    "gemma2": {"head_dim": 32, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0},
    "gemma3": {"head_dim": 32},
    "glm4": {"head_dim": 32},
    "olmo2": {"hidden_size": 128},
    "olmo3": {"hidden_size": 128},
    "cohere2": {"hidden_size": 128},
    "exaone4": {"hidden_size": 128},
    "youtu": {
        **{"hidden_size": 128, "attention_bias": True, "q_lora_rank": 32, "kv_lora_rank": 48},
        **{"qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16},
    },
    "qwen3_5": {"hidden_size": 128, "head_dim": 32, "linear_value_head_dim": 16},
    "bamba": {"hidden_size": 128, "mamba_d_head": 64},
    "gemma": {"head_dim": 32},
    "glm": {"head_dim": 32},
    "ernie": {"head_dim": 32},
    "falcon_h1": {"hidden_size": 128, "mamba_d_head": 24},
    "gpt2": {"n_embd": 128, "scale_attn_by_inverse_layer_idx": True},
    "opt": OPT,
    "bert": {"hidden_size": 128},
    "xlm_roberta": {"hidden_size": 128},
    "distilbert": {"dim": 128},
    "modern_bert": {"hidden_size": 128},
    "embedding_gemma": {"head_dim": 32},
}
IN_FLOAT32 = (
    *("llama", "qwen2", "phi3", "stablelm", "gemma2", "olmo2", "youtu", "qwen3_5", "bamba", "falcon_h1"),
    *("gpt2", "bert", "modern_bert"),
)
"""Those between them have every kind of record."""


def run(folder: Path, dtype: str = "bfloat16", **changes: str) -> tuple[Driver, list[torch.Tensor]]:
    """Prompts of several lengths, in chunks, and what follows them. The logits of every sequence."""
    sizes = {"block_size": 16, "num_blocks": 200, "max_num_seqs": 8, "budget": 40}
    driver = Driver(folder, dtype=dtype, **sizes, **changes)
    sequences = [
        driver.add([3 + (number + i) % 200 for i in range(1 + 9 * number)], 6)[0] for number in range(6)
    ]
    driver.run()
    return driver, [torch.stack(sequence.logits) for sequence in sequences]


@pytest.mark.parametrize(
    ("family", "dtype", "quantization"),
    [
        *((family, "bfloat16", "") for family in FAMILIES),
        *((family, "float32", "") for family in IN_FLOAT32),
        *((family, "bfloat16", "int8") for family in ("llama", "gemma2", "gpt2", "youtu")),
        *((family, "bfloat16", "int4") for family in ("llama", "gpt2")),
    ],
)
def test_the_same_bits(
    family: str, dtype: str, quantization: str, checkpoint: Checkpoints, monkeypatch: pytest.MonkeyPatch
):
    folder = checkpoint(family, **FAMILIES[family])
    compare(folder, monkeypatch, dtype, quantization)


@pytest.mark.parametrize(("dtype", "quantization"), [("bfloat16", ""), ("float32", ""), ("bfloat16", "int4")])
def test_products_of_several_leaves(
    dtype: str,
    quantization: str,
    checkpoint: Checkpoints,
    short_leaves: None,
    monkeypatch: pytest.MonkeyPatch,
):
    """Inputs of o_proj and down_proj are 2 and 4 leaves, those of other matrices are one."""
    folder = checkpoint("llama", head_dim=128, intermediate_size=1024, mlp_bias=True)
    driver, _ = run(folder, dtype, quantization=quantization)
    model = driver.runner.backend.model
    assert isinstance(model, FusedDecoder)
    records = model.programs[True].program.records
    products = records[:, ProgramRecord.word("grain")] & 0xFFFFFFFF == 0
    depths = records[:, ProductRecord.word("depth")] >> 32  # the upper half of a word
    assert set(depths[products].tolist()) == {0, 1, 2}
    compare(folder, monkeypatch, dtype, quantization)


def test_norms_behind_each_part(checkpoint: Checkpoints, monkeypatch: pytest.MonkeyPatch):
    folder = checkpoint("opt", do_layer_norm_before=False, **OPT)
    for dtype in ("bfloat16", "float32"):
        with monkeypatch.context() as patch:
            compare(folder, patch, dtype)


def compare(folder: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, quantization: str = "") -> None:
    """Raises AssertionError unless logits have the same bits in one call and layer by layer."""
    driver, logits = run(folder, dtype, quantization=quantization)
    model = driver.runner.backend.model
    assert isinstance(model, FusedDecoder)
    monkeypatch.setattr(cpu_weights, "fuse", lambda model, *_: model)
    layered, expected = run(folder, dtype, quantization=quantization)
    assert isinstance(layered.runner.backend.model, Decoder)
    for one, other in zip(logits, expected, strict=True):
        assert torch.equal(one, other)


def test_steps_of_as_many_tokens_return_the_same_tensor(checkpoint: Checkpoints):
    """The first rows of what the program computes, without a view per step."""
    driver, _ = run(checkpoint("llama", head_dim=32))
    model = driver.runner.backend.model
    assert isinstance(model, FusedDecoder)
    program = model.programs[True]
    one, three = program.first_rows(1), program.first_rows(3)
    assert program.first_rows(3) is three and torch.equal(program.first_rows(1), one)
    assert one.shape == (1, program.hidden.shape[1]) and three.shape == (3, program.hidden.shape[1])
    assert one.data_ptr() == three.data_ptr() == program.hidden.data_ptr()


def test_a_late_thread_does_not_write_into_the_cache(checkpoint: Checkpoints):
    """A thread that lost its core may compute units of a repeatable record after its inputs have changed:
    what a later step reads must not come from one."""
    driver, _ = run(checkpoint("llama", head_dim=32))
    model = driver.runner.backend.model
    assert isinstance(model, FusedDecoder)
    records = model.programs[True].program.records
    stores = records[:, ProgramRecord.word("operation")] == model._blocks.store
    repeatable = records[:, ProgramRecord.word("repeatable")] >> 32 != 0  # the upper half of a word
    assert stores.any() and repeatable.any()
    assert not (stores & repeatable).any()


def test_a_row_of_several_parts(checkpoint: Checkpoints, monkeypatch: pytest.MonkeyPatch):
    """A long row that decodes alone is split for attention: the same bits in one call, layer by layer, and
    after a prompt that came in pieces."""
    folder = checkpoint("llama", head_dim=32, max_position_embeddings=1024)
    sizes = {"block_size": 16, "num_blocks": 100, "max_num_seqs": 2}

    def logits(budget: int) -> torch.Tensor:
        driver = Driver(folder, dtype="bfloat16", budget=budget, **sizes)
        sequence = driver.add([3 + i % 200 for i in range(509)], 6)[0]
        driver.run()
        return torch.stack(sequence.logits)

    expected = logits(600)
    assert torch.equal(logits(100), expected)
    monkeypatch.setattr(cpu_weights, "fuse", lambda model, *_: model)
    assert torch.equal(logits(600), expected)


def test_logits_are_part_of_the_call(checkpoint: Checkpoints, monkeypatch: pytest.MonkeyPatch):
    """Of steps that decode, and of those with prompts in them, of few tokens and of many: the head is asked
    where a program is recorded, with the first step, for as many tokens as may be sampled from in one."""
    folder = checkpoint("llama", head_dim=32, max_position_embeddings=256)
    driver = Driver(folder, dtype="bfloat16", block_size=16, num_blocks=400, max_num_seqs=80)
    model, made = driver.runner.backend.model, []
    head, product = model.model.head, model.model.head.logits

    def logits(hidden: torch.Tensor, adapters: object = None) -> torch.Tensor:
        made.append(len(hidden))
        return product(hidden)

    monkeypatch.setattr(head, "logits", logits)
    model.programs.clear()  # what loading has made
    driver.add([3, 4, 5], 5)
    driver.add([6, 7], 4)
    driver.run()
    assert made == [128, 64]
    driver.add([6] * 80, 2)
    driver.run()
    for number in range(70):
        driver.add([3 + number], 3)
    driver.run()
    assert made == [128, 64], "neither a prompt of many tokens nor 70 rows waits for a recording"
    assert model.programs[False].computed.most_logits == 128


def test_many_rows(checkpoint: Checkpoints, monkeypatch: pytest.MonkeyPatch):
    """More than a program of few tokens has, some of them prompts: the bits of logits and tokens are those
    of rows alone, and of a step layer by layer."""
    folder = checkpoint("llama", head_dim=32, max_position_embeddings=256)
    sizes = {"block_size": 16, "num_blocks": 400, "max_num_seqs": 80}

    def outputs(first: int, end: int) -> list[tuple[list[int], torch.Tensor]]:
        driver = Driver(folder, dtype="bfloat16", budget=100, **sizes)
        made = [driver.add([3 + number] * (1 + number % 5), 4)[0] for number in range(first, end)]
        driver.run()
        return [(sequence.output, torch.stack(sequence.logits)) for sequence in made]

    found, (alone,) = outputs(0, 75), outputs(66, 67)
    monkeypatch.setattr(cpu_weights, "fuse", lambda model, *_: model)
    for ours, theirs in zip([found[66], *found], [alone, *outputs(0, 75)], strict=True):
        assert ours[0] == theirs[0] and torch.equal(ours[1], theirs[1])


def test_rows_that_share_a_prompt(checkpoint: Checkpoints, monkeypatch: pytest.MonkeyPatch):
    """Two of them are one item of attention: the same bits as alone, and layer by layer."""
    changes = {"num_attention_heads": 6, "max_position_embeddings": 1024}
    folder = checkpoint("llama", head_dim=64, **changes)
    sizes = {"block_size": 16, "num_blocks": 400, "max_num_seqs": 30}
    run, joined = StepProgram.run, []

    def watched(program: StepProgram, batch: InputBatch) -> None:
        (planned,) = batch.attention.values()
        assert isinstance(planned, BlockAttentionPlan)
        plan = planned.plan
        joined.append(len(plan.items) - int(plan.made[0]))
        run(program, batch)

    def logits(n: int) -> list[torch.Tensor]:
        driver = Driver(folder, dtype="bfloat16", **sizes)
        driver.add([3 + i % 200 for i in range(507)], 12, n=n)
        sequences = driver.add([3 + i % 200 for i in range(70)], 12, n=n)
        driver.run()
        return [torch.stack(sequence.logits) for sequence in sequences]

    (expected,) = logits(1)
    monkeypatch.setattr(StepProgram, "run", watched)
    assert all(torch.equal(one, expected) for one in logits(15))
    assert max(joined) == 14, "seven pairs with each prompt"
    monkeypatch.setattr(cpu_weights, "fuse", lambda model, *_: model)
    assert all(torch.equal(one, expected) for one in logits(15))


@pytest.mark.parametrize("memory", ["enough", "none at first"])
def test_a_longer_step_makes_a_larger_program(
    memory: str, checkpoint: Checkpoints, monkeypatch: pytest.MonkeyPatch
):
    """Longer than what is recorded with the first step, or where memory did not suffice for that: sizes are
    powers of two, so that few are made."""
    folder = checkpoint("llama", head_dim=32, max_position_embeddings=256)
    monkeypatch.setattr(decoder, "LONG", 100)
    driver = Driver(folder, dtype="bfloat16", block_size=16, num_blocks=200, max_num_seqs=8)
    programs = driver.runner.backend.model.programs
    programs.clear()  # what loading has made
    record, failures = decoder.record, [MemoryError()] * (memory != "enough")

    def record_if_it_fits(*args: object, **options: object) -> torch.Tensor:
        if failures:
            raise failures.pop()
        return record(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(decoder, "record", record_if_it_fits)
    sizes = []
    for length in (3, 2, 70, 130, 60):
        driver.add([5] * length, 2)
        driver.run()
        sizes.append({few: program.most_tokens for few, program in programs.items()})
    first = {True: 64} if memory != "enough" else {True: 64, False: 128}
    assert sizes[:3] == [first, first, {True: 64, False: 128}]
    assert sizes[3:] == [{True: 64, False: 256}, {True: 64, False: 256}]


def test_sizes_that_no_kernel_has(checkpoint: Checkpoints):
    """Layer by layer then, with torch where it must."""
    driver = Driver(checkpoint("llama"), dtype="bfloat16")  # heads of 12 values, blocks of 4 tokens
    driver.add([3, 4, 5], 3)
    driver.run()
    assert isinstance(driver.runner.backend.model, Decoder)


def test_the_log_names_the_layer_that_has_no_program(
    checkpoint: Checkpoints, caplog: pytest.LogCaptureFixture
):
    """An activation without a compiled kernel."""
    part = "blocks.0.mlp.activation (GatedActivation)"
    folder = checkpoint("llama", hidden_act="relu", head_dim=32)
    with caplog.at_level("INFO", logger="worker.cpu.fused_decoder.decoder"):
        driver = Driver(folder, dtype="bfloat16", block_size=16, num_blocks=20)
    assert isinstance(driver.runner.backend.model, Decoder)
    assert f"computed layer by layer: {part}" in caplog.text
