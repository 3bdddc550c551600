"""Weights for a model that `transformers` makes: read through our own checks, put in place by its own names.

transformers knows what its checkpoints call things, and what it fuses or splits when it loads them. It gets
tensors that are read when it asks for one, and where they need no other dtype they are
views of the files.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from pagewire.errors import StartupError
from pagewire_transformers.config import TransformersConfig
from pagewire_transformers.interface import PROBING
from pagewire_transformers.refusals import first_line, refusal
from worker.weights.checkpoint import Checkpoint
from worker.weights.loader import Progress, read_finite
from worker.weights.sizes import capacity_of

WHAT = "cannot load the model's weights"
_OLD_BUFFERS = (".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias", ".attention.bias", ".masked_bias")
"""Ends of the names of tensors that older checkpoints hold, and that no model needs."""


class LazyTensor:
    """A tensor of a checkpoint as transformers takes it: `tensor[...]` reads it."""

    def __init__(self, read: Callable[[], torch.Tensor]) -> None:
        self._read = read

    def __getitem__(self, index: object) -> torch.Tensor:
        return self._read()


class Reader:
    """Reads the tensors of a checkpoint once each, and counts bytes."""

    def __init__(self, checkpoint: Checkpoint, progress: Progress) -> None:
        self._checkpoint, self._progress = checkpoint, progress
        self._total = sum(map(checkpoint.num_bytes, checkpoint.names()))
        self._done = 0
        self.failure: StartupError | None = None  # transformers turns exceptions into text

    def tensors(self) -> dict[str, LazyTensor]:
        """Returns all tensors by name. Raises StartupError for one that is no float."""
        for name in self._checkpoint.names():
            self._checkpoint.dtype(name)
        return {name: self._lazy(name) for name in self._checkpoint.names()}

    def _lazy(self, name: str) -> LazyTensor:
        return LazyTensor(lambda: self._take(name))

    def _take(self, name: str) -> torch.Tensor:
        try:
            tensor = read_finite(self._checkpoint, name, ())
        except StartupError as error:
            self.failure = self.failure or error
            raise
        self._done += self._checkpoint.num_bytes(name)
        self._progress(self._done / self._total)
        return tensor


def load(
    config: TransformersConfig,
    path: Path,
    choose: Callable[[torch.dtype], torch.dtype],
    progress: Progress,
) -> tuple[Any, torch.dtype]:
    """Returns the model with its weights, and their dtype. Raises StartupError for tensors that are missing,
    unknown, of another shape, or not finite."""
    kind = model_class(config)
    with Checkpoint(path) as checkpoint:
        capacity = capacity_of(config, checkpoint)
        dtype = choose(said_dtype(config) or checkpoint.main_dtype())
        reader = Reader(checkpoint, progress)
        with refusing_what_fails(config):
            with torch.device("meta"):  # what has another shape than its tensor would be allocated below
                for parameter in kind(copy.deepcopy(config.hf)).parameters():
                    capacity.take(tuple(parameter.shape))
            model, found = kind.from_pretrained(
                None,
                config=config.hf,
                state_dict=reader.tensors(),
                dtype=dtype,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # they are reported, and refused below
            )
        if reader.failure is not None:
            raise reader.failure
        _check(found)
    return model, dtype


@contextmanager
def refusing_what_fails(config: TransformersConfig) -> Iterator[None]:
    """Raises StartupError where the code of a model fails while the model is made."""
    try:
        yield
    except StartupError:
        raise
    except Exception as error:  # of a hundred families' code
        why = f"its code fails while the model is made: {type(error).__name__}: {first_line(error)}"
        if PROBING in str(error):
            why = f"the code of {config.architecture} has no attention interface"
        raise refusal(why) from error


def said_dtype(config: TransformersConfig) -> torch.dtype | None:
    """Returns the dtype that config.json says; None: it does not."""
    return None if config.dtype is None else getattr(torch, config.dtype)


def dummy(config: TransformersConfig, dtype: torch.dtype, seed: int) -> Any:
    """Returns the model with random weights, as transformers draws them."""
    with torch.random.fork_rng():
        torch.manual_seed(seed % (1 << 63))
        with refusing_what_fails(config):
            return model_class(config)._from_config(config.hf, dtype=dtype)


def model_class(config: TransformersConfig) -> Any:
    """Returns the class of the model. Raises StartupError where its code cannot be imported."""
    import transformers

    known = getattr(transformers, config.architecture, None)
    if known is not None:
        return known
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    try:
        return get_class_from_dynamic_module(
            config.hf.auto_map["AutoModelForCausalLM"], config.hf.name_or_path
        )
    except Exception as error:  # whatever the checkpoint's code raises
        raise StartupError(WHAT, f"the code of {config.architecture} cannot be imported: {error}") from error


def _check(found: dict[str, Any]) -> None:
    """Raises StartupError unless every tensor has found its place. found: transformers' loading info."""
    missing = sorted(found["missing_keys"])
    if missing:
        raise StartupError(WHAT, f"the checkpoint lacks tensor {_and_more(missing)}")
    if found["mismatched_keys"]:
        name, stored, asked = min(found["mismatched_keys"])
        raise StartupError(
            WHAT, f"tensor {name} has shape {list(stored)}, but config.json asks for {list(asked)}"
        )
    extra = sorted(name for name in found["unexpected_keys"] if not name.endswith(_OLD_BUFFERS))
    if extra:
        raise StartupError(
            WHAT,
            f"the model has no place for tensor {_and_more(extra)}",
            "does config.json belong to these weights?",
        )
    if found["error_msgs"]:
        raise StartupError(WHAT, f"transformers says: {found['error_msgs'][0]}")


def _and_more(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} (and {len(names) - 1} more)"
