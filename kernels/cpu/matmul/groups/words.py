"""The words of a weight in groups (kernels.cpu.matmul.groups.weight), without what multiplies with them: what
loading a checkpoint's own integers fills."""

from dataclasses import dataclass

import torch

from kernels.cpu.matmul.groups.e2m1 import INTEGERS, MIDDLE
from kernels.cpu.matmul.groups.records import LARGEST_ZERO
from kernels.cpu.runtime.arena import MATRIX_ROWS, Arena


@dataclass(frozen=True)
class GroupedWords:
    """Integers of 4 bits, scales and zero points; or codes of floats of 4 bits
    (kernels.cpu.matmul.groups.e2m1), whose zero points are MIDDLE."""

    words: torch.Tensor  # [ceil(N / 48), groups, G / 8 + 1, 48] int32
    out_features: int  # N
    in_features: int  # K
    group_size: int  # G
    order: torch.Tensor | None  # [K] int64: which input comes where; None: as they stand
    e2m1: bool = False  # whether they are codes of floats

    @property
    def groups(self) -> int:
        """Of the inputs."""
        return self.words.shape[1]

    @property
    def nbytes(self) -> int:
        """Of memory."""
        return self.words.nbytes + (0 if self.order is None else self.order.nbytes)

    def put(
        self, rows: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None = None
    ) -> None:
        """Writes some rows. rows: [R] int64, which ones; codes: [R, groups * G] uint8 of 0 .. 15, in the
        order of the groups; scales: [R, groups] float32, of which the lowest 8 bits are 0; zeros: [R, groups]
        of 0 .. LARGEST_ZERO; None: MIDDLE, of floats."""
        if not len(rows):
            return
        bits = scales.contiguous().view(torch.int32)
        zeros = torch.full_like(bits, MIDDLE) if zeros is None else zeros
        assert not (bits & 255).any() and int(zeros.min()) >= 0 and int(zeros.max()) <= LARGEST_ZERO
        assert not self.e2m1 or bool((zeros == MIDDLE).all())
        fours = codes.contiguous().view(torch.int32)  # little-endian: the lowest byte first
        eights = fours.view(len(rows), self.groups, -1, 2)
        words = torch.empty(len(rows), *self.words.shape[1:3], dtype=torch.int32)
        torch.bitwise_or(eights[..., 0], eights[..., 1] << 4, out=words[..., :-1])
        torch.bitwise_or(bits, zeros.int(), out=words[..., -1])
        self._scatter(rows, words.flatten(1))

    def _scatter(self, rows: torch.Tensor, words: torch.Tensor) -> None:
        """Writes the words of some rows, [R, groups * (G / 8 + 1)] int32. Rows that become neighbours in a
        block are written together: one by one, each of their words would be a cache line of its own."""
        if not bool((rows.diff() > 0).all()):
            order = rows.argsort()
            rows, words = rows[order], words[order]
        ends = (rows.diff() != 1) | (rows[1:] % MATRIX_ROWS == 0)
        begin = 0
        for end in (*(ends.nonzero().flatten() + 1).tolist(), len(rows)):
            block, first = divmod(int(rows[begin]), MATRIX_ROWS)
            target = self.words[block].view(-1, MATRIX_ROWS)[:, first : first + end - begin]
            target.copy_(words[begin:end].t())
            begin = end


def empty_words(
    shape: tuple[int, int],
    group_size: int,
    groups: int,
    order: torch.Tensor | None = None,
    arena: Arena | None = None,
    e2m1: bool = False,
) -> GroupedWords:
    """Words that are 0. shape: [N, K]; group_size: a multiple of 16; arena: of the model; e2m1: see
    GroupedWords."""
    out_features, in_features = shape
    size = -(-out_features // MATRIX_ROWS), groups, group_size // 8 + 1, MATRIX_ROWS
    words = (arena or Arena()).zeros(size, torch.int32)
    return GroupedWords(words, out_features, in_features, group_size, order, e2m1)


def integers_of(codes: torch.Tensor) -> torch.Tensor:
    """What stands for floats of 4 bits. codes: [...] of 0 .. 15 -> the same shape, uint8."""
    return torch.tensor(INTEGERS, dtype=torch.uint8)[codes.long()]
