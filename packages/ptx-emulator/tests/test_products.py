"""Tensor cores on the emulator: where matrices lie in registers, and how sums are formed."""

import numpy as np
import pytest
import torch

from ptx_emulator import floats, products
from ptx_emulator.machine import Fault
from ptx_snippets import run

RNG = np.random.default_rng(5)


def small(*shape: int) -> np.ndarray:
    """Integers that bfloat16 holds, so that every order of addition gives the same."""
    return RNG.integers(-8, 9, shape).astype(np.float32)


def test_what_a_block_adds_is_truncated_at_the_largest_exponent():
    """2^26 and fifteen threes, where float32 has steps of 8: Hopper adds in steps of 2, Ampere in steps of
    4."""
    a, b = np.full((1, 16), 3, np.float32), np.ones((16, 1), np.float32)
    a[0, 0] = 2.0**26
    start = np.zeros((1, 1), np.float32)
    assert (
        products.multiply(a, b, start, products.tensor_core(90))[0, 0] == 2.0**26 + 24
    )  # 15 twos, cut to 8s
    assert products.multiply(a, b, start, products.tensor_core(80))[0, 0] == 2.0**26


@pytest.mark.parametrize("target", [80, 90])
def test_a_product_of_a_warp(target: int):
    """mma with the fragments as PTX's manual draws them, through memory."""
    a, b, c = small(16, 16), small(16, 8), small(16, 8)
    lane = np.arange(32)
    row, pair = lane >> 2, 2 * (lane & 3)
    left = np.stack(
        [a[row + r, pair + k + h] for r, k in [(0, 0), (8, 0), (0, 8), (8, 8)] for h in (0, 1)], axis=1
    )
    right = np.stack([b[pair + k + h, row] for k in (0, 8) for h in (0, 1)], axis=1)
    start = np.stack([c[row + r, pair + h] for r in (0, 8) for h in (0, 1)], axis=1)
    tensors = [
        torch.from_numpy(floats.to_bfloat16(left).astype(np.int16)),
        torch.from_numpy(floats.to_bfloat16(right).astype(np.int16)),
        torch.from_numpy(start.copy()),
    ]
    run(
        """
        mad.wide.u32 %rd3, %r0, 16, %rd0; ld.global.v4.b32 {%r1,%r2,%r3,%r4}, [%rd3];
        mad.wide.u32 %rd3, %r0, 8, %rd1; ld.global.v2.b32 {%r5,%r6}, [%rd3];
        mad.wide.u32 %rd3, %r0, 16, %rd2; ld.global.v4.b32 {%r7,%r8,%r9,%r10}, [%rd3];
        mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%r7,%r8,%r9,%r10}, {%r1,%r2,%r3,%r4}, {%r5,%r6},
            {%r7,%r8,%r9,%r10};
        st.global.v4.b32 [%rd3], {%r7,%r8,%r9,%r10};
        """,
        *tensors,
        target=target,
    )
    expected = a @ b + c
    found = np.zeros((16, 8), np.float32)
    for n, (r, h) in enumerate([(0, 0), (0, 1), (8, 0), (8, 1)]):
        found[row + r, pair + h] = tensors[2].numpy()[:, n]
    assert (found == expected).all()


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_matrices_are_loaded_as_rows_are_addressed(count: int, transposed: bool):
    data = np.arange(count * 64, dtype=np.int16).reshape(count, 8, 8)
    registers = ",".join(f"%r{n + 1}" for n in range(count))
    out = torch.zeros((32, count), dtype=torch.int32)
    kind = ".trans" if transposed else ""
    vector = f".v{count}" if count > 1 else ""
    run(
        f"""
        shl.b32 %r10, %r0, 4; cvt.u64.u32 %rd2, %r10; add.s64 %rd3, %rd1, %rd2;
        setp.lt.u32 %p1, %r0, {8 * count};
        @%p1 ld.global.v4.b32 {{%r11,%r12,%r13,%r14}}, [%rd3];
        @%p1 st.shared.v4.b32 [%r10], {{%r11,%r12,%r13,%r14}};
        bar.sync 0;
        ldmatrix.sync.aligned.m8n8.x{count}{kind}.shared.b16 {{{registers}}}, [%r10];
        mad.wide.u32 %rd4, %r0, {4 * count}, %rd0;
        st.global{vector}.b32 [%rd4], {{{registers}}};
        """,
        out,
        torch.from_numpy(data),
        shared=512,
    )
    found = out.numpy().view(np.int16).reshape(32, count, 2)
    for lane in range(32):
        for matrix in range(count):
            shown = data[matrix].T if transposed else data[matrix]
            assert (found[lane, matrix] == shown[lane >> 2, 2 * (lane & 3) :][:2]).all()


def layout(matrix: np.ndarray, width: int) -> np.ndarray:
    """A matrix of bfloat16 [rows, 16] as bytes of shared memory: rows of `width` bytes in patterns of eight,
    swizzled, written in the plainest way."""
    raw = np.zeros(len(matrix) * width, np.uint8)
    for r, row in enumerate(floats.to_bfloat16(matrix)):
        for k, value in enumerate(row):
            at = r * width + 2 * k
            at ^= ((at >> 7) % (width // 16)) << 4
            raw[at : at + 2] = np.array([value], np.uint16).view(np.uint8)
    return raw


@pytest.mark.parametrize("width", [128, 64, 32])
def test_a_product_of_a_group_of_warps(width: int):
    """wgmma reads both matrices from shared memory, by descriptors; its sums are there after the wait."""
    a, b = small(64, 16), small(16, 16)
    raw = np.concatenate([layout(a, width), layout(b.T, width)])
    out = torch.zeros((128, 8), dtype=torch.float32)
    mode = {128: 1, 64: 2, 32: 3}[width]
    words = len(raw) // 128
    descriptors = [
        (start >> 4) | (1 << 16) | ((8 * width >> 4) << 32) | (mode << 62) for start in (0, 64 * width)
    ]
    copies = "".join(
        f"ld.global.b32 %r1, [%rd2+{512 * n}]; st.shared.b32 [%r2+{512 * n}], %r1;\n"
        for n in range(words // 4)
    )
    body = f"""
    shl.b32 %r2, %r0, 2; cvt.u64.u32 %rd2, %r2; add.s64 %rd2, %rd1, %rd2;
    {copies}
    fence.proxy.async.shared::cta;
    bar.sync 0;
    mov.b64 %rd3, {descriptors[0]}; mov.b64 %rd4, {descriptors[1]};
    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {{%r10,%r11,%r12,%r13,%r14,%r15,%r16,%r17}},
        %rd3, %rd4, 0, 1, 1, 0, 0;
    wgmma.commit_group.sync.aligned;
    wgmma.wait_group.sync.aligned 0;
    mad.wide.u32 %rd5, %r0, 32, %rd0;
    st.global.v4.b32 [%rd5], {{%r10,%r11,%r12,%r13}};
    st.global.v4.b32 [%rd5+16], {{%r14,%r15,%r16,%r17}};
    """
    tensor = torch.from_numpy(raw)
    run(body, out, tensor, threads=128, shared=len(raw))
    found = products.accumulators([column.copy().view(np.uint32) for column in out.numpy().T])
    assert (found.reshape(64, 16) == a @ b).all()
    for planted, message in [
        (("fence.proxy.async.shared::cta;", ""), "without a proxy fence"),
        (("wgmma.wait_group.sync.aligned 0;", ""), "before the product that writes it was waited for"),
        (("bar.sync 0;", ""), "another thread has written"),
        (("wgmma.wait_group", "st.shared.b32 [%r2], %r0; wgmma.wait_group"), "another thread has read"),
        (("wgmma.wait_group", "mov.b32 %r10, 0; wgmma.wait_group"), "is written while a product"),
    ]:
        with pytest.raises(Fault, match=message):
            run(body.replace(*planted), out, tensor, threads=128, shared=len(raw))
