"""What lands later on the emulator: cp.async by thread and group, and wgmma by group of warps and batch."""

import numpy as np
import pytest
import torch

from ptx_emulator import floats, products
from ptx_emulator.machine import Fault
from ptx_snippets import run

WHERE = "shl.b32 %r1, %r0, 4; mad.wide.u32 %rd3, %r0, 16, %rd1; mad.wide.u32 %rd4, %r0, 16, %rd0; "
SHOW = "ld.shared.v4.b32 {%r5,%r6,%r7,%r8}, [%r1]; st.global.v4.b32 [%rd4], {%r5,%r6,%r7,%r8};"
SOURCE = torch.arange(128, dtype=torch.int32).reshape(32, 4) + 1000


def shown(body: str, poison: int = 0) -> np.ndarray:
    """The 16 bytes of shared memory of each of 32 threads, at the end."""
    out = torch.zeros((32, 4), dtype=torch.int32)
    run(WHERE + body + SHOW, out, SOURCE.clone(), shared=1024, poison=poison)
    return out.numpy()


@pytest.mark.parametrize("size", [4, 8, 16])
def test_copies_of_each_size(size: int):
    found = shown(f"cp.async.ca.shared.global [%r1], [%rd3], {size}; cp.async.wait_all;")
    assert (found[:, : size // 4] == SOURCE.numpy()[:, : size // 4]).all()
    assert (found[:, size // 4 :] == 0).all()


@pytest.mark.parametrize("read", [0, 4, 8, 12, 16])
def test_what_a_copy_does_not_read_is_zeros(read: int):
    """Also where that differs from thread to thread: the first eight read all."""
    body = f"""
    setp.lt.u32 %p1, %r0, 8; selp.b32 %r9, 16, {read}, %p1;
    cp.async.cg.shared.global [%r1], [%rd3], 0x10, %r9;
    cp.async.commit_group; cp.async.wait_group 0;
    """
    expected = SOURCE.numpy().copy()
    expected[8:, read // 4 :] = 0
    assert (shown(body, poison=0x55) == expected).all()


def test_a_copy_that_reads_nothing_may_have_any_source():
    body = "cp.async.cg.shared.global [%r1], [%rd3+999], 16, 0; cp.async.wait_all;"
    assert (shown(body, poison=0x55) == 0).all()


def test_only_the_threads_that_copy_have_something_on_its_way():
    """Others' shared memory stays; groups are counted by thread."""
    body = """
    setp.lt.u32 %p1, %r0, 16;
    @%p1 cp.async.ca.shared.global [%r1], [%rd3], 16;
    @%p1 cp.async.commit_group;
    @!%p1 st.shared.v4.b32 [%r1], {%r0,%r0,%r0,%r0};
    @%p1 cp.async.wait_group 0;
    """
    found = shown(body)
    assert (found[:16] == SOURCE.numpy()[:16]).all()
    assert (found[16:] == np.arange(16, 32)[:, None]).all()


def test_a_wait_of_some_threads_is_not_one_of_others():
    body = """
    cp.async.ca.shared.global [%r1], [%rd3], 16; cp.async.commit_group;
    setp.lt.u32 %p1, %r0, 16; @%p1 cp.async.wait_group 0;
    """
    with pytest.raises(Fault, match="before the copy to it was waited for"):
        shown(body)
    assert (shown(body + "@!%p1 cp.async.wait_group 0;") == SOURCE.numpy()).all()


def test_a_group_that_is_not_committed_does_not_land():
    """Copies after the last commit belong to the next group, whatever a wait names."""
    copy = "cp.async.ca.shared.global [%r1], [%rd3], 16;"
    with pytest.raises(Fault, match="before the copy to it was waited for"):
        shown(copy + "cp.async.wait_group 0;")
    assert (
        shown(copy + "cp.async.commit_group; cp.async.commit_group; cp.async.wait_group 1;") == SOURCE.numpy()
    ).all()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "cp.async.ca.shared.global [%r1], [%rd3], 16; st.shared.b32 [%r1], %r0;",
            "while a copy to it is on its way",
        ),
        (
            "cp.async.ca.shared.global [%r1], [%rd3], 16; cp.async.ca.shared.global [%r1], [%rd3], 16;",
            "while a copy to it is on its way",
        ),
        (
            "st.shared.v4.b32 [%r1], {%r0,%r0,%r0,%r0}; xor.b32 %r2, %r1, 16; "
            "cp.async.ca.shared.global [%r2], [%rd3], 16;",
            "two threads write",
        ),
        (
            "xor.b32 %r2, %r1, 16; cp.async.ca.shared.global [%r1], [%rd3], 16; cp.async.wait_all; "
            "ld.shared.b32 %r5, [%r2];",
            "another thread has written",
        ),
        ("cp.async.ca.shared.global [%r1], [%rd3+8], 16; cp.async.wait_all;", "misaligned"),
        ("cp.async.ca.shared.global [%r1], [%rd3+8], 16, 8; cp.async.wait_all;", "misaligned"),
        ("cp.async.ca.shared.global [%r1], [%rd3], 8, 16; cp.async.wait_all;", "reads more than it copies"),
        ("cp.async.ca.shared.global [%r1], [%rd3+16], 16; cp.async.wait_all;", "beyond the end"),
        ("cp.async.ca.shared.global [%r1+1024], [%rd3], 16;", "outside of the 1024 bytes"),
        ("cp.async.bulk.shared.global [%r1], [%rd3], 16;", "cp.async.bulk is not known"),
    ],
)
def test_copies_that_are_faults(body: str, message: str):
    with pytest.raises(Fault, match=message):
        shown(body)


RNG = np.random.default_rng(8)
DEPTH, COLUMNS = 16, 8


def small(*shape: int) -> np.ndarray:
    """Integers that every order of addition sums to the same."""
    return RNG.integers(-8, 9, shape).astype(np.float32)


def bits(matrix: np.ndarray, kind: str) -> np.ndarray:
    """uint16 of the values in bfloat16 or float16."""
    return floats.to_bfloat16(matrix) if kind == "bf16" else matrix.astype(np.float16).view(np.uint16)


def plain(matrix: np.ndarray) -> np.ndarray:
    """uint16 [rows, 16] as cores of 8 x 8, without a swizzle: cores along k behind one another (128 bytes),
    then the next eight rows (256)."""
    return matrix.reshape(-1, 8, 2, 8).transpose(0, 2, 1, 3).reshape(-1)


def across(matrix: np.ndarray) -> np.ndarray:
    """uint16 [rows, 16] with its rows contiguous: cores of eight k by eight rows."""
    return matrix.reshape(-1, 8, 2, 8).transpose(0, 2, 3, 1).reshape(-1)


def descriptor(start: int, leading: int, stride: int) -> int:
    """Returns a descriptor without a swizzle."""
    return (start >> 4) | (leading >> 4) << 16 | (stride >> 4) << 32


REGISTERS = "{%r10,%r11,%r12,%r13}"


def multiply(instructions: str, raw: np.ndarray, count: int = 1, extra: str = "") -> np.ndarray:
    """Runs `count` groups of warps on the bytes `raw` in shared memory. Returns their accumulators
    %r10 to %r13, float32 [count, 64, 8]."""
    threads = 128 * count
    padded = np.zeros(-(-raw.nbytes // (4 * threads)) * 4 * threads, np.uint8)
    padded[: raw.nbytes] = raw.view(np.uint8)
    out = torch.zeros((threads, 4), dtype=torch.int32)
    step = 4 * threads
    copies = "".join(
        f"ld.global.b32 %r1, [%rd2+{n}]; st.shared.b32 [%r2+{n}], %r1;\n" for n in range(0, len(padded), step)
    )
    body = f"""
    shl.b32 %r2, %r0, 2; cvt.u64.u32 %rd2, %r2; add.s64 %rd2, %rd1, %rd2;
    {copies}
    fence.proxy.async.shared::cta; bar.sync 0;
    shr.u32 %r3, %r0, 7;
    {extra}
    wgmma.fence.sync.aligned;
    {instructions}
    mad.wide.u32 %rd8, %r0, 16, %rd0; st.global.v4.b32 [%rd8], {REGISTERS};
    """
    run(body, out, torch.from_numpy(padded), threads=threads, shared=len(padded))
    registers = [column.copy().view(np.uint32) for column in out.numpy().T]
    return products.accumulators(registers).reshape(count, 64, COLUMNS)


def product(left: str, right: str, goes_on: int = 0, kind: str = "bf16", flags: str = ", 0, 0") -> str:
    """wgmma of 64 x 8."""
    opcode = f"wgmma.mma_async.sync.aligned.m64n8k16.f32.{kind}.{kind}"
    return f"{opcode} {REGISTERS}, {left}, {right}, {goes_on}, 1, 1{flags};"


COMMIT, WAIT = "wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned {};"
LAND = COMMIT + WAIT.format(0)


@pytest.mark.parametrize("kind", ["bf16", "f16"])
@pytest.mark.parametrize("transposed", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_operands_in_either_direction(kind: str, transposed: tuple[int, int]):
    """Contiguous along k, or along rows and columns, without a swizzle."""
    a, b = small(64, DEPTH), small(COLUMNS, DEPTH)
    raw = [
        (across if flag else plain)(bits(matrix, kind))
        for matrix, flag in zip((a, b), transposed, strict=True)
    ]
    # along k: cores of one row of eight are 128 bytes apart; across: of one row of eight the k are
    where = [
        descriptor(0, 256 if transposed[0] else 128, 128 if transposed[0] else 256),
        descriptor(2048, 256 if transposed[1] else 128, 128 if transposed[1] else 256),
    ]
    found = multiply(
        product("%rd3", "%rd4", kind=kind, flags=f", {transposed[0]}, {transposed[1]}") + LAND,
        np.concatenate(raw),
        extra=f"mov.b64 %rd3, {where[0]}; mov.b64 %rd4, {where[1]};",
    )
    assert (found[0] == a @ b.T).all()


def test_a_left_matrix_in_registers_and_products_that_go_on():
    """Three products in one chain, of which the last goes on and the one before starts anew."""
    a, b = small(64, DEPTH), small(COLUMNS, DEPTH)
    lane = np.arange(128)
    row, pair = 16 * (lane // 32) + (lane % 32) // 4, 2 * (lane % 4)
    left = bits(a, "bf16")
    words = [left[row + r, pair + k] | left[row + r, pair + k + 1].astype(np.uint32) << 16 for r, k in
             [(0, 0), (8, 0), (0, 8), (8, 8)]]  # fmt: skip
    right = plain(bits(b, "bf16"))
    raw = np.concatenate(
        [right.view(np.uint8), np.stack(words, axis=1).astype(np.uint32).reshape(-1).view(np.uint8)]
    )
    load = f"shl.b32 %r4, %r0, 4; ld.shared.v4.b32 {{%r20,%r21,%r22,%r23}}, [%r4+{right.nbytes}]; "
    chain = [product("{%r20,%r21,%r22,%r23}", "%rd4", goes_on, flags=", 0") for goes_on in (0, 0, 1)]
    start = load + f"mov.b64 %rd4, {descriptor(0, 128, 256)};"
    found = multiply("".join(chain) + LAND, raw, extra=start)
    assert (found[0] == 2 * (a @ b.T)).all()
    with pytest.raises(Fault, match="%r20 is written while a product on its way uses it"):
        multiply("".join(chain) + "mov.b32 %r20, 0;" + LAND, raw, extra=start)


def test_a_wait_leaves_the_last_batches_on_their_way():
    """Registers of the first batch are there, those of the second not before they were waited for."""
    a, b = small(64, DEPTH), small(COLUMNS, DEPTH)
    raw = np.concatenate([plain(bits(a, "bf16")), plain(bits(b, "bf16"))])
    extra = f"mov.b64 %rd3, {descriptor(0, 128, 256)}; mov.b64 %rd4, {descriptor(2048, 128, 256)};"
    first = product("%rd3", "%rd4") + COMMIT
    second = first.replace(REGISTERS, "{%r14,%r15,%r16,%r17}")
    found = multiply(
        first + second + WAIT.format(1) + "mov.b32 %r18, %r10;" + WAIT.format(0), raw, extra=extra
    )
    assert (found[0] == a @ b.T).all()
    for wrong in (
        first + second + WAIT.format(1) + "mov.b32 %r18, %r14;",
        first + second + WAIT.format(2) + "mov.b32 %r18, %r10;",
        product("%rd3", "%rd4") + WAIT.format(0),
    ):
        with pytest.raises(Fault, match="is read before the product that writes it was waited for"):
            multiply(wrong, raw, extra=extra)
    with pytest.raises(Fault, match="ends before its products were waited for"):
        multiply(
            second, raw, extra=extra + "mov.b32 %r10, 0; mov.b32 %r11, 0; mov.b32 %r12, 0; mov.b32 %r13, 0;"
        )


def test_two_groups_of_warps_have_products_of_their_own():
    """Each has descriptors of its own; one alone works, too."""
    a, b = small(2, 64, DEPTH), small(COLUMNS, DEPTH)
    raw = np.concatenate([*(plain(bits(each, "bf16")) for each in a), plain(bits(b, "bf16"))])
    extra = f"""
    mad.lo.s32 %r4, %r3, 128, {descriptor(0, 128, 0)}; cvt.u64.u32 %rd3, %r4;
    or.b64 %rd3, %rd3, {(256 >> 4) << 32}; mov.b64 %rd4, {descriptor(4096, 128, 256)};
    """
    found = multiply(product("%rd3", "%rd4") + LAND, raw, 2, extra)
    assert (found == a @ b.T).all()
    alone = f"""
    setp.gt.u32 %p1, %r3, 0;
    @!%p1 bra $L__end;
    {product("%rd3", "%rd4")}{LAND}
    $L__end:
    """
    nothing = "".join(f"mov.b32 %r{n}, 0;" for n in range(10, 14))
    found = multiply(alone, raw, 2, extra + nothing)
    assert (found[0] == 0).all() and (found[1] == a[1] @ b.T).all()


@pytest.mark.parametrize(
    ("instructions", "message"),
    [
        (product("%rd3", "%rd4").replace("1, 1, 0, 0;", "-1, 1, 0, 0;"), "negated operands"),
        (product("%rd3", "%rd4").replace("k16", "k8"), "wgmma is not known"),
        (product("%rd3", "%rd4").replace("m64n8k16.f32", "m64n8k16.f16"), "wgmma is not known"),
        ("wgmma.prefetch.sync.aligned;", "wgmma.prefetch is not known"),
        ("setp.gt.u32 %p1, %r0, 5; @%p1 wgmma.fence.sync.aligned;", "only some threads of a group"),
        ("cvt.u64.u32 %rd3, %r0; " + product("%rd3", "%rd4"), "different descriptors"),
        ("mov.b64 %rd3, 16383; " + product("%rd3", "%rd4"), "reads outside of shared memory"),
        (
            product("%rd3", "%rd4") + product("%rd3", "%rd4").replace(REGISTERS, "{%r13,%r14,%r15,%r16}"),
            "share some of their registers",
        ),
    ],
)
def test_products_that_are_faults(instructions: str, message: str):
    raw = np.zeros(2304 // 2, np.uint16)
    extra = f"mov.b64 %rd3, {descriptor(0, 128, 256)}; mov.b64 %rd4, {descriptor(2048, 128, 256)};"
    with pytest.raises(Fault, match=message):
        multiply(instructions + LAND, raw, extra=extra)
