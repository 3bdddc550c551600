"""The safetensors files of a folder, read through memory maps, and only the part of each tensor that is asked
for. Checkpoints in pickle form (pytorch_model.bin) are never read."""

import math
import re
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from pagewire.checkpoints.files import inside, read_object
from pagewire.errors import StartupError
from worker.weights.source import WHAT, TensorSource

FLOATS = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_BYTES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "BF16": 2, "F16": 2, "I16": 2}
_OLD_KINDS = {"gamma": "weight", "beta": "bias"}
_OLD_NORM = re.compile(r"(?<=\.)LayerNorm\.(gamma|beta)$")
"""Names in checkpoints that were converted from the TensorFlow of BERT."""
SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


class Checkpoint(TensorSource):
    """The safetensors files of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._files: dict[str, Any] = {}  # tensor -> open file
        self._stored: dict[str, str] = {}  # tensor -> its name in the file
        self._names: dict[str, str] = {}  # tensor -> file name, for messages

    def __enter__(self) -> "Checkpoint":
        with self._stack:
            if inside(self._folder, SINGLE_FILE, WHAT).exists():
                self._open(SINGLE_FILE, None)
            elif (index := read_object(self._folder, INDEX_FILE, WHAT)) is not None:
                files = _read_index(index)
                indexed = {name: file_name for file_name, tensors in files.items() for name in tensors}
                for file_name, tensors in files.items():
                    self._open(file_name, tensors, indexed)
            else:
                raise _no_checkpoint(self._folder)
            self._stack = self._stack.pop_all()
        return self

    def close(self) -> None:
        self._stack.close()

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def names(self) -> list[str]:
        return list(self._files)

    def file_of(self, name: str) -> str:
        return self._names[name]

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._slice(name).get_shape())

    def dtype(self, name: str) -> torch.dtype:
        kind = self._slice(name).get_dtype()
        if kind not in FLOATS:
            raise StartupError(
                WHAT,
                f"tensor {name} in {self._names[name]} holds {kind}, not one of {', '.join(FLOATS)}",
                "config.json has no quantization_config that says what these integers stand for",
            )
        return FLOATS[kind]

    def kind(self, name: str) -> str:
        """Returns the name that safetensors gives a tensor's type, such as "BF16" or "I32"."""
        kind: str = self._slice(name).get_dtype()
        return kind

    def num_bytes(self, name: str) -> int:
        """Returns the bytes of a tensor, read from the header."""
        return math.prod(self.shape(name)) * _BYTES.get(self.kind(name), 1)

    def read(self, name: str, part: tuple[slice, ...]) -> torch.Tensor:
        try:
            tensor: torch.Tensor = self._slice(name)[part or ...]
        except (SafetensorError, OSError) as error:
            raise StartupError(WHAT, f"tensor {name} in {self._names[name]}: {error}") from error
        return tensor

    def _slice(self, name: str) -> Any:
        return self._files[name].get_slice(self._stored[name])

    def _open(
        self, file_name: str, expected: list[str] | None, indexed: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """expected: the tensors that the index lists for this file. indexed: the file of each tensor; a
        tensor of that name in another file is passed over."""
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
        for stored in held:
            if indexed.get(stored, file_name) != file_name:
                continue
            name = _OLD_NORM.sub(lambda match: f"LayerNorm.{_OLD_KINDS[match[1]]}", stored)
            if name in self._files:
                raise StartupError(WHAT, f"tensor {name} is in {self._names[name]} and in {file_name}")
            self._files[name], self._names[name], self._stored[name] = file, file_name, stored


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
