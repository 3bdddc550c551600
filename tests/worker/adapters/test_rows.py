"""Rows with adapters on a CPU: the same bits alone and beside any others, in one call and layer by layer."""

import gc
import hashlib
import json
import random
import shutil
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from kernels.cpu import weight_forms
from kernels.cpu.instruction_sets import target_set
from kernels.cpu.matmul.compact.weight import CompactWeight
from kernels.cpu.matmul.packed import PackedWeight, pack_weight
from pagewire.internal.v1 import worker_pb2
from tests.logprob_columns import top
from tests.worker.fakes import DrivenSequence, Driver
from worker.adapters.adapter import Adapter, Delta, LayerDeltas
from worker.adapters.rows import AdapterRows
from worker.adapters.store import takes_adapter
from worker.cpu import weights as cpu_weights
from worker.cpu.fused_decoder.decoder import FusedDecoder
from worker.layers.base import Layer
from worker.layers.linear import ColumnLinear
from worker.models.base import LanguageModel
from worker.step.rows import PlanError

pytestmark = pytest.mark.cpu_kernels
Checkpoints = Callable[..., Path]
SIZES = {"block_size": 16, "num_blocks": 200, "max_num_seqs": 12}


def digest_of(number: int) -> bytes:
    return hashlib.blake2b(bytes([number]), digest_size=32).digest()


DIGESTS = [digest_of(number) for number in range(4)]


def synthetic(
    model: LanguageModel,
    number: int,
    ranks: Sequence[int] = (8, 12),
    kinds: tuple[type[Layer], ...] = (Layer,),
) -> Adapter:
    """Random deltas of a part of the layers of some kinds, the first adapter's of all."""
    generator, choose = torch.Generator().manual_seed(number), random.Random(number)
    deltas: dict[Layer, LayerDeltas] = {}
    layers = [layer for layer in model.modules() if isinstance(layer, kinds) and takes_adapter(layer)]
    for layer in layers:
        parts = list[Delta | None]()
        for inputs, held in [(each.inputs, part) for each in layer.adapted_matrices for part in each.parts]:
            rank = choose.choice(ranks)
            a, b = (torch.randn(size, generator=generator) for size in ((rank, inputs), (held, rank)))
            delta = Delta(a.bfloat16() if number % 2 else a, b.bfloat16(), 0.1)
            parts.append(delta if number == 0 or choose.random() < 0.7 else None)
        deltas[layer] = tuple(parts)
    return Adapter(digest_of(number), max(ranks), (), "base", deltas)


def loaded(folder: Path, dtype: str = "bfloat16", **changes: object) -> Driver:
    """With four adapters."""
    driver = Driver(folder, dtype=dtype, **(SIZES | changes))
    for number in range(len(DIGESTS)):
        store(driver).add(synthetic(driver.runner.backend.model, number))
    return driver


def rows_of(driver: Driver) -> AdapterRows:
    adapters = driver.runner.backend.adapters
    assert adapters is not None
    return adapters


def store(driver: Driver):
    return rows_of(driver).store


def add(driver: Driver, number: int, owner: int | None, n: int = 1, start: int = 0) -> list[DrivenSequence]:
    """Prompts of different lengths. owner: the number of an adapter; None: none."""
    prompt = [3 + (7 * number + i) % 200 for i in range(3 + 9 * number)]
    return driver.add(prompt, 6, n=n, adapter=adapter_of(owner, start))


def adapter_of(owner: int | None, start: int = 0) -> worker_pb2.RowAdapter | None:
    return None if owner is None else worker_pb2.RowAdapter(digest=digest_of(owner), start=start)


OWNERS = (0, None, 1, 2, 0, 3)


def run(folder: Path, owners: Sequence[int | None] = OWNERS, **changes: object) -> list[torch.Tensor]:
    """The logits of every sequence."""
    driver = loaded(folder, **changes)
    sequences = [add(driver, number, owner)[0] for number, owner in enumerate(owners)]
    driver.run()
    return [torch.stack(sequence.logits) for sequence in sequences]


FAMILIES = {
    "llama": {"head_dim": 32, "attention_bias": True},
    "gemma3": {"head_dim": 32},
    "gpt2": {"n_embd": 128},
    "youtu": {
        **{"hidden_size": 128, "attention_bias": True, "q_lora_rank": 32, "kv_lora_rank": 48},
        **{"qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16},
    },
    "qwen3_5": {"hidden_size": 128, "head_dim": 32, "linear_value_head_dim": 16},
    "falcon_h1": {"hidden_size": 128, "mamba_d_head": 24},
    "qwen2_moe": {"hidden_size": 128, "moe_intermediate_size": 48, "shared_expert_intermediate_size": 48},
    "gpt_oss": {"head_dim": 32},
    "llama4": {"head_dim": 32, "attention_chunk_size": 20, "num_experts_per_tok": 2},
}
CASES = [
    *((family, "bfloat16", "") for family in FAMILIES),
    ("llama", "float32", ""),
    ("llama", "bfloat16", "int8"),
    ("llama", "bfloat16", "int4"),
    ("qwen2_moe", "float32", ""),
    ("qwen2_moe", "bfloat16", "int8"),
    ("gpt_oss", "bfloat16", "int4"),
]


@pytest.mark.parametrize(("family", "dtype", "quantization"), CASES)
def test_the_same_bits(
    family: str, dtype: str, quantization: str, checkpoint: Checkpoints, monkeypatch: pytest.MonkeyPatch
):
    """Beside rows with other adapters and without, alone, in chunks, and layer by layer; a row without one as
    where there are none."""
    folder = checkpoint(family, **FAMILIES[family])
    options = {"dtype": dtype, "quantization": quantization}
    together = run(folder, **options)
    chunked = run(folder, **options, budget=20)
    driver = loaded(folder, **options)
    assert isinstance(driver.runner.backend.model, FusedDecoder)
    for number, owner in enumerate(OWNERS):
        (sequence,) = add(driver, number, owner)
        driver.run()
        assert torch.equal(torch.stack(sequence.logits), together[number]), "alone"
        assert torch.equal(chunked[number], together[number]), "in chunks"
    plain = run(folder, [None] * len(OWNERS), **options)
    for owner, ours, theirs in zip(OWNERS, together, plain, strict=True):
        assert torch.equal(ours, theirs) == (owner is None)
    monkeypatch.setattr(cpu_weights, "fuse", lambda model, *_: model)
    for ours, theirs in zip(together, run(folder, **options), strict=True):
        assert torch.equal(ours, theirs), "layer by layer"


@pytest.mark.parametrize("quantization", ["", "int8", "int4"])
def test_beside_64_other_adapters(quantization: str, checkpoint: Checkpoints):
    """Ranks from 1 to 256, each of another one. All rows have the bits that they have alone, and the row
    without an adapter those of a worker that has loaded none."""
    folder = checkpoint("llama", head_dim=32)
    options = SIZES | {
        "dtype": "bfloat16",
        "quantization": quantization,
        "max_num_seqs": 66,
        "num_blocks": 400,
    }
    driver, owners = Driver(folder, **options), [None, *range(65)]
    for number in range(65):
        adapter = synthetic(driver.runner.backend.model, number, ranks=(1 + 255 * number // 64,))
        store(driver).add(adapter)
    together = [add(driver, number % 5, owner)[0] for number, owner in enumerate(owners)]
    driver.run()
    for number, owner in enumerate(owners):
        (alone,) = add(driver, number % 5, owner)
        driver.run()
        assert torch.equal(torch.stack(alone.logits), torch.stack(together[number].logits)), owner
    without = Driver(folder, **options)
    (plain,) = add(without, 0, None)
    without.run()
    assert torch.equal(torch.stack(plain.logits), torch.stack(together[0].logits))
    assert not torch.equal(torch.stack(together[5].logits), torch.stack(together[0].logits))


@pytest.mark.parametrize("family", ["llama", "qwen2_moe"])
def test_preempted_forked_and_repeated(family: str, checkpoint: Checkpoints):
    """A row that begins again, the copies of a row, and steps that repeat one another keep the adapter."""
    folder = checkpoint(family, **FAMILIES[family])
    expected = run(folder)
    driver = loaded(folder)
    forked = add(driver, 2, 1, n=3)
    (preempted,) = add(driver, 4, 0)
    for _ in range(3):
        driver.step()
    driver.preempt(preempted)
    driver.run()
    assert torch.equal(torch.stack(preempted.logits), expected[4])
    assert all(torch.equal(torch.stack(sequence.logits), expected[2]) for sequence in forked)
    for tokens in (True, False):
        driver = loaded(folder, record=not tokens)
        outputs = [add(driver, number, owner)[0] for number, owner in enumerate(OWNERS)]
        driver.run()
        found = [sequence.output for sequence in outputs]
        assert found == [logits.argmax(-1).tolist() for logits in expected]


def test_drafts_are_not_adapted_and_change_nothing(checkpoint: Checkpoints):
    folder, outputs = checkpoint("llama", head_dim=32), []
    for changes in ({}, {"speculation": "lookup:tokens=3", "room": 3}):
        driver = loaded(folder, **changes)
        sequences = [driver.add([5, 6, 7, 8] * 5, 40, adapter=adapter_of(owner))[0] for owner in OWNERS]
        driver.run()
        outputs.append([sequence.output for sequence in sequences])
    assert outputs[0] == outputs[1] and driver.num_drafted > 0


def test_positions_before_the_start_are_the_base_models(checkpoint: Checkpoints):
    """They may be those of another row's blocks; behind the start, a prompt in chunks has the same bits."""
    folder, logits = checkpoint("llama", head_dim=32), dict[tuple[int, int], torch.Tensor]()
    for budget in (4096, 7):
        for start in (0, 8, 29):
            driver = loaded(folder, budget=budget)
            (sequence,) = add(driver, 3, 0, start=start)
            driver.run()
            logits[budget, start] = torch.stack(sequence.logits)
    for start in (0, 8, 29):
        assert torch.equal(logits[4096, start], logits[7, start])
    assert not torch.equal(logits[7, 0], logits[7, 8])
    driver = loaded(folder)
    (base,) = add(driver, 3, None)
    driver.step()
    (adapted,) = add(driver, 3, 0, start=16)
    driver.share(base, adapted, 1)
    driver.run()
    driver = loaded(folder)
    (alone,) = add(driver, 3, 0, start=16)
    driver.run()
    assert torch.equal(torch.stack(adapted.logits), torch.stack(alone.logits))


@pytest.mark.parametrize("part", ["head", "lookup"])
@pytest.mark.parametrize("tied", [False, True])
def test_heads_and_embeddings(part: str, tied: bool, checkpoint: Checkpoints):
    """Each by itself, also where they have one table: prompts' scores and sampled tokens, alone, beside rows
    without adapters, and in chunks. What sees only the head leaves hidden states as they are."""
    folder, scores = checkpoint("llama", head_dim=32, tie_word_embeddings=tied), list[object]()
    for owner, others, budget in ((0, 0, 4096), (0, 3, 4096), (0, 3, 20), (None, 0, 4096)):
        driver = Driver(folder, dtype="bfloat16", budget=budget, record=False, **SIZES)
        model = driver.runner.backend.model.model
        assert (model.head is model.embedding) == tied
        table = model.head if part == "head" else model.embedding
        whole = synthetic(model, 0)
        head, lookup = whole.deltas[table]
        parts = (head, None) if part == "head" else (None, lookup)
        store(driver).add(replace(whole, deltas={table: parts}))
        for number in range(others):
            add(driver, number, None)
        wants = {"wants": top(2), "prompt_wants": top(2), "adapter": adapter_of(owner)}
        (sequence,) = driver.add(range(3, 40), 6, **wants)
        driver.run()
        scores.append((sequence.prompt_scores, sequence.scores, sequence.output))
    alone, beside, chunked, plain = scores
    assert alone == beside == chunked
    assert all(one != other for one, other in zip(alone, plain, strict=True))


def test_weights_of_12_bits(checkpoint: Checkpoints, monkeypatch: pytest.MonkeyPatch):
    """They give the bits of those of 16."""
    if not (chosen := target_set()) or not chosen.compact:
        pytest.skip("this CPU unpacks 12 bits too slowly")
    folder, found = checkpoint("llama", head_dim=32), list[list[torch.Tensor]]()
    for form in (CompactWeight, PackedWeight):
        model = loaded(folder).runner.backend.model.model
        assert {type(each.packed) for each in model.modules() if isinstance(each, ColumnLinear)} == {form}
        found.append(run(folder))
        monkeypatch.setattr(weight_forms, "compact_weight", pack_weight)
    assert all(torch.equal(*each) for each in zip(*found, strict=True))


def test_a_dropped_adapter_stays_for_its_rows(checkpoint: Checkpoints):
    """Another one that is loaded meanwhile changes no bit of a row that runs."""
    folder = checkpoint("llama", head_dim=32)
    expected = run(folder, [0])[0]
    driver = loaded(folder)
    (sequence,) = add(driver, 0, 0)
    driver.step()
    store(driver).drop(DIGESTS[0])
    store(driver).add(replace(synthetic(driver.runner.backend.model, 3), digest=DIGESTS[0]))
    driver.run()
    assert torch.equal(torch.stack(sequence.logits), expected)


def test_an_adapter_whose_sums_overflow_changes_no_other_row(checkpoint: Checkpoints):
    """Its values are finite. Its own row has no logits."""
    folder, huge, logits = checkpoint("llama", head_dim=32), b"huge".ljust(32), list[list[torch.Tensor]]()
    for owners in ((0, huge, None), (0, 1, None)):
        driver = loaded(folder)
        adapter = synthetic(driver.runner.backend.model, 0, kinds=(ColumnLinear,))
        deltas = {
            layer: tuple(each and replace(each, a=torch.full_like(each.a, 3e38)) for each in parts)
            for layer, parts in adapter.deltas.items()
        }
        store(driver).add(replace(adapter, digest=huge, deltas=deltas))
        adapters = [
            worker_pb2.RowAdapter(digest=each) if isinstance(each, bytes) else adapter_of(each)
            for each in owners
        ]
        rows = [driver.add([3 + i, 50, 60 + i], 1, adapter=each)[0] for i, each in enumerate(adapters)]
        driver.run()
        logits.append([row.logits[0] for row in rows])
    beside_huge, alone = logits
    assert beside_huge[1].isnan().any() and alone[1].isfinite().all()
    assert all(torch.equal(beside_huge[place], alone[place]) for place in (0, 2))


def test_nothing_keeps_a_dropped_adapter(checkpoint: Checkpoints):
    """Once its rows have ended, and a step has none of them."""
    driver = loaded(checkpoint("llama", head_dim=32))
    weights = weakref.ref(store(driver).find(DIGESTS[0]))
    add(driver, 0, 0)
    driver.step()
    store(driver).drop(DIGESTS[0])
    driver.run()
    add(driver, 0, None)
    driver.run()
    gc.collect()
    assert weights() is None


@pytest.mark.parametrize(
    ("adapter", "message"),
    [
        (worker_pb2.RowAdapter(digest=b"x" * 32), "which is not loaded"),
        (worker_pb2.RowAdapter(digest=DIGESTS[0], start=3), "starts at 3, behind the prompt"),
    ],
)
def test_a_row_whose_adapter_does_not_fit_is_refused(
    adapter: worker_pb2.RowAdapter, message: str, checkpoint: Checkpoints
):
    driver = loaded(checkpoint("llama", head_dim=32))
    driver.add([3, 4, 5], 2, adapter=adapter)
    with pytest.raises(PlanError, match=message):
        driver.step()


def test_files_of_an_adapter_and_merged_weights(checkpoint: Checkpoints, tmp_path: Path):
    """A folder as peft writes it, loaded beside the steps, gives what a checkpoint with merged weights gives,
    but for the roundings of float32."""
    folder, merged, written = checkpoint("llama", head_dim=32), tmp_path / "merged", tmp_path / "adapter"
    shutil.copytree(folder, merged)
    written.mkdir()
    weights = load_file(folder / "model.safetensors")
    generator, tensors = torch.Generator().manual_seed(5), dict[str, torch.Tensor]()
    for module in ("self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.down_proj"):
        name = f"model.layers.0.{module}"
        weight = weights[f"{name}.weight"]
        a = torch.randn(4, weight.shape[1], generator=generator) / 8
        b = torch.randn(weight.shape[0], 4, generator=generator) / 8
        tensors |= {
            f"base_model.model.{name}.lora_A.weight": a,
            f"base_model.model.{name}.lora_B.weight": b,
        }
        weights[f"{name}.weight"] = (weight.float() + 2 * b @ a).to(weight.dtype)
    save_file(weights, merged / "model.safetensors", {"format": "pt"})
    save_file(tensors, written / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}
    (written / "adapter_config.json").write_text(json.dumps(config))
    driver = Driver(folder, dtype="float32", **SIZES)
    order = worker_pb2.LoadAdapter(number=1, source=str(written), max_bytes=1 << 20)
    answer = store(driver).load(order).result()
    assert not answer.problem and driver.runner.takes_adapters  # type: ignore[attr-defined]
    assert list(answer.modules) == ["down_proj", "o_proj", "q_proj", "v_proj"]
    adapter, logits = worker_pb2.RowAdapter(digest=answer.digest), []
    for each, of_row in ((driver, adapter), (Driver(merged, dtype="float32", **SIZES), None), (driver, None)):
        (sequence,) = each.add(range(3, 30), 4, adapter=of_row)
        each.run()
        logits.append(torch.stack(sequence.logits))
    assert (logits[0] - logits[1]).abs().max() < 1e-4 * logits[1].abs().max()
    assert not torch.allclose(logits[0], logits[2], rtol=0.01)
