"""--cpu-kernels, as a worker takes it."""

import pytest

from kernels.cpu import instruction_sets as sets
from pagewire.errors import StartupError
from worker.cpu.precompile import select_instruction_set


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without kernels."""
    monkeypatch.setattr(sets, "_selected", "auto")
    monkeypatch.setattr(sets, "_in_use", None)


def test_one_of_this_host():
    for one in sets.host_sets():
        select_instruction_set(one.name)
        assert sets.selected_set() is one
    select_instruction_set("none")
    assert sets.selected_set() is None


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ({"avx2", "fma", "f16c"}, "this host has avx2"),
        ({"avx2", "fma", "f16c", "avx_vnni"}, "this host has avx2_vnni, avx2"),
        ({"fp", "asimd", "asimddp", "atomics"}, "this host has neon_dot, neon"),
        (set(), "this host has no instruction set with kernels"),
    ],
)
@pytest.mark.parametrize("name", ["avx512_bf16", "neon_bf16"])
def test_one_that_it_lacks(monkeypatch: pytest.MonkeyPatch, name: str, flags: set[str], why: str):
    monkeypatch.setattr(sets, "cpu_flags", lambda: frozenset(flags))
    with pytest.raises(StartupError) as refused:
        select_instruction_set(name)
    assert name in refused.value.what and refused.value.why == why
    assert "--cpu-kernels" in refused.value.todo
