"""Reads the files of an adapter, which are not trusted. Tensors are read once: the digest is that of the
bytes that are loaded."""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import safetensors
import torch

from pagewire.checkpoints.files import inside, read_object
from worker.adapters.adapter import AdapterError
from worker.adapters.config import AdapterConfig, read_adapter_config
from worker.weights.checkpoint import FLOATS

WHAT = "cannot load the adapter"
CONFIG_FILE = "adapter_config.json"
TENSORS_FILE = "adapter_model.safetensors"
MAX_HEADER_BYTES = 8 << 20
MAX_TENSORS = 1 << 16
DIGEST_BYTES = 32


@dataclass(frozen=True)
class AdapterFile:
    """What the files hold."""

    config: AdapterConfig
    tensors: Mapping[str, torch.Tensor]
    """By peft's names. Finite, and of one, two or more dimensions."""
    digest: bytes


def read_folder(folder: Path, max_bytes: int) -> AdapterFile:
    """Reads adapter_config.json and adapter_model.safetensors. Raises AdapterError, and StartupError for
    paths and JSON that are damaged."""
    values = read_object(folder, CONFIG_FILE, WHAT)
    if values is None:
        raise AdapterError(f"{folder} has no {CONFIG_FILE}")
    config = read_adapter_config(values)
    path = inside(folder, TENSORS_FILE, WHAT)
    if not path.exists():
        raise _no_tensors(folder)
    content = read_once(path, max_bytes)
    return AdapterFile(config, _parse(content), digest_of(config, content))


def digest_of(config: AdapterConfig, content: bytes) -> bytes:
    """Returns the identity of an adapter: 32 bytes."""
    canonical = config.canonical()
    digest = blake2b(len(canonical).to_bytes(8, "little"), digest_size=DIGEST_BYTES)
    digest.update(canonical)
    digest.update(content)
    return digest.digest()


def read_once(path: Path, max_bytes: int) -> bytes:
    """Returns the bytes of a regular file. Raises AdapterError where it is larger, or changes meanwhile."""
    try:
        # Neither another link nor a FIFO may have taken the file's name since it was resolved.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            before = os.fstat(descriptor)
            if not stat.S_ISREG(before.st_mode):
                raise AdapterError(f"{path.name} is not a file")
            if before.st_size > max_bytes:
                size = f"{before.st_size} bytes, more than {max_bytes} (--lora-memory)"
                raise AdapterError(f"{path.name} has {size}")
            content = file.read(before.st_size + 1)
            after = os.fstat(descriptor)
    except OSError as error:
        raise AdapterError(f"{path.name} cannot be read: {error.strerror}") from error
    if len(content) != before.st_size or after.st_mtime_ns != before.st_mtime_ns:
        raise AdapterError(f"{path.name} was changed while it was read: load the adapter again")
    return content


def check_finite(name: str, tensor: torch.Tensor) -> None:
    """Raises AdapterError if a tensor holds NaN or infinity."""
    if not tensor.isfinite().all():
        raise AdapterError(f"tensor {name} holds {'NaN' if tensor.isnan().any() else 'infinity'}")


def _parse(content: bytes) -> dict[str, torch.Tensor]:
    """Returns the tensors of a safetensors file. Raises AdapterError."""
    if (length := int.from_bytes(content[:8], "little")) > MAX_HEADER_BYTES:
        raise AdapterError(f"{TENSORS_FILE} has a header of {length} bytes, more than {MAX_HEADER_BYTES}")
    try:
        stored: list[tuple[str, dict[str, Any]]] = safetensors.deserialize(content)  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        raise AdapterError(f"{TENSORS_FILE} is damaged: {error}") from error
    if len(stored) > MAX_TENSORS:
        raise AdapterError(f"{TENSORS_FILE} has {len(stored)} tensors, more than {MAX_TENSORS}")
    tensors: dict[str, torch.Tensor] = {}
    for name, values in stored:
        if values["dtype"] not in FLOATS:
            raise AdapterError(f"tensor {name} holds {values['dtype']}, not one of {', '.join(FLOATS)}")
        if not values["data"]:
            raise AdapterError(f"tensor {name} has shape {values['shape']}: it is empty")
        flat = torch.frombuffer(values["data"], dtype=FLOATS[values["dtype"]])
        tensors[name] = flat.view(values["shape"])
        check_finite(name, flat)
    return tensors


def _no_tensors(folder: Path) -> AdapterError:
    pickles = sorted(path.name for suffix in ("bin", "pt", "pth") for path in folder.glob(f"*.{suffix}"))
    if pickles:
        return AdapterError(
            f"{folder} holds a pickle only ({pickles[0]}), which can run code when it is opened: "
            "convert it to safetensors (save_pretrained in peft does)"
        )
    return AdapterError(f"{folder} has no {TENSORS_FILE}")
