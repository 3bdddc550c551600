"""Models on our CPU kernels against the same models on torch; when which is chosen."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch.overrides import TorchFunctionMode

from kernels.cpu.instruction_sets import selected_set
from pagewire.checkpoints.paths import checkpoint_folder
from pagewire.config import WorkerConfig
from pagewire.errors import StartupError
from tests.demo_model.test_demo_model import BEGINNINGS, BOS, COMPLETIONS
from tests.worker.fakes import Driver
from worker.cpu import kernel_selection as cpu_kernels
from worker.cpu import weights
from worker.cpu.backend import CpuBackend
from worker.executor.executor import StepExecutor
from worker.load import load
from worker.platforms.cpu import CpuPlatform

Checkpoints = Callable[..., Path]
FAMILIES = {
    "llama": {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    "qwen3": {"vocab_size": 319},
    "gemma2": {"head_dim": 32, "attn_logit_softcapping": 2.0},
    "olmo2": {},
    "cohere2": {},
    "glm4": {},
    "opt": {"word_embed_proj_dim": 32, "do_layer_norm_before": False},
    "gpt2": {},
}


@pytest.fixture
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Driver]]:
    """Makes drivers whose runners use torch alone."""

    def make(folder: Path, **changes: object) -> Driver:
        with monkeypatch.context() as patch:
            patch.setattr(cpu_kernels, "why_not", lambda: "a test")
            patch.setattr(weights, "compute_dtype", lambda dtype: dtype)  # rounds to bfloat16 where ours does
            return Driver(folder, **changes)  # type: ignore[arg-type]

    yield make


def prompts(count: int) -> list[list[int]]:
    """Of ascending lengths."""
    return [[3 + (7 * i + 3 * j) % 300 for j in range(1 + 5 * i)] for i in range(count)]


@pytest.mark.cpu_kernels
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_torch(
    family: str, checkpoint: Checkpoints, without_kernels: Callable[..., Driver]
):
    """Both round to bfloat16 between layers, at different sums: 3 % of the largest logit, at the tokens
    of the prompts, so that one other choice does not make all that follows another text."""
    folder = checkpoint(family, **FAMILIES[family])
    ours, theirs = Driver(folder, dtype="bfloat16"), without_kernels(folder, dtype="bfloat16")
    for driver in (ours, theirs):
        for prompt in prompts(6):
            driver.add(prompt, 1)
    ran = list(ours.running), list(theirs.running)
    ours.run()
    theirs.run()
    for one, other in zip(*ran, strict=True):
        assert one.logits[0].dtype == torch.float32
        assert (one.logits[0] - other.logits[0]).abs().max() < 0.03 * other.logits[0].abs().max()


@pytest.mark.cpu_kernels
def test_the_demo_model_knows_its_facts():
    folder = checkpoint_folder("demo")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    facts = [*COMPLETIONS, *BEGINNINGS]
    driver = Driver(folder)
    ran = []
    for prompt, continuation in facts:
        ids = tokenizer.encode(prompt, add_special_tokens=False).ids
        expected = tokenizer.encode(prompt + continuation, add_special_tokens=False).ids
        ran.append(driver.add([BOS, *ids], len(expected) - len(ids))[0])
    driver.run()
    for sequence, (_, continuation) in zip(ran, facts, strict=True):
        assert tokenizer.decode(sequence.output).startswith(continuation)


@pytest.mark.cpu_kernels
@pytest.mark.parametrize("tied", [True, False])
def test_memory_does_not_double(tied: bool, checkpoint: Checkpoints):
    """The plain weights are gone; an embedding that only looks up stays as it is."""
    model = Driver(checkpoint("llama", tie_word_embeddings=tied), dtype="bfloat16").runner.backend.model
    names = [name for name, parameter in model.named_parameters() if parameter.dim() == 2]
    assert names == ([] if tied else ["embedding.method.weight"])
    assert model.head.packed is not None


def runner_log(
    folder: Path, dtype: str, caplog: pytest.LogCaptureFixture, lines: int = 1
) -> tuple[StepExecutor[CpuBackend], str]:
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="worker.cpu.kernel_selection"):
        runner = Driver(folder, dtype=dtype).runner
    assert len([record for record in caplog.records if record.name == "worker.cpu.kernel_selection"]) == lines
    return runner, caplog.text


def test_what_is_chosen_is_said(
    checkpoint: Checkpoints, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """One line, and one more where weights are widened, since no kernel multiplies them in 16 bits."""
    folder = checkpoint("llama")
    monkeypatch.setattr(cpu_kernels, "why_not", lambda: "no such CPU")
    for dtype in ("bfloat16", "float16"):
        runner, text = runner_log(folder, dtype, caplog, lines=2)
        assert f"weights in {dtype} are widened to float32" in text and "no such CPU" in text
        assert runner.backend.model.head.packed is None and runner.backend.cache.layout.dtype == torch.float32
        assert {parameter.dtype for parameter in runner.backend.model.parameters()} == {torch.float32}


@pytest.mark.cpu_kernels
def test_float16_is_said_to_be_computed_in_float32(checkpoint: Checkpoints, caplog: pytest.LogCaptureFixture):
    _, text = runner_log(checkpoint("llama"), "float16", caplog, lines=2)
    assert "float16 is computed in float32" in text


def test_torch_multiplies_nothing_in_16_bits(checkpoint: Checkpoints, monkeypatch: pytest.MonkeyPatch):
    """Whatever the dtype and the shape: neither products nor attention."""
    seen: set[torch.dtype] = set()

    class Products(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            if function in (F.linear, F.scaled_dot_product_attention, torch.matmul, torch.einsum):
                seen.add(args[0].dtype)
            return function(*args, **(kwargs or {}))

    for why_not in (cpu_kernels.why_not, lambda: "a test"):
        monkeypatch.setattr(cpu_kernels, "why_not", why_not)
        for dtype in ("bfloat16", "float16", "float32"):
            driver = Driver(checkpoint("llama"), dtype=dtype)  # heads of 12 values: attention by torch
            driver.add([3, 4, 5, 6, 7], 3)
            with Products():
                driver.run()
    assert seen == {torch.float32}


@pytest.mark.cpu_kernels
def test_progress_is_told(checkpoint: Checkpoints, caplog: pytest.LogCaptureFixture):
    from tests.worker.fakes import initialize

    told: list[tuple[str, float]] = []
    command = initialize(checkpoint("llama"), dtype="bfloat16")
    load(command, CpuPlatform(WorkerConfig(threads=1)), lambda what, part: told.append((what, part)))
    fractions = [fraction for what, fraction in told if what == "kernels"]
    assert fractions[0] == 0 and fractions[-1] == 1 and fractions == sorted(fractions)
    _, text = runner_log(checkpoint("llama"), "bfloat16", caplog)
    chosen = selected_set()
    assert chosen is not None and chosen.title in text
    assert "attention by torch: block size 4, head size 12" in text


INVARIANT: dict[str, dict[str, object]] = {
    "llama": {"head_dim": 32, "max_position_embeddings": 256},
    "qwen2": {
        "hidden_size": 128,
        "tie_word_embeddings": True,
        "use_sliding_window": True,
        "sliding_window": 20,
        "max_window_layers": 1,
    },
    "qwen3": {"head_dim": 32, "attention_bias": True},
    "gemma2": {"head_dim": 32, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0},
    "olmo3": {"hidden_size": 128, "sliding_window": 20},
    "cohere2": {"hidden_size": 128, "sliding_window": 20},
    "gpt2": {"n_embd": 128, "n_positions": 256},
}
TALK = [3 + (11 * i) % 250 for i in range(75)]


def logits_of(driver: Driver, prompt: list[int], count: int, delivered: list[int]) -> torch.Tensor:
    """[count, V]: those of the tokens that are made after `delivered`."""
    sequence = driver.add(prompt, len(delivered) + count, delivered=delivered)[0]
    driver.run()
    return torch.stack(sequence.logits)


@pytest.mark.cpu_kernels
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_attention_by_torch_is_exact_too(dtype: str, checkpoint: Checkpoints):
    """Blocks of 8 fit no kernel: alone, in a crowd, in chunks, and recomputed. With a window in one layer."""
    folder = checkpoint("qwen2", **INVARIANT["qwen2"])

    def drive(**changes: int) -> Driver:
        return Driver(folder, dtype=dtype, block_size=8, num_blocks=400, max_num_seqs=17, **changes)

    alone = drive()
    assert alone.runner.backend.plan_check is None, "torch attends"
    sequence = alone.add(TALK, 5)[0]
    alone.run()
    expected, tokens = torch.stack(sequence.logits), sequence.output
    crowd = drive(budget=4096)
    for number in range(15):
        crowd.add([3 + (number + i) % 200 for i in range(1 + 4 * number)], 5)
    assert torch.equal(logits_of(crowd, TALK, 5, []), expected)
    assert torch.equal(logits_of(drive(budget=13), TALK, 5, []), expected)
    assert torch.equal(logits_of(drive(budget=31), TALK, 3, tokens[:2]), expected[2:])


LEAVES = {"head_dim": 128, "intermediate_size": 1024, "mlp_bias": True}
"""Inputs of o_proj and down_proj are 2 and 4 short leaves."""
ODD = {"hidden_size": 72, "intermediate_size": 100, "head_dim": 24, "num_key_value_heads": 1}


@pytest.mark.cpu_kernels
@pytest.mark.parametrize(
    ("family", "quantization", "dtype", "changes"),
    [
        *((family, "", "bfloat16", INVARIANT[family]) for family in INVARIANT),
        ("qwen2", "int8", "bfloat16", INVARIANT["qwen2"]),
        ("qwen2", "int4", "bfloat16", INVARIANT["qwen2"]),
        *((family, "", "float32", INVARIANT[family]) for family in ("llama", "qwen2", "gpt2")),
        ("llama", "", "float32", ODD),
        ("llama", "", "bfloat16", ODD),
        ("llama", "", "float16", ODD),
        *(("llama", quantization, "bfloat16", LEAVES) for quantization in ("", "int4")),
    ],
    ids=[
        *INVARIANT,
        "qwen2-int8",
        "qwen2-int4",
        "llama-f32",
        "qwen2-f32",
        "gpt2-f32",
        "odd-f32",
        "odd",
        "odd-f16",
        "leaves",
        "leaves-int4",
    ],
)
def test_logits_are_bitwise_the_same_in_any_company(
    family: str,
    quantization: str,
    dtype: str,
    changes: dict[str, object],
    checkpoint: Checkpoints,
    short_leaves: None,
):
    """Alone, in a crowd of 32, in chunks of odd sizes, recomputed after a preemption, in other blocks."""
    folder = checkpoint(family, **changes)

    def drive(**changes: int) -> Driver:
        sizes = {"block_size": 16, "num_blocks": 400, "max_num_seqs": 33}
        return Driver(folder, dtype=dtype, quantization=quantization, **sizes, **changes)

    alone = drive()
    assert alone.runner.backend.plan_check is not None, "compiled kernels are in use"
    sequence = alone.add(TALK, 12)[0]
    alone.run()
    expected, tokens = torch.stack(sequence.logits), sequence.output

    for budget, shuffle in ((4096, 1), (47, 2)):
        crowd = drive(budget=budget, shuffle=shuffle)
        for number in range(31):
            crowd.add([3 + (number + i) % 200 for i in range(1 + 3 * number)], 12 + number % 5)
        assert torch.equal(logits_of(crowd, TALK, 12, []), expected)
    for budget in (1, 13, 50):
        assert torch.equal(logits_of(drive(budget=budget, shuffle=budget), TALK, 12, []), expected)
    for kept in (1, 11):
        preempted = drive(shuffle=kept, budget=31 + kept)
        assert torch.equal(logits_of(preempted, TALK, 12 - kept, tokens[:kept]), expected[kept:])


@pytest.mark.cpu_kernels
@pytest.mark.parametrize("family", FAMILIES)
def test_int8_is_near_bfloat16(family: str, checkpoint: Checkpoints):
    """Logits of small random models: within a fifth of the largest one for most prompts, within a half for
    all (a soft cap of scores lets one prompt in six lose more); a large model loses a tenth of that. And
    other ones, or nothing was quantized."""
    folder = checkpoint(family, **FAMILIES[family])
    plain, quantized = (Driver(folder, dtype="bfloat16", quantization=kind) for kind in ("", "int8"))
    for driver in (plain, quantized):
        for prompt in prompts(6):
            driver.add(prompt, 1)
    ran = list(plain.running), list(quantized.running)
    plain.run()
    quantized.run()
    lost = sorted(
        float((one.logits[0] - other.logits[0]).abs().max() / one.logits[0].abs().max())
        for one, other in zip(*ran, strict=True)
    )
    assert lost[0] > 0 and lost[len(lost) // 2] < 0.2 and lost[-1] < 0.5


@pytest.mark.parametrize(
    ("dtype", "reason"), [("float32", "these are float32"), ("bfloat16", "the CPU lacks AVX2")]
)
def test_int8_where_it_cannot_be(
    dtype: str, reason: str, checkpoint: Checkpoints, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cpu_kernels, "why_not", lambda: "the CPU lacks AVX2")
    with pytest.raises(StartupError, match=reason) as refused:
        Driver(checkpoint("llama"), dtype=dtype, quantization="int8")
    assert "--quantization" in refused.value.todo
