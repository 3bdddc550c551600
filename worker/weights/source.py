"""Where weights come from: tensors by name, whatever files and formats hold them."""

from abc import ABC, abstractmethod

import torch


class TensorSource(ABC):
    """The tensors of a checkpoint under the names of the model's family. Use as a context manager.

    Opening reads headers only. A tensor that is stored packed is unpacked when it is read, and only the part
    that is read.
    """

    def __enter__(self) -> "TensorSource":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __contains__(self, name: object) -> bool:
        return name in self.names()

    @abstractmethod
    def close(self) -> None:
        """Closes the files."""

    @abstractmethod
    def names(self) -> list[str]:
        """Names of all tensors."""

    @abstractmethod
    def file_of(self, name: str) -> str:
        """Returns the name of the file that holds a tensor."""

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]:
        """Returns a tensor's shape, read from headers."""

    @abstractmethod
    def dtype(self, name: str) -> torch.dtype:
        """Returns the dtype of what read() returns. Raises StartupError if these are no floats."""

    @abstractmethod
    def read(self, name: str, part: tuple[slice, ...]) -> torch.Tensor:
        """Reads a part of a tensor: slices of its first dimensions, without steps. Raises StartupError."""

    def main_dtype(self) -> torch.dtype:
        """Returns the dtype in which these tensors are computed with, unless something else is said: that of
        the first tensor with more than one dimension, since norms may be stored wider."""
        matrices = [name for name in self.names() if len(self.shape(name)) > 1]
        return self.dtype(min(matrices)) if matrices else torch.float32

    def packing(self) -> str:
        """Returns the formats of packed weights, such as "Q4_K, Q6_K"; empty where all are plain floats."""
        return ""

    def stored_bytes(self) -> int:
        """Returns the bytes of the files' tensors; 0 where nothing is packed."""
        return 0
