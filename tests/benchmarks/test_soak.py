"""A leak is told from a heap that finds its size."""

import os
from pathlib import Path

import pytest

from benchmarks.faults.soak import samples as samples_module
from benchmarks.faults.soak.samples import Sampler, Samples, table
from pagewire.host.standby import NAME


def samples(megabytes: list[float], descriptors: list[int] | None = None, every: float = 10.0) -> Samples:
    seconds = [every * place for place in range(len(megabytes))]
    return Samples("engine", 7, seconds, megabytes, descriptors or [30] * len(megabytes))


@pytest.mark.parametrize(
    "megabytes, grows",
    [
        ([50.0] * 20, False),
        ([20.0 + 3 * place for place in range(10)] + [50.0] * 10, False),  # grew in the first half
        ([50.0, 52.0] * 10, False),
        ([50.0 + place for place in range(20)], True),  # 1 MB in ten seconds
        ([500.0 + place for place in range(20)], False),  # less than 4 %
    ],
)
def test_memory_that_grows_to_the_end_is_a_leak(megabytes: list[float], grows: bool) -> None:
    assert samples(megabytes).grows == grows


def test_descriptors_that_grow_are_a_leak() -> None:
    assert samples([50.0] * 20, [30 + 2 * place for place in range(20)]).grows
    assert not samples([50.0] * 20, [30, 36] * 10).grows


def test_what_was_seen_for_a_moment_is_not_judged() -> None:
    short = samples([50.0 + 9 * place for place in range(20)], every=1.0)
    assert not short.grows
    sampler = Sampler(os.getpid())
    sampler.look()
    assert sampler.samples[os.getpid(), False].megabytes[0] > 1.0 and sampler.judged() == []


def test_the_table_names_what_grows() -> None:
    assert table([samples([50.0 + place for place in range(20)])]).splitlines()[-1] == (
        "| engine 7 | 190 | 50.0, 69.0 | +9.00 MB | 30, 30 | GROWS |"
    )


def test_a_standby_that_has_imported_everything_is_judged_anew(monkeypatch: pytest.MonkeyPatch):
    """Until then it grows, which is no leak."""
    monkeypatch.setattr(samples_module, "by_role", lambda supervisor: {"worker": [os.getpid()]})
    sampler, comm = Sampler(os.getppid()), Path("/proc/self/comm")
    sampler.look()
    before = comm.read_bytes()
    comm.write_bytes(NAME)
    try:
        sampler.look()
    finally:
        comm.write_bytes(before.strip())
    roles = {stands_by: each.role for (pid, stands_by), each in sampler.samples.items() if pid == os.getpid()}
    assert roles == {False: "worker", True: "worker, standby"}
