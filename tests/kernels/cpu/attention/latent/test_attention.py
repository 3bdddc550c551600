"""Attention over latents against dense attention in float64, and against itself in other company."""

import numpy as np
import pytest
import torch

from kernels.cpu.attention.block_attention import BlockPlan
from kernels.cpu.attention.latent.attention import latent_attention, latent_kernels, store_latents
from kernels.ops.attention.store_kv import slot_rows
from tests.kernels.attention_cases import MIXED, Case
from tests.kernels.block_plans import plan_blocks
from tests.kernels.tolerances import assert_close

pytestmark = pytest.mark.cpu_kernels

BF16, F32 = torch.bfloat16, torch.float32
TOLERANCES = {BF16: (1.6e-2, 1.6e-2), F32: (1e-5, 1e-5)}
"""Those of attention over keys and values."""
BOTH = pytest.mark.parametrize("dtype", [BF16, F32], ids=["bfloat16", "float32"])
BOUNDARIES = [(0, 1), (511, 1), (512, 1), (513, 1), (1022, 4), (1024, 8)]
"""Rows that end just before, at and after the end of a part of 512 positions."""


class LatentCase(Case):
    """Rows whose keys are latents, stored by our kernel in blocks of NaN; values are a part of the keys."""

    def __init__(
        self,
        rows: list[tuple[int, int]],
        heads: int = 16,
        rank: int = 40,
        rotary_dim: int = 8,
        block_size: int = 16,
        dtype: torch.dtype = BF16,
    ) -> None:
        super().__init__(rows, dtype, heads, 1, rank + rotary_dim, block_size, scale=0.1)
        self.rank, self.values = rank, [key[..., :rank] for key in self.keys]
        kernels = latent_kernels(dtype, block_size, rank + rotary_dim, heads)
        assert kernels is not None
        self.kernels, self.plane = kernels, self.key_cache.fill_(torch.nan)
        for table, key in zip(self.tables, self.keys, strict=True):
            positions = np.arange(len(key))
            slots = table[positions // block_size] * block_size + positions % block_size
            wider = torch.nn.functional.pad(key[:, 0], (0, 3), value=torch.nan)  # rows lie apart
            rows_of = slot_rows(torch.from_numpy(slots), 1, block_size)
            store_latents(kernels, wider[:, :-3], self.plane, rows_of)

    def block_plan(self, rows: slice, skip: int = 0) -> BlockPlan:
        """skip: queries of each row that are left out, at its beginning."""
        starts, counts = self.starts[rows] + skip, self.counts[rows] - skip
        return plan_blocks(self.kernels, starts, counts, self.tables[rows], None, self.plane.shape[3], 1)

    def attend(self, query: torch.Tensor, plan: BlockPlan) -> torch.Tensor:
        return latent_attention(query, self.plane, plan, self.scale, self.rank)

    def run(self, window: int | None = None) -> torch.Tensor:
        assert window is None
        return self.attend(self.query, self.block_plan(slice(None)))


@BOTH
@pytest.mark.parametrize(
    ("heads", "rank", "rotary_dim", "block_size"),
    [(16, 40, 8, 16), (1, 16, 16, 32), (5, 31, 17, 16), (20, 512, 64, 64), (3, 960, 64, 16)],
)
def test_decode_and_prefill_in_one_step(
    heads: int, rank: int, rotary_dim: int, block_size: int, dtype: torch.dtype
):
    """Nothing of other rows, of unused blocks, or of what an earlier owner left in a block (NaN here); all
    numbers of pairs in an item, and the sizes that published models have."""
    case = LatentCase(MIXED, heads, rank, rotary_dim, block_size, dtype)
    assert_close(case.run(), case.exact(), *TOLERANCES[dtype])


@BOTH
@pytest.mark.parametrize("heads", [3, 4, 6, 8, 22])
def test_company_and_chunking_change_nothing(heads: int, dtype: torch.dtype):
    """A query's result is bitwise the same in a prompt of 90 tokens, in its later pieces, and alone."""
    case = LatentCase([(0, 90), (17, 1), (64, 31)], heads, dtype=dtype)
    together = case.run()
    alone = case.attend(case.query[90:91], case.block_plan(slice(1, 2)))
    assert torch.equal(alone, together[90:91])
    for skip in (1, 3, 16, 17, 61, 89):
        rest = case.attend(case.query[skip:90], case.block_plan(slice(0, 1), skip))
        assert torch.equal(rest, together[skip:90])


@BOTH
def test_rows_of_several_parts(dtype: torch.dtype):
    """A few long ones are split, so that any thread may take a part: the same bits as whole ones."""
    case = LatentCase(BOUNDARIES, 11, dtype=dtype)
    team = case.kernels.team
    before = team.threads
    try:
        team.set_threads(2)
        split = case.block_plan(slice(4, 6))
        assert len(split.partials)
        first = int(case.counts[:4].sum())
        results = case.attend(case.query[first:], split)
        team.set_threads(1)
        together = case.run()
    finally:
        team.set_threads(before)
    assert_close(together, case.exact(), *TOLERANCES[dtype])
    assert torch.equal(results, together[first:])


def test_sizes_that_do_not_fit():
    """Other widths and blocks, other dtypes, and a width beyond a query's room."""
    for dtype, block_size, width in ((BF16, 16, 40), (F32, 8, 48), (torch.float16, 16, 48), (F32, 16, 1040)):
        assert latent_kernels(dtype, block_size, width, 4) is None
