"""From checkpoint files to parameters: safetensors through memory maps, and only the part of each
tensor that this rank holds.

A model says where each tensor goes (`weight_table`). Then every parameter must be filled, and every
tensor of the files must be used or known to be unused; otherwise a StartupError names the tensor or the file.
Checkpoints in pickle form (pytorch_model.bin) are never read.
"""

import math
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from pagewire.checkpoint_files import inside, read_object
from pagewire.errors import StartupError
from worker.layers.base import Weight, WeightOwner
from worker.weights.side_by_side import one_thread_each, run_side_by_side
from worker.weights.source import TensorSource

Progress = Callable[[float], None]
"""Called with the fraction of all bytes that is done, 0 to 1."""
Fill = Callable[[TensorSource, Weight, str], Iterator[int]]
"""Fills the target of a weight from the tensor of that name, and yields the bytes of each piece."""

WHAT = "cannot load the model's weights"
FLOATS = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_BYTES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "BF16": 2, "F16": 2, "I16": 2}
SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
DUMMY_STD = 0.02
PIECE_VALUES = 1 << 20
"""Values of a tensor that are read at once."""
READERS = 4
"""Tensors of plain floats that are read at once: while one waits for the disk, others are copied."""


def weight_table(model: torch.nn.Module, names: Mapping[str, tuple[str, ...]]) -> list[Weight]:
    """Resolves a family's table of names for one model.

    names: path of a layer in our model -> modules of the checkpoint that it is made of. In both, {layer}
    stands for the first number of the path, {expert} for the second. Layers that the model lacks may be
    listed; every layer that owns parameters must be. A layer of all experts has no second number: it gets
    names with {expert} in them.
    """
    table: list[Weight] = []
    for path, module in model.named_modules():
        if isinstance(module, WeightOwner):
            pattern, numbers = _split_numbers(path)
            numbers.setdefault("expert", "{expert}")
            table += module.weights(*(name.format(**numbers) for name in names[pattern]))
    filled = sum(weight.target.numel() for weight in table)
    assert filled == sum(parameter.numel() for parameter in model.parameters()), "a parameter has no source"
    return table


def _split_numbers(path: str) -> tuple[str, dict[str, str]]:
    """ "blocks.3.mlp.experts.7.up" -> "blocks.{layer}.mlp.experts.{expert}.up", and the numbers by name."""
    numbers = dict(zip(("layer", "expert"), re.findall(r"(?<=\.)\d+", path), strict=False))
    names = iter(numbers)
    return re.sub(r"(?<=\.)\d+", lambda _: f"{{{next(names)}}}", path), numbers


class Checkpoint(TensorSource):
    """The safetensors files of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._files: dict[str, Any] = {}  # tensor -> open file
        self._names: dict[str, str] = {}  # tensor -> file name, for messages

    def __enter__(self) -> "Checkpoint":
        with self._stack:
            if inside(self._folder, SINGLE_FILE, WHAT).exists():
                self._open(SINGLE_FILE, None)
            elif (index := read_object(self._folder, INDEX_FILE, WHAT)) is not None:
                for file_name, tensors in _read_index(index).items():
                    self._open(file_name, tensors)
            else:
                raise _no_checkpoint(self._folder)
            self._stack = self._stack.pop_all()
        return self

    def close(self) -> None:
        """See TensorSource."""
        self._stack.close()

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def names(self) -> list[str]:
        """Names of all tensors."""
        return list(self._files)

    def file_of(self, name: str) -> str:
        """Returns the name of the file that holds a tensor."""
        return self._names[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns a tensor's shape, read from the header."""
        return tuple(self._files[name].get_slice(name).get_shape())

    def dtype(self, name: str) -> torch.dtype:
        """Returns a tensor's dtype, read from the header. Raises StartupError if it does not hold plain
        floats."""
        kind = self._files[name].get_slice(name).get_dtype()
        if kind not in FLOATS:
            raise StartupError(
                WHAT,
                f"tensor {name} in {self._names[name]} holds {kind}, not one of {', '.join(FLOATS)}",
                "config.json has no quantization_config that says what these integers stand for",
            )
        return FLOATS[kind]

    def kind(self, name: str) -> str:
        """Returns the name that safetensors gives a tensor's type, such as "BF16" or "I32"."""
        kind: str = self._files[name].get_slice(name).get_dtype()
        return kind

    def num_bytes(self, name: str) -> int:
        """Returns the bytes of a tensor, read from the header."""
        return math.prod(self.shape(name)) * _BYTES.get(self.kind(name), 1)

    def read(self, name: str, part: tuple[slice, ...]) -> torch.Tensor:
        """Reads a part of a tensor, and nothing else of it. Raises StartupError."""
        try:
            tensor: torch.Tensor = self._files[name].get_slice(name)[part or ...]
        except (SafetensorError, OSError) as error:
            raise StartupError(WHAT, f"tensor {name} in {self._names[name]}: {error}") from error
        return tensor

    def _open(self, file_name: str, expected: list[str] | None) -> None:
        """expected: the tensors that the index lists for this file."""
        path = inside(self._folder, file_name, WHAT)
        try:
            file = self._stack.enter_context(safe_open(path, framework="pt"))
        except FileNotFoundError as error:
            raise StartupError(WHAT, f"{INDEX_FILE} names {file_name}, which is missing") from error
        except (SafetensorError, OSError) as error:
            raise StartupError(
                WHAT, f"{file_name} is damaged: {error}", "download or copy the file again"
            ) from error
        held = set(file.keys())
        for name in expected or ():
            if name not in held:
                raise StartupError(WHAT, f"{INDEX_FILE} promises tensor {name} in {file_name}: not there")
        for name in held:
            if name in self._files:
                raise StartupError(WHAT, f"tensor {name} is in {self._names[name]} and in {file_name}")
            self._files[name], self._names[name] = file, file_name


def stored_names(checkpoint: TensorSource, table: list[Weight], optional_prefix: str = "") -> dict[str, str]:
    """Returns the names of a table's tensors in a checkpoint. optional_prefix: part of the names that
    checkpoints of the bare model lack."""
    strip = bool(optional_prefix) and not any(n.startswith(optional_prefix) for n in checkpoint.names())
    return {w.name: w.name.removeprefix(optional_prefix) if strip else w.name for w in table}


def load_weights(
    checkpoint: TensorSource,
    table: list[Weight],
    unused: str,
    progress: Progress,
    optional_prefix: str = "",
    fill: Fill | None = None,
) -> None:
    """Fills all targets. Raises StartupError if a tensor is missing, unknown, or has another shape, and if it
    holds NaN or infinity.

    unused: pattern of the tensors that may be there without being needed. optional_prefix: see
    stored_names(). fill: None: fill_target().
    """
    sources = stored_names(checkpoint, table, optional_prefix)
    _check_names(checkpoint, set(sources.values()), unused)
    for weight in table:
        name = sources[weight.name]
        if checkpoint.shape(name) != weight.shape:
            raise StartupError(
                WHAT,
                f"tensor {name} in {checkpoint.file_of(name)} has shape {list(checkpoint.shape(name))}, "
                f"but config.json asks for {list(weight.shape)}",
            )
        checkpoint.dtype(name)
    total = sum(weight.target.numel() * weight.target.itemsize for weight in table)
    done = 0
    with one_thread_each():
        works = [partial(fill or fill_target, checkpoint, weight, sources[weight.name]) for weight in table]
        for count in run_side_by_side(works, 1 if checkpoint.packing() else READERS):
            done += count
            progress(done / total)


def fill_target(checkpoint: TensorSource, weight: Weight, name: str) -> Iterator[int]:
    """Fills a target, a few rows at a time, so that what a tensor is unpacked to is never held whole. Yields
    the bytes of each piece."""
    target = weight.target.t() if weight.transposed else weight.target
    first, *rest = weight.part or (slice(None),)
    begin, end, _ = first.indices(weight.shape[0])
    places = places_of(weight.order, end - begin) if weight.order else None
    step = max(1, PIECE_VALUES // math.prod(weight.shape[1:]))
    for row in range(begin, end, step):
        rows = slice(row, min(row + step, end))
        tensor = read_finite(checkpoint, name, (rows, *rest))
        piece = slice(row - begin, rows.stop - begin)
        if places is None:
            target[piece].copy_(tensor.view(target[piece].shape))
        else:
            wanted = places[piece] >= 0
            target[places[piece][wanted]] = tensor[wanted].to(target.dtype)
        yield tensor.numel() * target.itemsize


def places_of(order: tuple[int, ...], rows: int) -> torch.Tensor:
    """Returns where each of so many rows goes; -1: nowhere. order: as in Weight."""
    if not order:
        return torch.arange(rows)
    places = torch.full((rows,), -1)
    places[torch.tensor(order)] = torch.arange(len(order))
    return places


def read_finite(checkpoint: TensorSource, name: str, part: tuple[slice, ...]) -> torch.Tensor:
    """Reads a part of a tensor. Raises StartupError if it holds NaN or infinity."""
    tensor = checkpoint.read(name, part)
    check_finite(tensor, checkpoint, name)
    return tensor


def check_finite(tensor: torch.Tensor, checkpoint: TensorSource, name: str) -> None:
    """Raises StartupError if what a tensor of that name is made of holds NaN or infinity."""
    if not _is_finite(tensor):
        what = "NaN" if tensor.isnan().any() else "infinity"
        raise StartupError(
            WHAT,
            f"tensor {name} in {checkpoint.file_of(name)} holds {what}",
            "download or copy the file again",
        )


def _is_finite(tensor: torch.Tensor) -> bool:
    """True if no value is NaN or infinite. A sum tells, unless it overflows itself."""
    return bool(tensor.sum(dtype=torch.float32).isfinite()) or bool(tensor.isfinite().all())


def fill_dummy(table: list[Weight], seed: int, progress: Progress) -> None:
    """Fills the model with random weights: norms near 1, all else near 0, the same for each rank of a group.
    Drawn where they will be: a CPU takes minutes for 8 billion of them, a GPU a second, but draws others."""
    for index, weight in enumerate(table):
        key = (seed * 1_000_003 + zlib.crc32(weight.name.encode())) % (1 << 63)
        where = weight.target.device
        generator = torch.Generator(where).manual_seed(key)
        tensor = torch.randn(weight.shape, generator=generator, device=where) * DUMMY_STD
        if len(weight.shape) == 1 and weight.name.endswith(".weight"):
            tensor += 1
        tensor = tensor[weight.part or ...]
        if weight.order and len(weight.order) < len(tensor):
            tensor = tensor[list(weight.order)]
        weight.target.copy_(tensor.t() if weight.transposed else tensor.view(weight.target.shape))
        progress((index + 1) / len(table))


def _check_names(checkpoint: TensorSource, needed: set[str], unused: str) -> None:
    missing = sorted(name for name in needed if name not in checkpoint)
    if missing:
        raise StartupError(WHAT, f"the checkpoint lacks tensor {_and_more(missing)}")
    others = [n for n in checkpoint.names() if n not in needed and not re.fullmatch(unused, n)]
    extra = sorted(n for n in others if 0 not in checkpoint.shape(n))  # of parts that have no size, too
    if extra:
        raise StartupError(
            WHAT,
            f"the model has no place for tensor {_and_more(extra)} in {checkpoint.file_of(extra[0])}",
            "does config.json belong to these weights?",
        )


def _and_more(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} (and {len(names) - 1} more)"


def _read_index(index: dict[str, Any]) -> dict[str, list[str]]:
    """Returns file name -> the tensors that the index lists for it."""
    try:
        weight_map = index["weight_map"]
        files: dict[str, list[str]] = {}
        for tensor, file_name in weight_map.items():
            files.setdefault(file_name, []).append(tensor)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StartupError(WHAT, f"{INDEX_FILE} is damaged: {error!r}") from error
    if not files or not all(isinstance(name, str) for name in files):
        raise StartupError(WHAT, f"{INDEX_FILE} is damaged: weight_map must map tensors to files")
    return files


def _no_checkpoint(folder: Path) -> StartupError:
    pickles = sorted(
        path.name for suffix in ("bin", "pt", "pth", "ckpt") for path in folder.glob(f"*.{suffix}")
    )
    if pickles:
        return StartupError(
            WHAT,
            f"{folder} holds pickle files only ({pickles[0]}), which can run code when they are opened",
            "convert the checkpoint to safetensors (save_pretrained in transformers does)",
        )
    return StartupError(WHAT, f"{folder} holds neither {SINGLE_FILE} nor {INDEX_FILE}")
