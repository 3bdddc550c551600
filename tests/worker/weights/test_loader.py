"""Reading checkpoints: whole, sharded, in parts; and one clear line for each that cannot be read."""

import json
import os
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pagewire.config import WorkerConfig
from pagewire.errors import StartupError
from tests.patience import PATIENCE_S
from tests.worker.fakes import Driver, initialize
from tests.worker.ranks import SilentRank
from worker.cpu.kernel_selection import compute_dtype
from worker.cpu.weights import CPU, OwnBits
from worker.families.registry import read_model_config
from worker.layers.linear import RowLinear
from worker.load import load
from worker.models.base import LanguageModel
from worker.models.registry import FAMILIES
from worker.parallel import ALONE, Groups, Placement
from worker.platforms.cpu import CpuPlatform
from worker.startup.model import load_model
from worker.weights.checkpoint import INDEX_FILE, SINGLE_FILE, Checkpoint
from worker.weights.loader import check_finite, load_weights, weight_table

Checkpoints = Callable[..., Path]
Q_PROJ = "model.layers.1.self_attn.q_proj.weight"
PROMPT = [5, 100, 33, 210, 7, 8]


@pytest.fixture
def llama(checkpoint: Checkpoints, tmp_path: Path) -> Path:
    """A folder of its own with links to nothing: files may be changed."""
    return copy(checkpoint("llama"), tmp_path / "model")


def copy(source: Path, target: Path) -> Path:
    target.mkdir(parents=True)
    for path in source.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    return target


def change(folder: Path, alter: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Rewrites model.safetensors."""
    tensors = load_file(folder / SINGLE_FILE)
    alter(tensors)
    save_file(tensors, folder / SINGLE_FILE)


def shard(folder: Path, **changes: str) -> None:
    """Splits model.safetensors in two files with an index; changes: entries of the index."""
    tensors = load_file(folder / SINGLE_FILE)
    (folder / SINGLE_FILE).unlink()
    names = sorted(tensors)
    weight_map = {}
    for number, part in enumerate((names[::2], names[1::2]), 1):
        file_name = f"model-0000{number}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, folder / file_name)
        weight_map |= dict.fromkeys(part, file_name)
    index = {"metadata": {}, "weight_map": {**weight_map, **changes}}
    (folder / INDEX_FILE).write_text(json.dumps(index))


def build(folder: Path, rank: int = 0, size: int = 1) -> LanguageModel:
    """One rank's model, loaded."""
    config = read_model_config(folder)
    family = FAMILIES[config.architecture]
    place = Placement(torch.float32, torch.device("cpu"), SilentRank(rank, size))
    with torch.inference_mode(), Checkpoint(folder) as checkpoint:
        model = family.build(config, place)
        table = weight_table(model, family.names)
        load_weights(checkpoint, table, family.unused, lambda fraction: None, family.optional_prefix)
    return model


def greedy(folder: Path, **changes: object) -> list[int]:
    driver = Driver(folder, **changes)
    sequence = driver.add(PROMPT, 6)[0]
    driver.run()
    return sequence.output


def failure(folder: Path) -> str:
    """The one line of a checkpoint that cannot be loaded."""
    with pytest.raises(StartupError) as raised:
        load(initialize(folder), CpuPlatform(WorkerConfig(threads=1)))
    assert "\n" not in raised.value.why
    assert raised.value.what == "cannot load the model's weights"
    return raised.value.why


def test_sharded(llama: Path):
    expected = greedy(llama)
    shard(llama)
    assert greedy(llama) == expected


def test_progress_goes_to_one(llama: Path):
    reports: list[tuple[str, float]] = []
    platform = CpuPlatform(WorkerConfig(threads=1))
    load(initialize(llama), platform, lambda what, fraction: reports.append((what, fraction)))
    fractions = [fraction for what, fraction in reports if what == "weights"]
    assert fractions == sorted(fractions)
    assert fractions[0] == 0
    assert fractions[-1] == 1
    assert len(fractions) > 10


@pytest.mark.parametrize("wide", [torch.float64, torch.bfloat16])
def test_stored_in_another_type(llama: Path, wide: torch.dtype):
    """The configuration says float32; the file may hold something else that is a float."""

    def alter(tensors: dict[str, torch.Tensor]) -> None:
        for name in tensors:
            tensors[name] = tensors[name].to(wide)

    if wide == torch.float64:
        expected = greedy(llama)
        change(llama, alter)
        assert greedy(llama) == expected
    else:
        change(llama, alter)
        assert len(greedy(llama)) == 6


def test_the_type_is_that_of_the_weights_when_nothing_is_said(llama: Path):
    fields = json.loads((llama / "config.json").read_text())
    del fields["dtype"]
    (llama / "config.json").write_text(json.dumps(fields))
    change(
        llama, lambda tensors: tensors.update({n: t.bfloat16() for n, t in tensors.items() if t.dim() > 1})
    )
    ready = load(initialize(llama), CpuPlatform(WorkerConfig(threads=1)))[1]
    assert ready.model.dtype == str(compute_dtype(torch.bfloat16)).removeprefix("torch.")


def test_unused_tensors_that_are_known(llama: Path):
    expected = greedy(llama)
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(6)}
    change(llama, lambda tensors: tensors.update(extra))
    assert greedy(llama) == expected


def test_a_tied_head_that_is_written_out(checkpoint: Checkpoints, tmp_path: Path):
    """It is the embedding, or one of the two would count for nothing."""
    folder = copy(checkpoint("llama", tie_word_embeddings=True), tmp_path / "model")
    expected, name = greedy(folder), "model.embed_tokens.weight"
    change(folder, lambda tensors: tensors.update({"lm_head.weight": tensors[name].clone()}))
    assert greedy(folder) == expected
    change(folder, lambda tensors: tensors["lm_head.weight"][319].mul_(2))
    assert failure(folder) == (
        f"config.json ties the head to the embedding, but tensors lm_head.weight and {name} differ"
    )


def test_older_names_of_gpt2(checkpoint: Checkpoints, tmp_path: Path):
    """Without the prefix of the bare model, and with its masks written out."""
    folder = copy(checkpoint("gpt2"), tmp_path / "model")
    expected = greedy(folder)

    def alter(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)
        tensors["h.0.attn.bias"] = torch.ones(1, 1, 8, 8, dtype=torch.uint8)

    change(folder, alter)
    assert greedy(folder) == expected


def test_dummy_weights(llama: Path):
    """No file is needed; the seed decides."""
    (llama / SINGLE_FILE).unlink()
    outputs = [greedy(llama, load_format="dummy", seed=seed) for seed in (1, 1, (1 << 64) - 1)]
    assert outputs[0] == outputs[1] != outputs[2]


@pytest.mark.parametrize("family", ["llama", "qwen2", "opt", "gpt2"])
def test_each_rank_reads_its_part(family: str, checkpoint: Checkpoints):
    """The parts of two ranks, put together, are the parameters of one."""
    folder = checkpoint(family)
    whole = dict(build(folder).named_parameters())
    parts = [dict(build(folder, rank, 2).named_parameters()) for rank in range(2)]
    split = 0
    for name, parameter in whole.items():
        left, right = (part[name] for part in parts)
        if left.shape == parameter.shape:
            assert torch.equal(left, parameter)
            assert torch.equal(right, parameter)
            continue
        split += 1
        dim = next(d for d in range(parameter.dim()) if left.shape[d] != parameter.shape[d])
        assert left.numel() + right.numel() == parameter.numel()
        # Fused projections interleave: compare as sets of rows.
        rows = torch.cat((left, right), dim).transpose(0, dim).tolist()
        assert sorted(map(str, rows)) == sorted(map(str, parameter.transpose(0, dim).tolist()))
    assert split >= 10


def test_more_ranks_than_kv_heads(checkpoint: Checkpoints):
    """Two ranks share each of two KV heads."""
    folder = checkpoint("llama")
    name = "blocks.0.attention.qkv.method.weight"
    whole = dict(build(folder).named_parameters())[name]
    held = [dict(build(folder, rank, 4).named_parameters())[name] for rank in range(4)]
    keys = whole[48:72]
    assert [torch.equal(part[12:24], keys[rank // 2 * 12 :][:12]) for rank, part in enumerate(held)] == [
        True
    ] * 4


# What cannot be loaded. Each of these is one line that names the tensor or the file.


def test_missing_tensor(llama: Path):
    change(llama, lambda tensors: tensors.pop(Q_PROJ))
    assert failure(llama) == f"the checkpoint lacks tensor {Q_PROJ}"


def test_missing_tensors_are_counted(llama: Path):
    change(llama, lambda tensors: [tensors.pop(name) for name in list(tensors) if "layers.2." in name])
    assert "model.layers.2.input_layernorm.weight (and 8 more)" in failure(llama)


def test_extra_tensor(llama: Path):
    change(llama, lambda tensors: tensors.update({"model.layers.3.extra": torch.ones(1)}))
    assert failure(llama) == "the model has no place for tensor model.layers.3.extra in model.safetensors"


def test_misshapen_tensor(llama: Path):
    change(llama, lambda tensors: tensors.update({Q_PROJ: torch.ones(48, 47)}))
    assert failure(llama) == (
        f"tensor {Q_PROJ} in model.safetensors has shape [48, 47], but config.json asks for [48, 48]"
    )


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.bool])
def test_tensor_of_another_kind(llama: Path, dtype: torch.dtype):
    change(llama, lambda tensors: tensors.update({Q_PROJ: torch.ones(48, 48).to(dtype)}))
    assert failure(llama).startswith(f"tensor {Q_PROJ} in model.safetensors holds ")


@pytest.mark.parametrize("keep", [0, 5, 8, 100, 20_000])
def test_truncated_file(llama: Path, keep: int):
    path = llama / SINGLE_FILE
    path.write_bytes(path.read_bytes()[:keep])
    assert failure(llama).startswith("model.safetensors is damaged: ")


HEADERS: list[bytes] = [
    struct.pack("<Q", 1 << 62),
    struct.pack("<Q", 4) + b"{nop",
    struct.pack("<Q", 2) + b"[]",
    struct.pack("<Q", 61) + b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,1000000000]}}'[:61],
    struct.pack("<Q", 2) + b"\xff\xff",
]


@pytest.mark.parametrize("header", HEADERS)
def test_bad_header(llama: Path, header: bytes):
    (llama / SINGLE_FILE).write_bytes(header)
    assert failure(llama).startswith("model.safetensors is damaged: ")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_pickle_only(llama: Path, name: str):
    (llama / SINGLE_FILE).unlink()
    (llama / name).write_bytes(b"\x80\x02.")
    assert f"holds pickle files only ({name})" in failure(llama)


def test_no_weights(llama: Path):
    (llama / SINGLE_FILE).unlink()
    assert "holds neither model.safetensors nor model.safetensors.index.json" in failure(llama)


@pytest.mark.parametrize("path", ["../secret.safetensors", "/etc/passwd", "a/../../secret.safetensors", "."])
def test_index_that_points_elsewhere(llama: Path, path: str):
    save_file({Q_PROJ: torch.ones(48, 48)}, llama.parent / "secret.safetensors")
    shard(llama, **{Q_PROJ: path})
    why = failure(llama)
    if path == ".":
        assert why == "'.' is not a file"
    else:
        assert why == f"{path!r} is outside the folder of the checkpoint"


def test_index_with_a_link_that_leads_elsewhere(llama: Path):
    save_file({Q_PROJ: torch.ones(48, 48)}, llama.parent / "secret.safetensors")
    os.symlink("../secret.safetensors", llama / "link.safetensors")
    shard(llama, **{Q_PROJ: "link.safetensors"})
    assert failure(llama) == "'link.safetensors' is outside the folder of the checkpoint"


def test_links_as_the_hugging_face_cache_makes_them(checkpoint: Checkpoints, tmp_path: Path):
    """snapshots/<revision>/<file> -> ../../blobs/<hash>."""
    folder = copy(checkpoint("llama"), tmp_path / "models--a--b" / "snapshots" / "0123")
    expected = greedy(folder)
    (tmp_path / "models--a--b" / "blobs").mkdir()
    (folder / SINGLE_FILE).rename(tmp_path / "models--a--b" / "blobs" / "89ab")
    os.symlink("../../blobs/89ab", folder / SINGLE_FILE)
    assert greedy(folder) == expected


def test_index_with_a_missing_file(llama: Path):
    shard(llama)
    (llama / "model-00002-of-00002.safetensors").unlink()
    assert failure(llama) == f"{INDEX_FILE} names model-00002-of-00002.safetensors, which is missing"


def test_index_with_a_wrong_file(llama: Path):
    shard(llama, **{"lm_head.weight": "model-00002-of-00002.safetensors"})
    assert failure(llama) == (
        f"{INDEX_FILE} promises tensor lm_head.weight in model-00002-of-00002.safetensors: not there"
    )


BAD_INDEXES: list[Any] = [
    [],
    {},
    {"weight_map": []},
    {"weight_map": {}},
    {"weight_map": {"a": 1}},
    {"weight_map": {"a": [1]}},
]


@pytest.mark.parametrize("index", BAD_INDEXES)
def test_bad_index(llama: Path, index: Any):
    (llama / SINGLE_FILE).unlink()
    (llama / INDEX_FILE).write_text(json.dumps(index))
    assert failure(llama).startswith(f"{INDEX_FILE} is ")


def test_index_that_is_not_json(llama: Path):
    (llama / SINGLE_FILE).unlink()
    (llama / INDEX_FILE).write_bytes(b"{")
    assert failure(llama).startswith(f"{INDEX_FILE} is ")


def test_index_with_a_name_that_is_none(llama: Path):
    shard(llama, **{Q_PROJ: "a\0b"})
    assert "is not a file" in failure(llama)


@pytest.mark.parametrize(("value", "what"), [(float("nan"), "NaN"), (float("-inf"), "infinity")])
def test_weights_that_are_no_numbers(value: float, what: str, llama: Path):
    def alter(tensors: dict[str, torch.Tensor]) -> None:
        tensors[Q_PROJ][3, 5] = value

    change(llama, alter)
    assert failure(llama) == f"tensor {Q_PROJ} in model.safetensors holds {what}"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_what_is_finite(dtype: torch.dtype, tmp_path: Path):
    """Of each dtype, at any place, also what a sum would cancel out or overflow by."""
    largest = torch.finfo(dtype).max
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    with Checkpoint(tmp_path) as checkpoint:
        for value in (largest, -largest, torch.finfo(dtype).tiny):
            check_finite(torch.full((3, 1000), value, dtype=dtype), checkpoint, "x")
        for values in ((float("nan"),), (float("inf"), float("-inf")), (largest, float("-inf"))):
            tensor = torch.zeros(3, 1000, dtype=dtype)
            tensor[-1, -len(values) :] = torch.tensor(values)
            with pytest.raises(StartupError, match="NaN" if len(values) == 1 else "infinity"):
                check_finite(tensor, checkpoint, "x")


def test_large_weights_whose_sum_overflows(llama: Path):
    """A sum beyond float32 is not an infinite weight."""
    change(llama, lambda tensors: tensors[Q_PROJ].fill_(3e38))
    load(initialize(llama), CpuPlatform(WorkerConfig(threads=1)))


def test_tensors_are_read_a_few_rows_at_a_time(llama: Path, monkeypatch: pytest.MonkeyPatch):
    """What is read at once has a limit, whatever the size of a tensor, and the weights are the same."""
    expected = greedy(llama)
    sizes: list[int] = []
    read = Checkpoint.read

    def recorded(self: Checkpoint, name: str, part: tuple[slice, ...]) -> torch.Tensor:
        tensor = read(self, name, part)
        sizes.append(tensor.numel())
        return tensor

    monkeypatch.setattr("worker.weights.loader.PIECE_VALUES", 500)
    monkeypatch.setattr(Checkpoint, "read", recorded)
    assert greedy(llama) == expected
    assert max(sizes) <= 500
    assert len(sizes) > 100


def test_many_shards_side_by_side(llama: Path, monkeypatch: pytest.MonkeyPatch):
    """One tensor per file, several read at once: the same weights, and more than one thread reads."""
    expected = greedy(llama)
    tensors = load_file(llama / SINGLE_FILE)
    (llama / SINGLE_FILE).unlink()
    weight_map = {name: f"shard-{number}.safetensors" for number, name in enumerate(tensors)}
    for name, file_name in weight_map.items():
        save_file({name: tensors[name]}, llama / file_name)
    (llama / INDEX_FILE).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    threads: set[int] = set()
    several = threading.Event()
    read = Checkpoint.read

    def together(self: Checkpoint, name: str, part: tuple[slice, ...]) -> torch.Tensor:
        threads.add(threading.get_ident())
        if len(threads) > 1:
            several.set()
        assert several.wait(PATIENCE_S)
        return read(self, name, part)

    monkeypatch.setattr(Checkpoint, "read", together)
    assert greedy(llama) == expected


def test_one_bad_tensor_among_many_shards_ends_loading(llama: Path):
    shard(llama)
    path = llama / "model-00002-of-00002.safetensors"
    tensors = load_file(path)
    tensors[max(tensors)].fill_(float("inf"))
    save_file(tensors, path)
    with pytest.raises(StartupError, match="holds infinity"):
        load(initialize(llama), CpuPlatform(WorkerConfig(threads=1)))


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("load_format", ["auto", "dummy"])
def test_ranks_know_the_largest_value_of_whole_rows(family: str, load_format: str, checkpoint: Checkpoints):
    """Of row layers, from which integers of 8 bits follow: stored as [out, in] and as [in, out]."""
    command = initialize(
        checkpoint(family), dtype="bfloat16", quantization="int8", load_format=load_format, seed=3
    )
    config = read_model_config(Path(command.model_path))
    whole, *ranks = (
        load_model(config, command, CPU, lambda *_: None, lambda each: each, OwnBits("int8"), groups=groups)[
            0
        ]
        for groups in (ALONE, *(Groups(rank, rank) for rank in (SilentRank(0, 2), SilentRank(1, 2))))
    )
    rows = [(name, layer) for name, layer in whole.named_modules() if isinstance(layer, RowLinear)]
    assert rows
    for name, layer in rows:
        shares = [model.get_submodule(name) for model in ranks]
        assert torch.equal(torch.cat([share.weight for share in shares], 1), layer.weight)
        largest = [next(each.largest for each in share.weights("x")) for share in shares]
        for each in largest:
            assert each is not None and torch.equal(each, layer.weight.abs().amax(1).float())
        assert next(layer.weights("x")).largest is None
