"""Tensor parallelism is a matter of sizes: what two or four ranks compute has the bits of one."""

import hashlib
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pagewire.errors import StartupError
from tests.checkpoints import ENCODERS as ENCODER_CHECKPOINTS
from tests.checkpoints import FAMILIES as CHECKPOINTS
from tests.checkpoints import architecture
from tests.worker.ranks import (
    LEAVES,
    SilentRank,
    chain,
    load_rank,
    multiply_by_ranges,
    on_ranks,
    run_model,
    tree,
)
from tests.worker.weights.formats import quantizers
from tests.worker.weights.formats.quantizers import Quantizer, quantize_checkpoint
from worker.adapters.adapter import Adapter, AdapterError
from worker.adapters.config import AdapterConfig
from worker.adapters.placement import PREFIX, place_tensors
from worker.adapters.store import AdapterStore
from worker.cpu.weights import CPU, OwnBits
from worker.families.registry import DECODERS, read_model_config
from worker.layers.linear import RowLinear
from worker.layers.matrix import GroupedMethod, Matrix
from worker.layers.mlp import GatedMLP
from worker.models.base import LanguageModel
from worker.parallel import ONE_RANK, ParallelGroup, Placement, Stage, divide_layers
from worker.startup.checks import check_split
from worker.weights.checkpoint import Checkpoint

Checkpoints = Callable[..., Path]
SIZES = 2, 4
OF_GROUPS: dict[str, object] = {
    **{"hidden_size": 64, "intermediate_size": 128, "head_dim": 16, "num_hidden_layers": 1}
}
OF_ARCHITECTURE = {architecture(name): name for name in (*CHECKPOINTS, *ENCODER_CHECKPOINTS)}
"""The checkpoint of the tests for each architecture, but for those of a decoder beside what sees images."""
VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    "llama, tied, biases": (
        "llama",
        {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    ),
    "llama, a vocabulary that does not divide": ("llama", {"vocab_size": 319}),
    "llama, one KV head": ("llama", {"num_key_value_heads": 1}),
    "opt, a narrow embedding, norms last": (
        "opt",
        {"word_embed_proj_dim": 32, "do_layer_norm_before": False},
    ),
    "gpt2, a vocabulary that does not divide": ("gpt2", {"vocab_size": 318}),
    "cohere2, biases": ("cohere2", {"attention_bias": True}),
    "youtu, biases, one latent of queries": ("youtu", {"attention_bias": True}),
    "deepseek_v2, whole queries": ("deepseek_v2", {"q_lora_rank": None}),
    "olmo2, one KV head": ("olmo2", {"num_key_value_heads": 1}),
    "gemma4, keys are values, experts": (
        "gemma4",
        {"attention_k_eq_v": True, "num_global_key_value_heads": 1}
        | {"enable_moe_block": True, "num_experts": 5, "top_k_experts": 2, "moe_intermediate_size": 24},
    ),
    "qwen3_next, four key heads": ("qwen3_next", {"linear_num_key_heads": 4, "linear_num_value_heads": 8}),
    "qwen3_5, four key heads": ("qwen3_5", {"linear_num_key_heads": 4, "linear_num_value_heads": 8}),
    "bamba, one group": ("bamba", {"mamba_n_groups": 1}),
    "falcon_h1, a norm of four groups": (
        "falcon_h1",
        {"mamba_rms_norm": True, "mamba_norm_before_gate": False, "mamba_n_groups": 4},
    ),
    "falcon_h1, a norm of one group": (
        "falcon_h1",
        {"mamba_rms_norm": True, "mamba_norm_before_gate": False, "mamba_n_groups": 1},
    ),
}


@pytest.fixture(autouse=True)
def products(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of these tests multiply so."""
    multiply_by_ranges(monkeypatch)


def checkpoint_of(architecture: str, checkpoint: Checkpoints, tmp_path: Path) -> Path:
    """A decoder beside what sees images has the weights of its family under other names."""
    if architecture in OF_ARCHITECTURE:
        return checkpoint(OF_ARCHITECTURE[architecture])
    alone = architecture.replace("ForConditionalGeneration", "ForCausalLM")
    text = checkpoint(OF_ARCHITECTURE[alone])
    config = json.loads((text / "config.json").read_text())
    fields = {"architectures": [architecture], "text_config": config, "dtype": config["dtype"]}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    shutil.copy(text / "generation_config.json", tmp_path)
    prefixes = {
        before: after.removesuffix(before.removeprefix("model."))
        for path in ("embedding", "head")
        for (before,), (after,) in [(DECODERS[alone].names[path], DECODERS[architecture].names[path])]
    }
    of_body, of_head = prefixes["model.embed_tokens"], prefixes["lm_head"]
    tensors = load_file(text / "model.safetensors")
    save_file(
        {
            of_head + name if name.startswith("lm_head.") else of_body + name.removeprefix("model."): tensor
            for name, tensor in tensors.items()
        },
        tmp_path / "model.safetensors",
    )
    return tmp_path


def digest(results: list[torch.Tensor]) -> str:
    """Of all bits: logits are float32, and hidden states of 16 bits are widened."""
    digest = hashlib.sha256()
    for each in results:
        digest.update(each.float().contiguous().numpy().tobytes())
    return digest.hexdigest()


def check(folder: Path, dtype: str, adapted: bool = False) -> None:
    """All steps of all ranks have the bits of those of one rank, and the tokens: each rank takes those that
    are most probable in its own logits."""
    vocab_size = read_model_config(folder).vocab_size
    names = whole_adapter(load_rank(folder, ONE_RANK, dtype)) if adapted else {}

    def work(group: ParallelGroup) -> str:
        model = load_rank(folder, group, dtype)
        return digest(run_model(model, vocab_size, adapter=held(model, names) if adapted else None))

    (expected,) = on_ranks(1, work)
    for size in SIZES:
        assert on_ranks(size, work) == [expected] * size, size


def in_turns(names: Iterable[str]) -> list[tuple[str, str]]:
    """With one dtype each: ranks divide layers, and each kind of layer is in cases of both."""
    return list(zip(names, cycle(("float32", "bfloat16"))))


@pytest.mark.parametrize(("architecture", "dtype"), in_turns(DECODERS))
def test_every_family(architecture: str, dtype: str, checkpoint: Checkpoints, tmp_path: Path):
    check(checkpoint_of(architecture, checkpoint, tmp_path), dtype)


@pytest.mark.parametrize(("variant", "dtype"), in_turns(VARIANTS))
def test_variants(variant: str, dtype: str, checkpoint: Checkpoints):
    family, overrides = VARIANTS[variant]
    check(checkpoint(family, **overrides), dtype)


def whole_adapter(model: LanguageModel) -> dict[str, torch.Tensor]:
    """The tensors of an adapter of all modules of a whole model, as its file has them."""
    modules, generator = model.target_modules, torch.Generator().manual_seed(0)
    assert modules is not None

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * 0.1

    tensors = dict[str, torch.Tensor]()
    for module, (target, *_) in modules.targets.items():
        outputs, inputs = target.shape
        tensors[f"{PREFIX}{module}.lora_A.weight"] = random(3, inputs)
        tensors[f"{PREFIX}{module}.lora_B.weight"] = random(outputs, 3)
    for module, (target,) in modules.embeddings.items():
        outputs, inputs = target.shape
        tensors[f"{PREFIX}{module}.lora_embedding_A"] = random(3, inputs)
        tensors[f"{PREFIX}{module}.lora_embedding_B"] = random(outputs, 3)
    return tensors


def held(model: LanguageModel, tensors: Mapping[str, torch.Tensor]):
    """The part of an adapter that a rank holds."""
    assert model.target_modules is not None
    deltas = place_tensors(tensors, AdapterConfig(rank=None, alpha=2.0), model.target_modules)
    store = AdapterStore(model)
    store.add(Adapter(bytes(32), 3, (), "", deltas))
    return store.find(bytes(32))


@pytest.mark.parametrize(
    ("family", "dtype"),
    in_turns(
        ["llama", "gpt2", "phi3", "qwen3_next", "bamba", "qwen2_moe", "youtu", "gpt_oss", "gemma4", "opt"]
    ),
)
def test_adapters(family: str, dtype: str, checkpoint: Checkpoints):
    """An adapter of all modules, the embedding and the head among them."""
    check(checkpoint(family), dtype, adapted=True)


@pytest.mark.parametrize("family", ["llama", "qwen2_moe", "opt"])
def test_a_stage_holds_the_deltas_of_its_layers(family: str, checkpoint: Checkpoints):
    """And checks those of all others."""
    folder, config = checkpoint(family), AdapterConfig(rank=None, alpha=2.0)
    whole = load_rank(folder, ONE_RANK)
    tensors = whole_adapter(whole)
    assert whole.target_modules is not None
    count = len(place_tensors(tensors, config, whole.target_modules))
    wrong = next(name for name in tensors if ".layers.0." in name)
    for number in range(2):
        stage = load_rank(folder, ONE_RANK, stage=Stage(number, (0, 1, 3)))
        assert stage.target_modules is not None
        deltas = place_tensors(tensors, config, stage.target_modules)
        assert deltas and deltas.keys() <= {*stage.modules()}
        count -= len(deltas)
        with pytest.raises(AdapterError, match="has shape"):
            place_tensors(tensors | {wrong: torch.zeros(3, 3)}, config, stage.target_modules)
    assert count == 0


def test_a_sum_is_the_upper_part_of_the_tree():
    """With the leaves of each rank's subtree, it is the tree over all leaves."""
    generator = torch.Generator().manual_seed(1)
    leaves = [torch.randn(3, 5, generator=generator) * 10.0**n for n in range(8)]
    expected = tree(leaves)
    for size in SIZES:
        share = len(leaves) // size

        def work(group: ParallelGroup, share: int = share) -> torch.Tensor:
            return group.sum(tree(leaves[group.rank * share : (group.rank + 1) * share]))

        assert all(torch.equal(each, expected) for each in on_ranks(size, work))


@pytest.mark.parametrize("size", SIZES)
def test_integers_and_largest_values_of_ranks(size: int):
    """Sums that float32 would round; NaN is the largest."""
    own = torch.tensor([[2**24, 1, -3]], dtype=torch.int32)
    high, low = torch.tensor([1.0, torch.nan, -2.0]), torch.full((3,), -3.0)

    def work(group: ParallelGroup) -> tuple[torch.Tensor, torch.Tensor]:
        return group.sum(own + group.rank), group.largest(high if group.rank == size - 1 else low)

    for total, largest in on_ranks(size, work):
        assert torch.equal(total, size * own + size * (size - 1) // 2) and total.dtype == torch.int32
        assert largest[[0, 2]].tolist() == [1.0, -2.0] and largest[1].isnan()


@pytest.mark.parametrize("size", SIZES)
def test_partial_sums_are_not_rounded(size: int):
    """In bfloat16: ranks give float32, and the bias is added once, before the only rounding."""
    generator = torch.Generator().manual_seed(2)
    weight, bias, x = (
        torch.randn(shape, generator=generator).bfloat16() for shape in ((6, 16), (6,), (3, 16))
    )

    def work(group: ParallelGroup) -> torch.Tensor:
        layer = RowLinear(16, 6, True, Placement(torch.bfloat16, CPU, group))
        local = group.slice(16)
        layer.weight.copy_(weight[:, local])
        assert layer.bias is not None
        layer.bias.copy_(bias)
        return layer(x[:, local], None)

    parts = [chain(*part) for part in zip(x.chunk(LEAVES, 1), weight.chunk(LEAVES, 1), strict=True)]
    expected = (tree(parts) + bias.float()).bfloat16()
    assert all(torch.equal(each, expected) for each in on_ranks(size, work))


def test_a_looked_up_row_keeps_the_sign_of_its_zeros(checkpoint: Checkpoints):
    @torch.inference_mode()
    def work(group: ParallelGroup) -> torch.Tensor:
        table = load_rank(folder, group).embedding
        table.weight.fill_(-0.0)
        return table._of_owners(torch.tensor([0, 319, 100, 317, 0]))

    folder = checkpoint("llama")
    for found in on_ranks(2, work):
        assert found.shape == (5, 48) and found.signbit().all()


class CountingCheckpoint(Checkpoint):
    """Counts the values that are read of each tensor."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.counts = Counter[str]()

    def read(self, name: str, part: tuple[slice, ...]) -> torch.Tensor:
        tensor = super().read(name, part)
        self.counts[name] += tensor.numel()
        return tensor


@pytest.mark.parametrize("family", ["llama", "gpt2", "falcon_h1", "qwen3_5", "mixtral", "gpt_oss", "youtu"])
def test_a_rank_reads_its_part_alone(family: str, checkpoint: Checkpoints, monkeypatch: pytest.MonkeyPatch):
    """Together, two ranks read what one does, but for what both hold: vectors, routers, and latents."""
    opened = list[CountingCheckpoint]()

    def counting(folder: Path) -> CountingCheckpoint:
        opened.append(CountingCheckpoint(folder))
        return opened[-1]

    monkeypatch.setattr("worker.startup.model.open_checkpoint", counting)
    folder = checkpoint(family)
    for group in (ONE_RANK, SilentRank(0, 2), SilentRank(1, 2)):
        load_rank(folder, group)
    one, *ranks = (each.counts for each in opened)
    together, shapes = sum(ranks, Counter[str]()), load_file(folder / "model.safetensors")
    assert one.keys() == together.keys()
    for name, count in one.items():
        if together[name] == count:
            continue
        assert together[name] == 2 * count, name
        assert shapes[name].dim() == 1 or re.search(r"router|gate\.weight|wpe|_a_proj", name), name


@pytest.mark.parametrize(
    ("family", "overrides", "size", "why"),
    [
        ("llama", {"num_attention_heads": 6, "num_key_value_heads": 3}, 4, "6 attention heads"),
        ("llama", {"num_attention_heads": 6, "num_key_value_heads": 3}, 2, "3 KV heads"),
        ("llama", {"intermediate_size": 81}, 2, "81 inputs of the last matrix of a feed-forward part"),
        ("qwen2_moe", {"shared_expert_intermediate_size": 57}, 2, "57 inputs of the last matrix"),
        ("mixtral", {"num_local_experts": 3, "num_experts_per_tok": 2}, 4, "fewer experts"),
        (
            "qwen3_5",
            {"linear_num_key_heads": 3, "linear_num_value_heads": 12},
            2,
            "3 key heads of a delta net",
        ),
        ("bamba", {"mamba_n_heads": 3, "mamba_n_groups": 1, "mamba_d_head": 32}, 2, "3 heads of a Mamba-2"),
        ("llama", {}, 3, "3 ranks are not a power of two"),
    ],
)
def test_what_does_not_divide_is_refused_by_name(
    family: str, overrides: dict[str, Any], size: int, why: str, checkpoint: Checkpoints
):
    folder = checkpoint(family, **overrides)
    with pytest.raises(StartupError) as raised:
        load_rank(folder, SilentRank(0, size))
    assert raised.value.what == "cannot split the model"
    assert why in raised.value.why


IN_4_BITS: dict[str, tuple[Quantizer, dict[str, object]]] = {
    "gptq": (quantizers.gptq(4, 1, False), {"quant_method": "gptq", "bits": 4}),
    "awq": (quantizers.awq, {"quant_method": "awq", "bits": 4}),
}


@pytest.mark.cpu_kernels
@pytest.mark.parametrize("name", IN_4_BITS)
def test_a_rank_keeps_the_integers_of_its_inputs(name: str, checkpoint: Checkpoints, tmp_path: Path):
    """Of the groups that it holds: no matrix is unpacked."""
    source = checkpoint("llama", **OF_GROUPS)
    expected = quantize_checkpoint(source, tmp_path / "packed", *IN_4_BITS[name])
    for rank, inputs in enumerate((slice(0, 64), slice(64, 128))):
        model = load_rank(tmp_path / "packed", SilentRank(rank, 2), "bfloat16", OwnBits())
        for layer in model.modules():
            assert not isinstance(layer, Matrix) or layer.is_table or isinstance(layer.method, GroupedMethod)
        (method,) = (each.down.method for each in model.modules() if isinstance(each, GatedMLP))
        values = method.weight.pack(None).values()
        assert torch.equal(values, expected["model.layers.0.mlp.down_proj.weight"][:, inputs])


@pytest.mark.cpu_kernels
@pytest.mark.parametrize(
    ("inner", "act_order", "why"),
    [
        (96, False, "groups of 32 inputs, of which a rank would have a part"),
        (128, True, "groups of inputs that are no neighbours, which ranks cannot divide"),
    ],
)
def test_groups_that_ranks_cannot_divide_are_refused_by_name(
    inner: int, act_order: bool, why: str, checkpoint: Checkpoints, tmp_path: Path
):
    source = checkpoint("llama", **OF_GROUPS | {"intermediate_size": inner})
    config: dict[str, object] = {"quant_method": "gptq", "bits": 4, "desc_act": act_order}
    quantize_checkpoint(source, tmp_path / "packed", quantizers.gptq(4, 1, act_order), config)
    with pytest.raises(StartupError) as raised:
        load_rank(tmp_path / "packed", SilentRank(0, 2), "bfloat16", OwnBits())
    assert raised.value.what == "cannot split the model"
    assert "_proj.weight has " + why in raised.value.why


def test_weights_that_a_cuda_device_rounds_are_refused(checkpoint: Checkpoints):
    """Their scales would be those of a rank's inputs."""
    config = read_model_config(checkpoint("llama"))
    check_split(config, 2, "")
    with pytest.raises(StartupError, match="--quantization int8"):
        check_split(config, 2, "int8")


@pytest.mark.parametrize(
    ("sizes", "beside", "needed", "stages", "starts"),
    [
        ([1] * 6, 0, range(6), 1, (0, 6)),
        ([1] * 6, 0, range(6), 2, (0, 3, 6)),
        ([1] * 6, 2, range(6), 2, (0, 2, 6)),
        ([1] * 6, 100, range(6), 3, (0, 1, 2, 6)),
        ([1] * 3, 9, range(3), 3, (0, 1, 2, 3)),
        ([9, 1, 1, 1], 0, range(4), 2, (0, 1, 4)),
        ([1, 1, 1, 9], 0, range(4), 2, (0, 3, 4)),
        ([1] * 8, 0, [3, 7], 2, (0, 4, 8)),
        ([1] * 8, 100, [3, 7], 2, (0, 4, 8)),
        ([1] * 8, 0, [0, 1], 2, (0, 1, 8)),
        ([1] * 8, 0, [0, 5, 6, 7], 3, (0, 3, 6, 8)),
    ],
)
def test_stages_have_about_as_much(
    sizes: list[int], beside: int, needed: Sequence[int], stages: int, starts: tuple[int, ...]
):
    """And each has a layer that is needed."""
    assert divide_layers(sizes, beside, stages, needed) == starts
