"""block_attention on a cache in its own order, against dense attention in float64."""

import numpy as np
import pytest
import torch

from kernels.cpu.attention.block_attention import (
    BlockKernels,
    BlockPlan,
    block_attention,
    block_kernels,
    scoring_record,
)
from kernels.ops.attention.store_kv import slot_rows
from tests.kernels.attention_cases import IMAGES, MIXED, Case
from tests.kernels.block_plans import plan_blocks
from tests.kernels.tolerances import assert_close

pytestmark = pytest.mark.cpu_kernels

BF16, F32 = torch.bfloat16, torch.float32
TOLERANCES = {BF16: (1.6e-2, 1.6e-2), F32: (1e-5, 1e-5)}
"""As for torch's attention: in bfloat16 weights and results are rounded to 8 bits."""
BOTH = pytest.mark.parametrize("dtype", [BF16, F32], ids=["bfloat16", "float32"])


def kernels_for(
    group: int, block_size: int = 16, head_dim: int = 32, dtype: torch.dtype = BF16
) -> BlockKernels:
    made = block_kernels(dtype, block_size, head_dim, group)
    assert made is not None
    return made


class BlockCase(Case):
    """The same rows, stored by our kernel; all else is NaN here too."""

    def __init__(
        self,
        rows: list[tuple[int, int]],
        heads: int = 6,
        kv_heads: int = 2,
        head_dim: int = 32,
        block_size: int = 16,
        dtype: torch.dtype = BF16,
    ) -> None:
        super().__init__(rows, dtype, heads, kv_heads, head_dim, block_size)
        self.kernels = kernels_for(heads // kv_heads, block_size, head_dim, dtype)
        self.key_cache.fill_(torch.nan)
        self.value_cache.fill_(torch.nan)
        for table, key, value in zip(self.tables, self.keys, self.values, strict=True):
            positions = np.arange(len(key))
            slots = table[positions // block_size] * block_size + positions % block_size
            store = slot_rows(torch.from_numpy(slots), kv_heads, block_size)
            self.kernels.store_kv(key, value, self.key_cache, self.value_cache, store)

    def block_plan(
        self,
        rows: slice,
        window: int | None,
        skip: int = 0,
        chunked: bool = False,
        bidirectional: bool = False,
    ) -> BlockPlan:
        """skip: queries of each row that are left out, at its beginning."""
        starts, counts = self.starts[rows] + skip, self.counts[rows] - skip
        sizes = self.query.shape[2], self.key_cache.shape[1]
        seen = chunked, bidirectional
        return plan_blocks(self.kernels, starts, counts, self.tables[rows], window, *sizes, *seen)

    def attend(
        self,
        query: torch.Tensor,
        plan: BlockPlan,
        soft_cap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        scoring = scoring_record(soft_cap, sinks)
        return block_attention(query, self.key_cache, self.value_cache, plan, self.scale, scoring)

    def run(self, window: int | None = None) -> torch.Tensor:
        return self.attend(self.query, self.block_plan(slice(None), window))


@BOTH
@pytest.mark.parametrize("window", [None, 1, 3, 16, 40])
@pytest.mark.parametrize("block_size", [16, 32, 128])
def test_decode_and_prefill_in_one_step(block_size: int, window: int | None, dtype: torch.dtype):
    """Nothing of other rows, of unused blocks, or of what an earlier owner left in a block (NaN here)."""
    case = BlockCase(MIXED, block_size=block_size, dtype=dtype)
    assert_close(case.run(window), case.exact(window), *TOLERANCES[dtype])


@BOTH
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"),
    [(1, 1, 32), (4, 4, 64), (9, 3, 64), (14, 2, 64), (8, 1, 96), (22, 2, 32), (5, 1, 128), (2, 1, 256)],
)
def test_head_shapes(heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype):
    """Groups of 1 to 11 heads: one item and more than one for a decoding token."""
    case = BlockCase(MIXED, heads, kv_heads, head_dim, dtype=dtype)
    assert_close(case.run(), case.exact(), *TOLERANCES[dtype])


@BOTH
@pytest.mark.parametrize("head_dim", range(8, 264, 8))
def test_every_eighth_head_size(head_dim: int, dtype: torch.dtype):
    """Rows of queries, values and results that end within a vector. An odd number of positions too."""
    case = BlockCase([(0, 21), (40, 1), (16, 3)], 4, 2, head_dim, dtype=dtype)
    assert_close(case.run(), case.exact(), *TOLERANCES[dtype])
    alone = case.attend(case.query[21:22], case.block_plan(slice(1, 2), None))
    assert torch.equal(alone, case.run()[21:22])


def test_the_largest_heads():
    """512 values of bfloat16."""
    case = BlockCase(MIXED, 2, 1, 512)
    assert_close(case.run(), case.exact(), *TOLERANCES[BF16])


@BOTH
@pytest.mark.parametrize("window", [None, 5, 100])
def test_company_and_chunking_change_nothing(window: int | None, dtype: torch.dtype):
    """A query's result is bitwise the same in a prompt of 200 tokens, in its later pieces, and alone."""
    case = BlockCase([(0, 200), (17, 1), (64, 31)], dtype=dtype)
    together = case.run(window)
    alone = case.attend(case.query[200:201], case.block_plan(slice(1, 2), window))
    assert torch.equal(alone, together[200:201])
    for skip in (1, 2, 3, 15, 16, 17, 100, 133, 199):
        rest = case.attend(case.query[skip:200], case.block_plan(slice(0, 1), window, skip))
        assert torch.equal(rest, together[skip:200])


@BOTH
@pytest.mark.parametrize("chunk", [1, 3, 40, 512, 600])
def test_chunks(chunk: int, dtype: torch.dtype):
    """Short rows, rows of several parts, queries of one item in several chunks; and the same bits in later
    pieces of a prompt."""
    case = BlockCase([*MIXED, *BOUNDARIES, (0, 700)], 11, 1, dtype=dtype)
    results = case.attend(case.query, case.block_plan(slice(None), chunk, chunked=True))
    assert_close(results, case.exact(chunk, chunked=True), *TOLERANCES[dtype])
    last = slice(len(case.counts) - 1, len(case.counts))
    for skip in (1, 39, 41, 513, 697):
        plan = case.block_plan(last, chunk, skip, chunked=True)
        assert torch.equal(case.attend(case.query[skip - 700 :], plan), results[skip - 700 :])


WHOLE = [(0, 1), (0, 2), (0, 9), (0, 16), (0, 17), (0, 300), (0, 512), (0, 513), (0, 1100), (0, 8)]
"""Rows that are computed in one step, of up to three parts of 512 positions."""


@BOTH
@pytest.mark.parametrize(
    ("window", "heads", "kv_heads"),
    [(None, 6, 2), (1, 11, 1), (3, 2, 2), (40, 6, 2), (512, 11, 1), (600, 2, 2)],
)
def test_bidirectional(heads: int, kv_heads: int, window: int | None, dtype: torch.dtype):
    """As dense attention; the same bits for a row alone and among others."""
    case = BlockCase(WHOLE, heads, kv_heads, dtype=dtype)
    results = case.attend(case.query, case.block_plan(slice(None), window, bidirectional=True))
    assert_close(results, case.exact(window, bidirectional=True), *TOLERANCES[dtype])
    rows = zip(case.query.split(case.counts.tolist()), results.split(case.counts.tolist()), strict=True)
    for row, (query, result) in enumerate(rows):
        alone = case.block_plan(slice(row, row + 1), window, bidirectional=True)
        assert torch.equal(case.attend(query, alone), result)


BOUNDARIES = [(0, 1), (255, 1), (511, 1), (512, 1), (513, 1), (1022, 4), (1023, 2), (1024, 8), (1400, 1)]
"""Rows that end just before, at and after the end of a part of 512 positions."""


@BOTH
@pytest.mark.parametrize("window", [None, 1, 17, 512, 600])
@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 2), (11, 1)])
def test_rows_of_several_parts(heads: int, kv_heads: int, window: int | None, dtype: torch.dtype):
    """A few long ones are split, so that any thread may take a part. With many of them, none is."""
    case = BlockCase(BOUNDARIES, heads, kv_heads, dtype=dtype)
    team = case.kernels.team
    before = team.threads
    team.set_threads(1)
    whole = case.block_plan(slice(None), window)
    assert not len(whole.partials)
    results = case.attend(case.query, whole)
    assert_close(results, case.exact(window), *TOLERANCES[dtype])
    team.set_threads(2)
    split = case.block_plan(slice(None), window)
    assert len(split.partials) and (split.items[:, 5] > 0).any()
    assert torch.equal(case.attend(case.query, split), results)
    team.set_threads(before)


@BOTH
@pytest.mark.parametrize("window", [None, 5, 530])
def test_parts_change_nothing(window: int | None, dtype: torch.dtype):
    """A query of a prompt of 1100 tokens, in its later pieces, and alone, where its row is split."""
    case = BlockCase([(0, 1100), (1099, 1)], dtype=dtype)
    team = case.kernels.team
    before, together = team.threads, case.run(window)
    for skip in (1, 500, 511, 512, 513, 1023, 1025, 1092, 1095, 1099):
        team.set_threads(2 + skip % 2)
        plan = case.block_plan(slice(0, 1), window, skip)
        assert bool(len(plan.partials)) == (skip >= 1092), "rows of up to 8 tokens are split"
        assert torch.equal(case.attend(case.query[skip:1100], plan), together[skip:1100])
    team.set_threads(before)


@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize(("soft_cap", "sinks"), [(0.7, False), (None, True), (2.0, True)])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dtype"), [(6, 2, BF16), (11, 1, BF16), (16, 2, BF16), (11, 1, F32)]
)
def test_soft_caps_and_sinks(
    heads: int, kv_heads: int, dtype: torch.dtype, soft_cap: float | None, sinks: bool, window: int | None
):
    """Of short rows, of rows of several parts, and of some that are split: the same bits."""
    case = BlockCase([*MIXED, *BOUNDARIES], heads, kv_heads, dtype=dtype)
    scores = torch.linspace(-3, 90, heads) if sinks else None
    team = case.kernels.team
    before = team.threads
    team.set_threads(1)
    results = case.attend(case.query, case.block_plan(slice(None), window), soft_cap, scores)
    assert_close(results, case.exact(window, soft_cap, scores), *TOLERANCES[dtype])
    team.set_threads(2)
    long = slice(len(MIXED) + 6, len(MIXED) + 7)
    first = int(case.counts[: long.start].sum())
    tokens = slice(first, first + int(case.counts[long].sum()))
    split = case.block_plan(long, window)
    assert len(split.partials)
    assert torch.equal(case.attend(case.query[tokens], split, soft_cap, scores), results[tokens])
    team.set_threads(before)


def test_other_blocks_change_nothing():
    """The same keys and values elsewhere."""
    case, other = BlockCase([(0, 50), (30, 1)]), BlockCase([(0, 50), (30, 1), (5, 5)])
    assert not np.array_equal(case.tables, other.tables[:2, :4])
    assert torch.equal(case.run(), other.attend(case.query, other.block_plan(slice(0, 2), None)))


def test_threads_change_nothing():
    """Which thread computes an item does not matter."""
    case = BlockCase(MIXED)
    team = case.kernels.team
    before, one = team.threads, case.run()
    team.set_threads(3)
    for _ in range(20):
        assert torch.equal(case.run(), one)
    team.set_threads(before)


@BOTH
def test_large_scores(dtype: torch.dtype):
    """Weights that underflow are zero, and the largest never overflows. Scores of a thousand are float32, to
    6e-5 of a weight's logarithm."""
    case = BlockCase([(100, 1), (0, 20)], dtype=dtype)
    case.scale = 50.0
    assert_close(case.run(), case.exact(), *((1e-4, 1e-4) if dtype == F32 else TOLERANCES[dtype]))


def test_strided_queries():
    """As they lie beside the keys in a fused projection; and heads that are not neighbours."""
    case = BlockCase(MIXED)
    expected = case.run()
    plan = case.block_plan(slice(None), None)
    beside = torch.cat((case.query, case.query), 1)[:, :6]
    assert torch.equal(case.attend(beside, plan), expected)
    transposed = case.query.transpose(0, 1).contiguous().transpose(0, 1)
    assert torch.equal(case.attend(transposed, plan), expected)


@BOTH
def test_nan_stays_in_its_row(dtype: torch.dtype):
    case = BlockCase([(40, 1), (40, 1)], dtype=dtype)
    expected = case.run()
    case.query[0] = torch.nan
    result = case.run()
    assert result[0].isnan().all()
    assert torch.equal(result[1], expected[1])


@pytest.mark.parametrize(
    ("dtype", "block_size", "head_dim"),
    [(torch.float16, 16, 32), (BF16, 8, 32), (BF16, 16, 33), (BF16, 16, 520), (F32, 16, 264)],
)
def test_sizes_that_do_not_fit(dtype: torch.dtype, block_size: int, head_dim: int):
    assert block_kernels(dtype, block_size, head_dim, 1) is None


@BOTH
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 1), (6, 2)])
@pytest.mark.parametrize("window", [None, 3, 100])
def test_images_that_are_seen_whole(window: int | None, heads: int, kv_heads: int, dtype: torch.dtype):
    """Beside text, at the end of a row too, in rows that are split among threads, and beyond windows. A row
    has the same bits alone, and where its first tokens were computed before."""
    case = BlockCase(IMAGES, heads, kv_heads, dtype=dtype)
    lasts, team = case.last_seen(), case.kernels.team
    before = team.threads
    team.set_threads(2)
    plan = case.block_plan(slice(None), window)
    assert len(plan.partials)
    found = case.attend(case.query, plan.with_last_seen(lasts))
    assert_close(found, case.exact(window, lasts=lasts), *TOLERANCES[dtype])
    text = case.last_seen(ends_in_one=False)
    assert not torch.equal(case.attend(case.query, plan.with_last_seen(text)), found)
    own = np.concatenate(
        [np.arange(start, start + count) for start, count in zip(case.starts, case.counts, strict=True)]
    )
    assert torch.equal(case.attend(case.query, plan.with_last_seen(own)), case.attend(case.query, plan))
    team.set_threads(before)
    ends = case.counts.cumsum()
    for row, (end, count) in enumerate(zip(ends, case.counts, strict=True)):
        for skip in {0, min(3, count - 1), count - 1}:
            tokens = slice(end - count + skip, end)
            alone = case.block_plan(slice(row, row + 1), window, skip).with_last_seen(lasts[tokens].copy())
            assert torch.equal(case.attend(case.query[tokens], alone), found[tokens])
