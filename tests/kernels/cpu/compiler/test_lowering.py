"""Statements of kernels: what is refused, with the line where it stands; and what is compiled for one branch,
once, or not at all. Nothing runs here."""

import inspect
import platform
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

llvm = pytest.importorskip("llvmlite.binding")
from kernels.cpu.compiler.arithmetic import CompileError  # noqa: E402
from kernels.cpu.compiler.language import Static, float32, unroll  # noqa: E402
from kernels.cpu.compiler.llvm import target_machine  # noqa: E402
from kernels.cpu.compiler.lowering import lower  # noqa: E402
from kernels.cpu.compiler.records import Address, Record, i64, record  # noqa: E402
from kernels.cpu.compiler.vectors import f32x16, i32x16  # noqa: E402
from kernels.cpu.instruction_sets import X86_64  # noqa: E402
from kernels.cpu.isa.simd import load_f32, select, store_f32  # noqa: E402


@record
class Job(Record):
    """A number, and where another one lies."""

    x: i64
    next: Address = 0


@record
class Other(Record):
    """Of another type."""

    x: i64


PAIRS = ((0, 5), (1, 6))


def two(x: int) -> tuple[int, int]:
    return x, x + 1


def of_job(job: Job) -> int:
    return job.x


def early(values: list[f32x16]) -> int:
    if len(values) > 1:
        return 1
    return 0


def static(x: int, n: Static[int]) -> int:
    return x + n


def bad_record(other: Other) -> int:
    return of_job(other)  # type: ignore[arg-type]  # here


def number_as_record(x: int) -> int:
    return of_job(x)  # type: ignore[arg-type]  # here


def another_record(job: Job, other: Other) -> int:
    chosen = job
    chosen = other  # type: ignore[assignment]  # here
    return chosen.x


def record_and_number(job: Job) -> int:
    chosen = job
    chosen = 3  # type: ignore[assignment]  # here
    return chosen.x


def too_few_names(x: int) -> int:
    a, b, c = two(x)  # type: ignore[misc]  # here
    return a + b + c


def too_few_results(x: int) -> tuple[int, int]:
    return x, x, x  # type: ignore[return-value]  # here


def no_tuple(x: int) -> tuple[int, int]:
    return x  # type: ignore[return-value]  # here


def third_of_two(x: int) -> int:
    return two(x)[2]  # type: ignore[misc]  # here


def early_return(x: int) -> int:
    return early([load_f32(x), load_f32(x)])  # here


def float_for_integer(x: float) -> int:
    return x  # type: ignore[return-value]  # here


def truth_of_vector(x: int) -> int:
    if load_f32(x):  # here
        return 1
    return 0


def a_string(x: int) -> int:
    y = "text"  # noqa: F841  # here
    return x


def a_keyword(x: int) -> int:
    return static(x, n=3)  # here


def values_of_a_number(x: int) -> int:
    total = 0
    for i in x:  # type: ignore[attr-defined]  # here
        total += i
    return total


def not_unrolled(x: int) -> int:
    total = 0
    for i, j in PAIRS:  # here
        total += i * j
    return total


def with_filter(x: int) -> int:
    values = [v for v in unroll(range(4)) if v]  # here
    return values[x]


def an_assertion(x: int) -> int:
    assert x > 0  # here
    return x


def an_else_of_a_loop(x: int) -> int:
    while x > 0:  # here
        x -= 1
    else:
        x = 5
    return x


def is_none(x: int) -> int:
    return 1 if x is None else 0  # here


def other_vectors(x: int) -> None:
    store_f32(x, i32x16(3))  # type: ignore[arg-type]  # here


def field_of_number(x: int) -> int:
    x.y = 3  # type: ignore[attr-defined]  # here
    return x


REFUSED: list[tuple[Callable[..., Any], str]] = [
    (bad_record, "an argument must be a Job"),
    (number_as_record, "an argument must be a Job"),
    (another_record, "chosen is .*Job.*, and this is .*Other"),
    (record_and_number, "chosen is .*Job.*, and this is None"),
    (too_few_names, "values go to names, as many as there are"),
    (too_few_results, "as many values are returned as the annotation says"),
    (no_tuple, "as many values are returned as the annotation says"),
    (third_of_two, "there is no value 2"),
    (early_return, "returns at its end only"),
    (float_for_integer, "a float does not become an integer"),
    (truth_of_vector, "a vector is neither true nor false"),
    (a_string, "Constant is not in the language"),
    (a_keyword, "Call is not in the language"),
    (values_of_a_number, "For is not in the language"),
    (not_unrolled, "For is not in the language"),
    (with_filter, "ListComp is not in the language"),
    (an_assertion, "Assert is not in the language"),
    (an_else_of_a_loop, "While is not in the language"),
    (is_none, "None is no number|Constant is not in the language|only ==, !="),
    (other_vectors, "a vector .* does not become"),
    (field_of_number, "x is no record"),
]


@pytest.mark.parametrize(("kernel", "why"), REFUSED, ids=[kernel.__name__ for kernel, _ in REFUSED])
def test_what_is_refused_is_told_with_its_line(kernel: Callable[..., Any], why: str) -> None:
    with pytest.raises(CompileError, match=why) as caught:
        lower(kernel, "kernel")
    file, line = str(caught.value).split(":")[:2]
    source = Path(file).read_text().splitlines()
    first = inspect.getsourcelines(kernel)[1]
    assert file == __file__
    if kernel is not early_return:  # of the function that is called there
        assert int(line) >= first and "# here" in source[int(line) - 1]


class NotAType:
    """Of no record."""


def strange_parameter(x: NotAType) -> None:
    pass


def strange_result(x: int) -> dict[str, int]:
    return {}


@pytest.mark.parametrize("kernel", [strange_parameter, strange_result])
def test_types_that_are_not_in_the_language(kernel: Callable[..., Any]) -> None:
    with pytest.raises(CompileError, match="is no type of the language") as caught:
        lower(kernel, "kernel")
    assert caught.value.place == f"{__file__}:{inspect.getsourcelines(kernel)[1]}"


def functions_in(code: str) -> list[str]:
    """Names of what LLVM code defines."""
    return re.findall(r"define .*?@\"?([\w.]+)\"?\(", code)


WIDE = True


def one_branch(x: int) -> int:
    if WIDE:
        return static(x, 1)
    else:
        return nothing(x)  # type: ignore[name-defined]  # noqa: F821


def one_choice(x: int) -> int:
    return x if WIDE else nothing(x)  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize("kernel", [one_branch, one_choice])
def test_a_branch_that_is_never_taken_is_not_compiled(kernel: Callable[..., Any]) -> None:
    """So it may name what is not there."""
    assert "br i1" not in lower(kernel, "kernel")


def same_twice(x: int) -> int:
    return static(x, 1) + static(x, 2) + static(x + 1, 1) + two(x)[0] + two(x)[1]


def test_a_function_is_compiled_once_for_each_value_of_its_static_parameters() -> None:
    names = functions_in(lower(same_twice, "kernel"))
    assert names[0] == "kernel" and len(names) == len(set(names)) == 4
    assert sorted(name.split(".")[0] for name in names[1:]) == ["static", "static", "two"]


def calls_itself(x: int) -> int:
    return x * calls_itself(x - 1) if x > 1 else 1


def test_a_function_may_call_itself() -> None:
    assert functions_in(lower(calls_itself, "kernel")) == ["kernel"]


def after_return(x: int) -> int:
    return x
    nothing(x)  # type: ignore[name-defined, unreachable]  # noqa: F821


def after_break(x: int) -> int:
    while x > 0:
        x -= 2
        break
        nothing(x)  # type: ignore[name-defined, unreachable]  # noqa: F821
    return x


@pytest.mark.parametrize("kernel", [after_return, after_break])
def test_what_is_never_reached_is_not_compiled(kernel: Callable[..., Any]) -> None:
    assert "nothing" not in lower(kernel, "kernel")


@pytest.mark.skipif(platform.machine() != X86_64, reason="vectors have 128 bits elsewhere")
def test_the_stack_is_aligned() -> None:
    """To cache lines: vectors that wait there lie in one each."""
    module = llvm.parse_assembly(lower(same_twice, "kernel"))
    functions = len(functions_in(str(module)))
    assert len(re.findall(r"andq\s+\$-64, %rsp", target_machine().emit_assembly(module))) == functions


def unrolled_pairs(x: int) -> int:
    total = 0
    for i, j in unroll(PAIRS):
        total += x * i + j
    for _ in unroll(range(0)):
        total += nothing(x)  # type: ignore[name-defined]  # noqa: F821
    return total


def test_an_unrolled_loop_has_no_branch() -> None:
    """The body once for each value; of no values none."""
    code = lower(unrolled_pairs, "kernel")
    assert "br i1" not in code and code.count("mul i64") == 2


def lists(x: int, out: int) -> None:
    values = [load_f32(x + 64 * i) for i in unroll(range(3))]
    values[1] = select(values[0] < values[2], values[0], values[2])
    values = [values[2], values[1], values[0]]
    for i in unroll(range(len(values))):
        store_f32(out + 64 * i, values[i] * float32(2.0))


def test_a_list_has_a_place_for_each_value() -> None:
    """The same ones for values of the same types."""
    code = lower(lists, "kernel")
    assert code.count("alloca <16 x float>") == 3
