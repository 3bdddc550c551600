"""Adapters that are damaged, hostile, of another model, or of a kind that is not supported: each has its
error, which names the field, the tensor or the file."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pagewire.internal.v1 import worker_pb2
from tests.worker.adapters.peft_files import load, model_of
from worker.adapters import files
from worker.adapters.adapter import AdapterError
from worker.adapters.load import load_adapter
from worker.adapters.store import AdapterStore
from worker.adapters.targets import find_targets
from worker.layers.experts.matrices import ExpertMatrices
from worker.models.registry import FAMILIES
from worker.step.embeddings import EmbeddingRows

Checkpoints = Callable[..., Path]
Tensors = dict[str, torch.Tensor]
Q = "base_model.model.model.layers.0.self_attn.q_proj"
EMBEDDING = "base_model.model.model.embed_tokens"
CONFIG: dict[str, Any] = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "qalora_group_size": 16}


@pytest.fixture
def base(checkpoint: Checkpoints) -> Path:
    return checkpoint("llama")


def write(folder: Path, tensors: Tensors, **fields: Any) -> Path:
    """fields: of adapter_config.json, besides those that all have."""
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG | fields))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def valid() -> Tensors:
    return {f"{Q}.lora_A.weight": torch.ones(4, 48), f"{Q}.lora_B.weight": torch.ones(48, 4)}


FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "another kind": ({"peft_type": "VERA"}, "peft_type is 'VERA': only LORA, PROMPT_TUNING and P_TUNING"),
    "IA3": ({"peft_type": "IA3"}, "peft_type is 'IA3': it scales what layers compute.*; LORA"),
    "prefix tuning": ({"peft_type": "PREFIX_TUNING"}, "peft_type is 'PREFIX_TUNING': trained keys"),
    "no kind": ({"peft_type": None}, "peft_type is None"),
    "DoRA": ({"use_dora": True}, "use_dora is True: DoRA"),
    "QALoRA": ({"use_qalora": True}, "use_qalora"),
    "BD-LoRA": ({"use_bdlora": {"nblocks": 2}}, "use_bdlora"),
    "replication": ({"layer_replication": [[0, 2]]}, "layer_replication is"),
    "Arrow": ({"arrow_config": {"top_k": 2}}, "arrow_config"),
    "unknown": ({"use_later": 1}, "use_later is 1: the field is not known"),
    "PiSSA": ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights is 'pissa_niter_4': it changes"),
    "rank 0": ({"r": 0}, "r is 0: must be an integer from 1 to 256"),
    "rank 257": ({"r": 257}, "r is 257"),
    "rank true": ({"r": True}, "r is True"),
    "rank of text": ({"r": "4"}, "r is '4'"),
    "alpha NaN": ({"lora_alpha": float("nan")}, "lora_alpha is nan"),
    "alpha infinite": ({"lora_alpha": float("inf")}, "lora_alpha is inf"),
    "alpha huge": ({"lora_alpha": 1e30}, r"lora_alpha is 1e\+30: must be a number above 0 and at most 65536"),
    "alpha of 10,000 digits": ({"lora_alpha": 10**4000}, "lora_alpha is 1000"),
    "alpha 0": ({"lora_alpha": 0}, "lora_alpha is 0"),
    "rsLoRA of text": ({"use_rslora": "yes"}, "use_rslora is 'yes'"),
    "patterns in a list": ({"rank_pattern": [1]}, "rank_pattern is"),
    "rank in a pattern": ({"rank_pattern": {"q_proj": 900}}, r"rank_pattern\['q_proj'\] is 900"),
    "alpha in a pattern": ({"alpha_pattern": {"q_proj": -1}}, r"alpha_pattern\['q_proj'\] is -1"),
    "no pattern": ({"alpha_pattern": {"(": 1}}, "alpha_pattern is .*: it is not a regular expression"),
    "endless pattern": ({"rank_pattern": {"(a*)*b": 1}}, "rank_pattern is .*: the pattern is too complex"),
    "long pattern": ({"rank_pattern": {"a" * 300: 1}}, "rank_pattern is .*: the pattern is too complex"),
    "patterns": ({"rank_pattern": {f"a{i}": 1 for i in range(5000)}}, "at most 4096 patterns"),
    "slow patterns": ({"rank_pattern": {f".*a{i}": 1 for i in range(17)}}, "more than 16 patterns repeat"),
    "ids of text": ({"alora_invocation_tokens": "abc"}, "alora_invocation_tokens is 'abc'"),
    "ids below 0": ({"alora_invocation_tokens": [-1]}, "alora_invocation_tokens is .*: must hold token ids"),
    "many ids": ({"alora_invocation_tokens": [1] * 2000}, "at most 1024 token ids"),
    "another rank": ({"r": 5}, r"tensor .*q_proj.lora_A.weight has shape \[4, 48\], not \[5, 48\]"),
}


@pytest.mark.parametrize("name", FIELDS)
def test_fields(name: str, base: Path, tmp_path: Path) -> None:
    fields, message = FIELDS[name]
    with pytest.raises(AdapterError, match=message):
        load(write(tmp_path, valid(), **fields), model_of(base))


SOFT: dict[str, Any] = {"peft_type": "P_TUNING", "num_virtual_tokens": 3, "encoder_hidden_size": 8}
VIRTUAL: dict[str, tuple[dict[str, Any], Tensors, str]] = {
    "number": ({"num_virtual_tokens": 0}, {}, "num_virtual_tokens is 0: must be an integer from 1 to 4096"),
    "of text": ({"num_virtual_tokens": "3"}, {}, "num_virtual_tokens is '3'"),
    "seq2seq": ({"num_transformer_submodules": 2}, {}, "num_transformer_submodules is 2: the model has one"),
    "unknown": ({"use_later": 1}, {}, "use_later is 1: the field is not known"),
    "long": ({"use_later": "x" * 9999}, {}, "use_later is 'x{99}: the field"),
    "none": ({}, {}, "has no tensor prompt_embeddings"),
    "others": ({}, {"prompt_embeddings": torch.ones(3, 48), "x": torch.ones(1)}, "tensor x: .* alone"),
    "rows": ({}, {"prompt_embeddings": torch.ones(2, 48)}, r"has shape \[2, 48\], not \[3, E\]"),
    "vector": ({}, {"prompt_embeddings": torch.ones(3)}, r"has shape \[3\]"),
    "NaN": ({}, {"prompt_embeddings": torch.full((3, 48), torch.nan)}, "prompt_embeddings holds NaN"),
}


@pytest.mark.parametrize("name", VIRTUAL)
def test_virtual_tokens(name: str, base: Path, tmp_path: Path) -> None:
    fields, tensors, message = VIRTUAL[name]
    (tmp_path / "adapter_config.json").write_text(json.dumps(SOFT | fields))
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    with pytest.raises(AdapterError, match=message):
        load(tmp_path, model_of(base))


@pytest.mark.parametrize(
    ("size", "max_bytes", "problem"),
    [
        (48, 1000, ""),
        (48, 576 - 1, "bytes, more than 575"),
        (47, 1000, "48 elements, the model's 47"),
        (0, 1000, "needs a model that takes input embeddings"),
    ],
)
def test_virtual_tokens_must_fit(size: int, max_bytes: int, problem: str, base: Path, tmp_path: Path) -> None:
    """Into the model, and into memory."""
    (tmp_path / "adapter_config.json").write_text(json.dumps(SOFT))
    save_file({"prompt_embeddings": torch.ones(3, 48)}, tmp_path / "adapter_model.safetensors")
    store = AdapterStore(model_of(base), load_adapter, size)
    order = worker_pb2.LoadAdapter(source=str(tmp_path.resolve()), max_bytes=max_bytes)
    answer = store.load(order).result()
    assert problem in answer.problem and bool(problem) == bool(answer.problem)
    assert answer.virtual_tokens == (0 if problem else 3)
    assert problem or (answer.bytes, answer.rank, len(answer.digest)) == (576, 0, 32)


def test_virtual_tokens_are_converted_once(base: Path, tmp_path: Path) -> None:
    """To the model's dtype, when they are loaded: rows share them."""
    (tmp_path / "adapter_config.json").write_text(json.dumps(SOFT))
    file = tmp_path / "adapter_model.safetensors"
    order = worker_pb2.LoadAdapter(source=str(tmp_path.resolve()), max_bytes=1000)
    for dtype in (torch.bfloat16, torch.float16):
        save_file({"prompt_embeddings": torch.full((3, 48), 65519.0)}, file)
        store = AdapterStore(model_of(base), load_adapter, 48, dtype)
        answer = store.load(order).result()
        rows = EmbeddingRows(dtype, store.find_virtual_tokens)
        new = worker_pb2.NewRow()
        new.adapter.digest, new.adapter.virtual_tokens = answer.digest, 3
        for row in range(2):
            rows.add_row(row, new, [0, 0, 0, 5], [])
        assert answer.bytes == 2 * 3 * 48
        values = [part.values() for row in range(2) for part in rows._by_row[row]]
        assert values[0] is values[1] and values[0].dtype is dtype
    save_file({"prompt_embeddings": torch.full((3, 48), 65520.0)}, file)
    problem = store.load(order).result().problem
    assert problem == "tensor prompt_embeddings holds values beyond float16, the model's dtype"


TENSORS: dict[str, tuple[Tensors, str]] = {
    "no partner": (
        {f"{Q[:-6]}k_proj.lora_A.weight": torch.ones(4, 48)},
        "k_proj.lora_A.weight lacks .*lora_B",
    ),
    "no A": ({f"{Q[:-6]}k_proj.lora_B.weight": torch.ones(24, 4)}, "k_proj.lora_B.weight lacks .*lora_A"),
    "inputs": (
        {f"{Q}.lora_A.weight": torch.ones(4, 49)},
        r"lora_A.weight has shape \[4, 49\], not \[4, 48\]",
    ),
    "outputs": ({f"{Q}.lora_B.weight": torch.ones(49, 4)}, r"lora_B.weight has shape \[49, 4\]"),
    "three dimensions": ({f"{Q}.lora_A.weight": torch.ones(4, 48, 1)}, r"has shape \[4, 48, 1\]"),
    "a number": ({f"{Q}.lora_A.weight": torch.tensor(1.0)}, r"lora_A.weight has shape \[\]"),
    "empty": ({f"{Q}.lora_A.weight": torch.ones(0, 48)}, r"lora_A.weight has shape \[0, 48\]: it is empty"),
    "NaN": ({f"{Q}.lora_A.weight": torch.full((4, 48), torch.nan)}, "tensor .*lora_A.weight holds NaN"),
    "infinity": ({f"{Q}.lora_B.weight": torch.full((48, 4), torch.inf)}, "lora_B.weight holds infinity"),
    "integers": ({f"{Q}.lora_A.weight": torch.ones(4, 48, dtype=torch.int32)}, "lora_A.weight holds I32"),
    "two dtypes": (
        {f"{Q}.lora_B.weight": torch.ones(48, 4).half()},
        "lora_B.weight is float16: .* one dtype",
    ),
    "doubles": (
        {name: tensor.double() for name, tensor in valid().items()},
        "lora_A.weight is float64: .* one dtype of float32, bfloat16, float16",
    ),
    "a layer too many": (
        {name.replace("layers.0", "layers.9"): tensor for name, tensor in valid().items()},
        "the model has no linear layer model.layers.9.self_attn.q_proj",
    ),
    "a vision tower": (
        {name.replace("model.layers", "vision_tower.layers"): each for name, each in valid().items()},
        "no linear layer model.vision_tower.layers.0|no linear layer vision_tower.layers.0",
    ),
    "one module, two names": (
        {name.replace("model.layers", "model.language_model.layers"): each for name, each in valid().items()},
        "are the same module",
    ),
    "unknown": (
        {"base_model.model.other": torch.ones(2)},
        "tensor base_model.model.other belongs to nothing",
    ),
    "DoRA": ({f"{Q}.lora_magnitude_vector": torch.ones(48)}, "lora_magnitude_vector: DoRA"),
    "bias of B": ({f"{Q}.lora_B.bias": torch.ones(48)}, "lora_B.bias: biases of adapters"),
    "bias": ({f"{Q}.base_layer.bias": torch.ones(48)}, "q_proj.base_layer.bias belongs to nothing"),
    "trained tokens": (
        {f"{EMBEDDING}.token_adapter.trainable_tokens_delta": torch.ones(1, 48)},
        "trainable_tokens_delta: trained tokens",
    ),
    "half of an embedding": (
        {f"{EMBEDDING}.lora_embedding_A": torch.ones(4, 320)},
        "lora_embedding_A lacks its other half, lora_embedding_B",
    ),
    "an embedding of more tokens": (
        {
            f"{EMBEDDING}.lora_embedding_A": torch.ones(4, 321),
            f"{EMBEDDING}.lora_embedding_B": torch.ones(48, 4),
        },
        r"lora_embedding_A has shape \[4, 321\], not \[4, 320\]",
    ),
    "an embedding as a linear layer": (
        {f"{EMBEDDING}.lora_A.weight": torch.ones(4, 320), f"{EMBEDDING}.lora_B.weight": torch.ones(48, 4)},
        "adapters of model.embed_tokens are not supported",
    ),
    "a linear layer as an embedding": (
        {f"{Q}.lora_embedding_A": torch.ones(4, 48), f"{Q}.lora_embedding_B": torch.ones(48, 4)},
        "lora_embedding_A: the model has no linear layer model.layers.0.self_attn.q_proj",
    ),
    "a head of more tokens": (
        {"base_model.model.lm_head.lora_A.weight": torch.ones(4, 48)}
        | {"base_model.model.lm_head.lora_B.weight": torch.ones(321, 4)},
        r"lm_head.lora_B.weight has shape \[321, 4\], not \[320, 4\]",
    ),
    "a norm": (
        {"base_model.model.model.norm.lora_A.weight": torch.ones(4, 48)}
        | {"base_model.model.model.norm.lora_B.weight": torch.ones(48, 4)},
        "adapters of model.norm are not supported yet",
    ),
    "a trained norm": (
        {"base_model.model.model.norm.weight": torch.ones(48)},
        "differs from the model's model.norm.weight",
    ),
    "another embedding": (
        {f"{EMBEDDING}.base_layer.weight": torch.ones(320, 48)},
        "embed_tokens.base_layer.weight differs from the model's model.embed_tokens.weight",
    ),
    "a larger embedding": (
        {f"{EMBEDDING}.base_layer.weight": torch.ones(321, 48)},
        "embed_tokens.base_layer.weight differs",
    ),
    "prompts": ({"prompt_embeddings": torch.ones(3, 48)}, "prompt_embeddings: it belongs to another kind"),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors(name: str, base: Path, tmp_path: Path) -> None:
    tensors, message = TENSORS[name]
    with pytest.raises(AdapterError, match=message):
        load(write(tmp_path, valid() | tensors), model_of(base))


def test_copies_of_the_bases_tensors_are_passed_over(base: Path, tmp_path: Path) -> None:
    stored = load_file(base / "model.safetensors")
    copies = {
        f"{EMBEDDING}.base_layer.weight": stored["model.embed_tokens.weight"],
        "base_model.model.model.norm.weight": stored["model.norm.weight"],
    }
    assert len(load(write(tmp_path, valid() | copies), model_of(base)).deltas) == 1


@pytest.mark.parametrize(
    "prefix", ["base_model.model.layers", "base_model.model.model.language_model.layers"]
)
def test_a_decoder_within_another_model(prefix: str, base: Path, tmp_path: Path) -> None:
    """A bare model, and one beside what sees images: the same deltas."""
    named = {name.replace("base_model.model.model.layers", prefix): each for name, each in valid().items()}
    assert len(load(write(tmp_path, named), model_of(base)).deltas) == 1


def test_fields_that_change_nothing(base: Path, tmp_path: Path) -> None:
    fields = {
        "use_later": None,
        "later_config": {},
        "use_dora": False,
        "task_type": "CAUSAL_LM",
        "bias": "all",
    }
    assert load(write(tmp_path, valid(), **fields), model_of(base)).rank == 4


def of_experts(module: str, a: tuple[int, ...], b: tuple[int, ...]) -> Tensors:
    name = f"base_model.model.model.layers.0.mlp.{module}"
    return {f"{name}.lora_A.weight": torch.ones(a), f"{name}.lora_B.weight": torch.ones(b)}


EXPERTS: dict[str, tuple[Tensors, str]] = {
    "an expert too many": (
        of_experts("experts.6.gate_proj", (4, 48), (40, 4)),
        "the model has no linear layer model.layers.0.mlp.experts.6.gate_proj",
    ),
    "outputs of an expert": (
        of_experts("experts.1.gate_proj", (4, 48), (48, 4)),
        r"experts.1.gate_proj.lora_B.weight has shape \[48, 4\], not \[40, 4\]",
    ),
    "five experts": (
        of_experts("experts", (20, 48), (80, 20)),
        r"experts.lora_A.weight and .* have shapes \[20, 48\] and \[80, 20\], which are those of no "
        r"parameter of model.layers.0.mlp.experts, with 6 experts of rank r \(gate_up_proj: \[6 \* r, 48\]",
    ),
    "twelve experts": (
        of_experts("experts", (48, 48), (80, 48)),
        r"experts.lora_A.weight has shape \[48, 48\], rank 8 of each of 6 experts, not 4",
    ),
    "two ranks": (of_experts("experts", (24, 48), (80, 12)), "which are those of no parameter"),
    "one dimension": (of_experts("experts", (24,), (80,)), "which are those of no parameter"),
    "three dimensions": (of_experts("experts", (6, 4, 48), (80, 4, 6)), "which are those of no parameter"),
    "the same parameter twice": (
        of_experts("experts", (24, 48), (80, 24)) | of_experts("experts.base_layer", (24, 48), (80, 24)),
        r"experts(.base_layer)?.lora_A.weight: another tensor changes the same outputs",
    ),
    "one expert, and all": (
        of_experts("experts", (24, 48), (80, 24)) | of_experts("experts.1.gate_proj", (4, 48), (40, 4)),
        "experts.lora_A.weight: another tensor changes the same outputs",
    ),
    "both ways round": (
        of_experts("experts.base_layer", (24, 80), (48, 24)) | of_experts("experts", (24, 40), (48, 24)),
        r"experts(.base_layer)?.lora_A.weight and others have inputs and outputs the other way round",
    ),
    "half of a pair": (
        {"base_model.model.model.layers.0.mlp.experts.lora_A.weight": torch.ones(24, 48)},
        "experts.lora_A.weight lacks its other half, lora_B",
    ),
    "a router of more experts": (
        of_experts("gate", (4, 48), (7, 4)),
        r"mlp.gate.lora_B.weight has shape \[7, 4\], not \[6, 4\]",
    ),
}


@pytest.mark.parametrize("name", EXPERTS)
def test_experts(name: str, checkpoint: Checkpoints, tmp_path: Path) -> None:
    """One by one, and all together as peft's target_parameters writes them."""
    tensors, message = EXPERTS[name]
    with pytest.raises(AdapterError, match=message):
        load(write(tmp_path, tensors), model_of(checkpoint("qwen3_moe")))


def test_experts_that_may_be_either_way_round(checkpoint: Checkpoints, tmp_path: Path) -> None:
    """Square matrices, unless others of the file show the way."""
    model = model_of(checkpoint("qwen3_moe", moe_intermediate_size=24))
    square, other = (
        of_experts("experts", (24, 48), (48, 24)),
        of_experts("experts.base_layer", (24, 24), (48, 24)),
    )
    with pytest.raises(AdapterError, match="does not say whether peft has taken inputs for outputs"):
        load(write(tmp_path, square), model)
    assert load(write(tmp_path, square | other), model).deltas


def test_experts_of_a_gpu_are_refused(checkpoint: Checkpoints, tmp_path: Path) -> None:
    """Their matrices are one tensor."""
    model = model_of(checkpoint("qwen3_moe"))
    for layer in model.modules():
        if isinstance(layer, ExpertMatrices):
            layer.takes_adapters = False
    family = FAMILIES["Qwen3MoeForCausalLM"]
    model.target_modules = find_targets(model, family.names, family.optional_prefix, None)
    for module in ("experts", "experts.base_layer", "experts.1.gate_proj"):
        with pytest.raises(
            AdapterError, match=f"adapters of model.layers.0.mlp.{module.removesuffix('.base_layer')} are not"
        ):
            load(write(tmp_path, of_experts(module, (24, 48), (80, 24))), model)


@pytest.mark.parametrize(
    ("family", "module", "fields"),
    [
        ("opt", "model.decoder.project_out", {"word_embed_proj_dim": 32}),
    ],
)
def test_layers_that_take_none(
    family: str, module: str, fields: dict[str, int], checkpoint: Checkpoints, tmp_path: Path
) -> None:
    """Their products are not those of ColumnLinear and RowLinear in a step."""
    name = f"base_model.model.{module}"
    tensors = {f"{name}.lora_A.weight": torch.ones(4, 48), f"{name}.lora_B.weight": torch.ones(32, 4)}
    with pytest.raises(AdapterError, match=f"{module} are not supported yet"):
        load(write(tmp_path, tensors), model_of(checkpoint(family, **fields)))


def test_a_model_of_no_family(base: Path, tmp_path: Path) -> None:
    model = model_of(base)
    model.target_modules = None
    with pytest.raises(AdapterError, match="a model of one of pagewire's families"):
        load(write(tmp_path, valid()), model)


def test_paths(base: Path, tmp_path: Path) -> None:
    model = model_of(base)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("a\0b", "none", "loop", "loop.gguf", "a\0b.gguf"):
        with pytest.raises(AdapterError, match=r"is not a path|has no adapter_config"):
            load(tmp_path / name, model)


def test_a_folder_that_became_a_link(base: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    write(tmp_path / "real", valid())
    (tmp_path / "link").symlink_to("real")
    load(tmp_path / "real", model_of(base))
    with pytest.raises(AdapterError, match="^link became a link after it was allowed"):
        load(tmp_path / "link", model_of(base))


@pytest.mark.parametrize("name", ["empty", "empty.gguf", "none", "none.gguf"])
def test_no_problem_shows_where_folders_are(name: str, base: Path, tmp_path: Path) -> None:
    for each in ("empty", "empty.gguf"):
        (tmp_path / each).mkdir()
    store = AdapterStore(model_of(base), load_adapter)
    answer = store.load(worker_pb2.LoadAdapter(source=str(tmp_path / name), max_bytes=1 << 20)).result()
    assert answer.problem and str(tmp_path.parent) not in answer.problem


def test_nothing_is_adapted(base: Path, tmp_path: Path) -> None:
    norm = {"base_model.model.model.norm.weight": load_file(base / "model.safetensors")["model.norm.weight"]}
    with pytest.raises(AdapterError, match="no tensors lora_A and lora_B"):
        load(write(tmp_path, norm), model_of(base))


def cut(folder: Path) -> None:
    path = folder / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def lie(folder: Path) -> None:
    path = folder / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes().replace(b"[4,48]", b"[9,99]"))


def long_header(folder: Path) -> None:
    (folder / "adapter_model.safetensors").write_bytes((1 << 60).to_bytes(8, "little"))


def pickle_only(folder: Path) -> None:
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")


def link_out(folder: Path) -> None:
    outside = folder.parent / "outside.safetensors"
    (folder / "adapter_model.safetensors").rename(outside)
    (folder / "adapter_model.safetensors").symlink_to(outside)


def fifo(folder: Path) -> None:
    (folder / "adapter_model.safetensors").unlink()
    os.mkfifo(folder / "adapter_model.safetensors")


def no_json(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{")


FILES: dict[str, tuple[Callable[[Path], None], str]] = {
    "cut": (cut, "adapter_model.safetensors is damaged"),
    "lying shape": (lie, "adapter_model.safetensors is damaged"),
    "long header": (long_header, "has a header of 1152921504606846976 bytes"),
    "pickle": (pickle_only, r"a pickle only \(adapter_model.bin\).*convert it to safetensors"),
    "link out of the folder": (link_out, "outside the folder"),
    "FIFO": (fifo, "is not a file"),
    "no tensors": (lambda folder: (folder / "adapter_model.safetensors").unlink(), "has no adapter_model"),
    "no fields": (lambda folder: (folder / "adapter_config.json").unlink(), "has no adapter_config.json"),
    "damaged fields": (no_json, "adapter_config.json is not readable JSON"),
}


@pytest.mark.parametrize("name", FILES)
def test_files(name: str, base: Path, tmp_path: Path) -> None:
    damage, message = FILES[name]
    folder = tmp_path / "adapter"
    folder.mkdir()
    damage(write(folder, valid()))
    with pytest.raises(AdapterError, match=message):
        load(folder, model_of(base))


def test_size(base: Path, tmp_path: Path) -> None:
    write(tmp_path, valid())
    size = (tmp_path / "adapter_model.safetensors").stat().st_size
    assert load(tmp_path, model_of(base), max_bytes=size).num_bytes == 4 * (4 * 48 + 48 * 4)
    with pytest.raises(AdapterError, match=f"has {size} bytes, more than {size - 1}"):
        load(tmp_path, model_of(base), max_bytes=size - 1)


def test_count(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_TENSORS", 1)
    with pytest.raises(AdapterError, match="has 2 tensors, more than 1"):
        load(write(tmp_path, valid()), model_of(base))


def test_a_file_that_grows_while_it_is_read(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, valid())
    stat = os.fstat

    def grow(descriptor: int) -> os.stat_result:
        found = stat(descriptor)
        with (tmp_path / "adapter_model.safetensors").open("ab") as file:
            file.write(b"more")
        return found

    monkeypatch.setattr("worker.adapters.files.os.fstat", grow)
    with pytest.raises(AdapterError, match="was changed while it was read"):
        load(tmp_path, model_of(base))


def test_digest(base: Path, tmp_path: Path) -> None:
    """It follows the fields that count and the tensors, and nothing else."""
    model = model_of(base)
    digest = load(write(tmp_path, valid()), model).digest
    assert len(digest) == 32
    assert (
        load(write(tmp_path, valid(), task_type="X", base_model_name_or_path="a"), model, digest).base == "a"
    )
    for changed in ({"lora_alpha": 9}, {"use_rslora": True}, {"alpha_pattern": {"v_proj": 1}}):
        assert load(write(tmp_path, valid(), **changed), model).digest != digest
    write(tmp_path, valid() | {f"{Q}.lora_A.weight": torch.zeros(4, 48)})
    with pytest.raises(AdapterError, match=f"not {digest.hex()}: its files were replaced"):
        load(tmp_path, model, digest)


def test_a_name_cannot_break_a_line(base: Path, tmp_path: Path) -> None:
    with pytest.raises(AdapterError) as caught:
        load(write(tmp_path, valid() | {"a\n\x1b[31m": torch.ones(1)}), model_of(base))
    assert str(caught.value).isprintable()
