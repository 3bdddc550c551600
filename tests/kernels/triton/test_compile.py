"""Every kernel, compiled for sm_90 in the configurations that the launchers choose for models' shapes;
attention also for other capabilities."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(1200)  # without what Triton has cached: two seconds for each configuration

pytest.importorskip("ptx_emulator")
ROOT = Path(__file__).parents[3]
Row = dict[str, Any]


def compile_(folder: Path, *options: str) -> list[Row]:
    """In a process that does not interpret. Triton keeps what it has compiled in its cache."""
    figures = folder / "figures.json"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "benchmarks.gpu.compile", "--jobs", "2", "--json", str(figures)]
    run = subprocess.run([*command, *options], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert figures.exists(), run.stderr
    rows: list[Row] = json.loads(figures.read_text())
    return rows


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    """A third of all configurations; benchmarks.gpu.compile without --usual has all."""
    return compile_(tmp_path_factory.mktemp("gpu_compile"), "--usual")


def test_nothing_spills_and_everything_fits(compiled: list[Row]):
    """Also: no launcher asks for more shared memory than there is, which Triton would not tell."""
    assert [row for row in compiled if not row["fits"]] == []


def test_no_matrix_product_waits_for_the_one_before_it(compiled: list[Row]):
    """The assembler has nothing to say about any kernel, such as C7515: wgmma is serialized."""
    assert [row for row in compiled if row["advice"]] == []


@pytest.mark.parametrize(
    ("launch", "capabilities"), [("bf16 32/8 x 128", {89, 120}), ("bf16 16/8 x 256", {80, 86, 100})]
)
def test_other_capabilities(tmp_path: Path, launch: str, capabilities: set[int]):
    """The two shapes that take most, in what shared memory and registers other devices have; test_golden.py
    compiles the first for 8.0 and 10.0. 8.6, 8.9 and 12.0 have as much memory."""
    named = ",".join(map(str, sorted(capabilities)))
    rows = compile_(tmp_path, "--capability", named, "--only", launch, "--exact")
    assert {row["capability"] for row in rows} == capabilities
    assert {row["launch"] for row in rows} == {f"attention {launch}"}
    assert [row for row in rows if not row["fits"] or row["advice"]] == []
    assert all(len(sums) == 1 for sums in arithmetic(rows).values())


def test_small_heads_with_few_warps(tmp_path: Path):
    """Nothing spills for heads of 64 values on 8.6, where the assembler would fit a third program."""
    rows = compile_(tmp_path, "--capability", "86", "--only", "bf16 14/2 x 64", "--exact")
    assert len(rows) == 3 and all(row["fits"] for row in rows)


def test_no_kernel_is_left_out(compiled: list[Row]):
    """What is launched anywhere in the folder is in the table."""
    launched = {
        name
        for file in (ROOT / "kernels/triton").rglob("*.py")
        for name in re.findall(r"^def (_\w+_kernel)\(", file.read_text(), re.MULTILINE)
    }
    assert {row["name"] for row in compiled} == launched


NARROW = {
    "_expert_count_kernel": 8,  # numbers of 8 bytes, of which there are any number
    "_expert_place_kernel": 8,
    "_grouped_low_bit_kernel": 8,  # as _low_bit_kernel
    "_head_order_kernel": 0,  # it loads nothing
    "_look_up_kernel": 4,  # one value of each row of A: what a token's id selects
    "_low_bit_kernel": 8,  # 32 bytes of a row of 4 bits, of which a thread takes a quarter
    "_route_kernel": 4,  # few experts are fewer values than a warp has threads
    "_store_kernel": 8,  # a rotation of heads of 64 has 8 bytes per thread of each half
    "_choose_kernel": 4,  # what the tiles of a row gave is a few hundred values; so below
    "_uniform_kernel": 4,
    "_prepare_kernel": 4,
    "_work_kernel": 4,
    "_append_kernel": 4,
    "_record_kernel": 4,
    "_count_kernel": 4,  # one atomic addition per thread
    "_copy_kernel": 4,  # pieces begin anywhere
}


def least_load(row: Row) -> int:
    """Returns the bytes of the widest load that a kernel has at least."""
    if row["name"] == "_merge_shared_kernel" and "16/16 x 64" in row["launch"]:
        return 4  # one head of 64 values, which are fewer than a program has threads
    return NARROW.get(row["name"], 16)


def test_loads_are_wide(compiled: list[Row]):
    """16 bytes per thread and instruction, where a scalar load would mean that Triton lost an alignment."""
    narrow = [f"{row['name']} of {row['launch']}" for row in compiled if row["widest_load"] < least_load(row)]
    assert narrow == []


def test_the_next_tiles_are_on_their_way(compiled: list[Row]):
    """Of attention and of the logits: by asynchronous copies of 16 bytes, also out of 8 bits a value."""
    piped = [row for row in compiled if row["name"] in ("_attention_kernel", "_linear_kernel")]
    piped = [row for row in piped if "1001 x 1000" not in row["launch"]]  # rows of 2,000 bytes
    narrow = {row["launch"] for row in piped if row["widest_copy"] < 16}
    assert all("fp32" in launch and "e4m3" in launch for launch in narrow), narrow


def test_attention_uses_the_matrix_units(compiled: list[Row]):
    """In half precision those of Hopper (wgmma)."""
    half = [row for row in compiled if row["name"] == "_attention_kernel" and "fp32" not in row["launch"]]
    assert {row["products"] for row in half} == {"wgmma"}


def test_products_use_the_matrix_units(compiled: list[Row]):
    """Those of Hopper, for one token too: it is the weight that fills them."""
    names = ("_linear_kernel", "_low_bit_kernel", "_grouped_kernel", "_grouped_low_bit_kernel")
    half = [row for row in compiled if row["name"] in names and "fp32" not in row["launch"]]
    assert {row["products"] for row in half} == {"wgmma"}


def arithmetic(rows: list[Row]) -> dict[tuple[object, ...], set[tuple[str, ...]]]:
    """What attention adds where, by what it computes: programs share a latent's context or they do not."""
    found: dict[tuple[object, ...], set[tuple[str, ...]]] = {}
    for row in rows:
        if row["name"] in ("_attention_kernel", "_latent_kernel"):
            what = (
                row["launch"].removeprefix("attention").removeprefix(", one chunk").removesuffix(", splits")
            )
            found.setdefault((row["capability"], what), set()).add((row["products"], *row["sums"]))
    return found


def test_variants_of_attention_add_alike(compiled: list[Row]):
    """The same matrix instruction, and sums over a tile that are spread over threads in the same way: else a
    token had other bits where programs share its context."""
    found = arithmetic(compiled)
    assert len(found) > 10 and all(len(sums) == 1 for sums in found.values()), found


def test_products_of_any_number_of_tokens_add_alike(compiled: list[Row]):
    """One family of matrix instructions for each dtype."""
    linear = [row for row in compiled if row["name"] == "_linear_kernel"]
    assert {(row["products"], "fp32" in row["launch"]) for row in linear} == {("wgmma", False), ("", True)}


def test_nothing_is_compiled_for_another_batch():
    """Numbers that change from step to step are no part of what Triton compiles for. Of rows, their next
    power of two is: the warm-up goes through all."""
    code = """
from functools import partial
from benchmarks.gpu.launches import BF16, FP32, HEADS, attention, empty
from ptx_emulator.compile_check import compiling
from kernels.triton.step.prepare_inputs import append_tokens
from kernels.triton.matmul.linear import linear
from kernels.triton.sampling.logprobs import token_logprobs
from kernels.triton.sampling.logprobs import top_n

def step(n):
    rows = 8 + min(n, 8)
    attention(HEADS[1], BF16, tokens=512 + n, rows=rows)
    attention(HEADS[1], BF16, tokens=rows, rows=rows)
    logits, ids = empty(n, 32000, dtype=FP32), empty(n)
    append_tokens(ids, ids, empty(512, 8192), empty(512))
    token_logprobs(logits, empty(n, n))
    top_n(logits, 16 + n)
    linear(empty(n, 64, dtype=BF16), empty(320, 64, dtype=BF16))

with compiling() as compiled:
    step(2)
    first = len(compiled)
    for n in (1, 3, 15, 16):
        step(n)
print(first, len(compiled))
"""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    first, after = map(int, run.stdout.split())
    assert first == after == 9
