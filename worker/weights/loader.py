"""From a checkpoint to parameters: only the part of each tensor that this rank holds.

A model says where each tensor goes (weight_table()). Then every parameter must be filled, and every
tensor of the files must be used or known to be unused; otherwise a StartupError names the tensor or the file.
"""

import math
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from threading import Event

import torch

from pagewire.errors import StartupError
from worker.layers.base import Weight, WeightOwner
from worker.weights.source import WHAT, TensorSource

Progress = Callable[[float], None]
"""Called with the fraction of all bytes that is done, 0 to 1."""
Fill = Callable[[TensorSource, Weight, str], Iterator[int]]
"""Fills the target of a weight from the tensor of that name, and yields the bytes of each piece."""
Work = Callable[[], Iterator[int]]
"""Does a little at each step, and yields how much."""

DUMMY_STD = 0.02
PIECE_VALUES = 1 << 20
"""Values of a tensor that are read at once."""
READERS = 4
"""Tensors that are read at once: while one waits for the disk, others are copied or unpacked."""
LARGE_PIECE = 4 * PIECE_VALUES
"""Values. A row of a packed tensor that has more, such as an expert, is unpacked whole, to float32: several
at once could take more memory than a shard."""


def weight_table(model: torch.nn.Module, names: Mapping[str, tuple[str, ...]]) -> list[Weight]:
    """Resolves a family's table of names for one model.

    names: path of a layer in our model -> modules of the checkpoint that it is made of. In both, {layer}
    stands for the first number of the path, {expert} for the second. Layers that the model lacks may be
    listed; every layer that owns parameters must be. A layer of all experts has no second number: it gets
    names with {expert} in them.
    """
    table = [
        weight for layer, modules in layers_and_names(model, names) for weight in layer.weights(*modules)
    ]
    filled = sum(weight.target.numel() for weight in table)
    assert filled == sum(parameter.numel() for parameter in model.parameters()), "a parameter has no source"
    return table


def layers_and_names(
    model: torch.nn.Module, names: Mapping[str, tuple[str, ...]]
) -> Iterator[tuple[WeightOwner, tuple[str, ...]]]:
    """Yields each layer that owns parameters, and the checkpoint's modules that it is made of. names: as for
    weight_table()."""
    for path, module in model.named_modules():
        if isinstance(module, WeightOwner):
            pattern, numbers = _split_numbers(path)
            numbers.setdefault("expert", "{expert}")
            yield module, tuple(name.format(**numbers) for name in names[pattern])


def _split_numbers(path: str) -> tuple[str, dict[str, str]]:
    """ "blocks.3.mlp.experts.7.up" -> "blocks.{layer}.mlp.experts.{expert}.up", and the numbers by name."""
    numbers = dict(zip(("layer", "expert"), re.findall(r"(?<=\.)\d+", path), strict=False))
    names = iter(numbers)
    return re.sub(r"(?<=\.)\d+", lambda _: f"{{{next(names)}}}", path), numbers


def stored_names(
    checkpoint: TensorSource, table: Iterable[Weight | str], optional_prefix: str = ""
) -> dict[str, str]:
    """Returns the names of a table's tensors in a checkpoint. optional_prefix: part of the names that
    checkpoints of the bare model lack."""
    strip = bool(optional_prefix) and not any(n.startswith(optional_prefix) for n in checkpoint.names())
    names = (each if isinstance(each, str) else each.name for each in table)
    return {name: name.removeprefix(optional_prefix) if strip else name for name in names}


def load_weights(
    checkpoint: TensorSource,
    table: list[Weight],
    unused: str,
    progress: Progress,
    optional_prefix: str = "",
    fill: Fill | None = None,
    others: Collection[str] = (),
) -> None:
    """Fills all targets. Raises StartupError if a tensor is missing, unknown, or has another shape, and if it
    holds NaN or infinity.

    unused: pattern of the tensors that may be there without being needed. optional_prefix: see
    stored_names(). fill: None: fill_target(). others: tensors that other ranks read.
    """
    sources = stored_names(checkpoint, table, optional_prefix)
    of_others = stored_names(checkpoint, others, optional_prefix)
    _check_names(checkpoint, {*sources.values(), *of_others.values()}, unused)
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
        readers = (
            1 if any(_is_large_piece(checkpoint, each, sources[each.name]) for each in table) else READERS
        )
        for count in run_side_by_side(works, readers):
            done += count
            progress(done / total)


def run_side_by_side(works: Sequence[Work], num_threads: int) -> Iterator[int]:
    """Runs all, so many at a time and in this order, and yields what they yield. The first that fails ends
    all, and its exception is raised."""
    told: SimpleQueue[int | BaseException | None] = SimpleQueue()
    stop = Event()
    inference = torch.is_inference_mode_enabled()  # of this thread alone

    def run(work: Work) -> None:
        try:
            with torch.inference_mode(inference):
                for count in work():
                    told.put(count)
                    if stop.is_set():
                        return
            told.put(None)
        except BaseException as error:
            told.put(error)

    with ThreadPoolExecutor(num_threads, thread_name_prefix="weights") as pool:
        for work in works:
            pool.submit(run, work)
        left = len(works)
        try:
            while left:
                message = told.get()
                if isinstance(message, BaseException):
                    raise message
                if message is None:
                    left -= 1
                else:
                    yield message
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Operations of torch do not start threads of their own here: waiting for these at the end of each short
    operation took forty times as long where they had no core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def fill_target(checkpoint: TensorSource, weight: Weight, name: str) -> Iterator[int]:
    """Fills a target, a few rows at a time, so that what a tensor is unpacked to is never held whole. Yields
    the bytes of each piece."""
    if weight.largest is not None:
        yield from _fill_measured(checkpoint, weight, name)
        return
    if not weight.shape:  # a bound, which may be infinite
        value = checkpoint.read(name, ())
        check_finite(value.nan_to_num(nan=torch.nan, posinf=0.0, neginf=0.0), checkpoint, name)
        weight.target.copy_(value)
        yield weight.target.itemsize
        return
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


def _fill_measured(checkpoint: TensorSource, weight: Weight, name: str) -> Iterator[int]:
    """Fills a target [out, in of a rank], and the largest value of each output with all of its inputs."""
    assert weight.largest is not None
    outputs, held = weight.shape[weight.transposed], weight.part[not weight.transposed]
    step = max(1, PIECE_VALUES * outputs // math.prod(weight.shape))
    for first in range(0, outputs, step):
        rows = slice(first, min(first + step, outputs))
        values = read_outputs(checkpoint, replace(weight, part=()), name, rows).to(weight.target.dtype)
        weight.largest[rows] = values.abs().amax(1).float()
        weight.target[rows] = values[:, held]
        yield weight.target[rows].nbytes


def read_outputs(checkpoint: TensorSource, weight: Weight, name: str, rows: slice) -> torch.Tensor:
    """Reads some outputs with all inputs of the part, [R, K], also of a tensor [in, out]."""
    if not weight.transposed:
        return read_finite(checkpoint, name, (rows, *weight.part[1:]))
    return read_finite(checkpoint, name, (weight.part[0] if weight.part else slice(None), rows)).t()


def _is_large_piece(checkpoint: TensorSource, weight: Weight, name: str) -> bool:
    """True if so much of a packed tensor is unpacked at once that others have to wait."""
    is_unpacked = bool(checkpoint.packing_of(name)) and not weight.target.is_meta
    return is_unpacked and math.prod(weight.shape[1:]) > LARGE_PIECE


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
    """True if no value is NaN or infinite. A sum tells, unless it overflows itself.

    bfloat16 has the exponents of float32, and its own sum makes no copy in float32: a quarter of the time.
    """
    total = tensor.sum() if tensor.dtype == torch.bfloat16 else tensor.sum(dtype=torch.float32)
    return bool(total.isfinite()) or bool(tensor.isfinite().all())


def fill_dummy(
    table: list[Weight],
    seed: int,
    progress: Progress,
    where: torch.device,
    write: Callable[[Weight, torch.Tensor], None],
) -> None:
    """Fills the model with random weights: norms near 1, all else near 0, the same for each rank of a group.
    Drawn where they will be: a CPU takes minutes for 8 billion of them, a GPU a second, but draws others.

    write: worker.weights.held_bits.HeldBits.write().
    """
    for index, weight in enumerate(table):
        key = (seed * 1_000_003 + zlib.crc32(weight.name.encode())) % (1 << 63)
        generator = torch.Generator(where).manual_seed(key)
        tensor = torch.randn(weight.shape, generator=generator, device=where) * DUMMY_STD
        if len(weight.shape) == 1 and weight.name.endswith(".weight"):
            tensor += 1
        if weight.largest is not None:
            outputs = tensor.t() if weight.transposed else tensor
            weight.largest.copy_(outputs.to(weight.target.dtype).abs().amax(1))
        tensor = tensor[weight.part or ...]
        if weight.order and len(weight.order) < len(tensor):
            tensor = tensor[list(weight.order)]
        write(weight, tensor)
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


def check_tied_head(
    checkpoint: TensorSource, names: Mapping[str, tuple[str, ...]], optional_prefix: str = ""
) -> None:
    """Raises StartupError where the checkpoint has a head with other values than the embedding, of which one
    would be ignored. names: of the family; optional_prefix: see load_weights()."""
    (embedding,), (head,) = names["embedding"], names["head"]
    stored = (f"{embedding}.weight", f"{embedding.removeprefix(optional_prefix)}.weight")
    found = next((name for name in stored if name in checkpoint), None)
    if found is None or f"{head}.weight" not in checkpoint or _are_equal(checkpoint, found, f"{head}.weight"):
        return
    raise StartupError(
        WHAT,
        f"config.json ties the head to the embedding, but tensors {head}.weight and {found} differ",
        f"set tie_word_embeddings to false in config.json, or remove {head}.weight from the checkpoint",
    )


def _are_equal(checkpoint: TensorSource, one: str, other: str) -> bool:
    """Reads both a few rows at a time."""
    shape = checkpoint.shape(one)
    if checkpoint.shape(other) != shape or len(shape) != 2:
        return False
    step = max(1, PIECE_VALUES // shape[1])
    parts = [(slice(row, min(row + step, shape[0])),) for row in range(0, shape[0], step)]
    return all(
        torch.equal(checkpoint.read(one, part).float(), checkpoint.read(other, part).float())
        for part in parts
    )
