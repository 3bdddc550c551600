"""Limits of control groups, of both versions, nested, in and out of containers."""

import math
from pathlib import Path

import pytest

from pagewire.host.resources import cpu_limit, memory_left

GIB = 1 << 30
NO_V1_LIMIT = 9223372036854771712


def make(root: Path, groups: str, files: dict[str, str]) -> Path:
    """A root with what /proc/self/cgroup says, and files below /sys/fs/cgroup."""
    for name, content in {"proc/self/cgroup": groups}.items():
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text(content)
    for name, content in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")
    return root


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"a/b/cpu.max": "max 100000"}, math.inf),
        ({"a/b/cpu.max": "250000 100000"}, 2.5),
        ({"a/b/cpu.max": "max 100000", "a/cpu.max": "50000 100000"}, 0.5),  # the one around it
        ({"a/b/cpu.max": "400000 100000", "a/cpu.max": "800000 100000"}, 4),
        ({"cpu.max": "300000 100000"}, 3),  # a container that sees its own group as the root
        ({}, math.inf),
        ({"a/b/cpu.max": "nonsense"}, math.inf),
    ],
)
def test_cpu_of_version_2(tmp_path: Path, files: dict[str, str], limit: float) -> None:
    assert cpu_limit(make(tmp_path, "0::/a/b\n", files)) == limit


@pytest.mark.parametrize("mount", ["cpu", "cpu,cpuacct"])
@pytest.mark.parametrize(("quota", "limit"), [("-1", math.inf), ("150000", 1.5)])
def test_cpu_of_version_1(tmp_path: Path, mount: str, quota: str, limit: float) -> None:
    """The mount is named by one controller, or by those that share it."""
    groups = f"4:{mount}:/outer/inner\n3:memory:/\n0::/\n"
    files = {
        f"{mount}/outer/inner/cpu.cfs_quota_us": "-1",
        f"{mount}/outer/inner/cpu.cfs_period_us": "100000",
        f"{mount}/outer/cpu.cfs_quota_us": quota,
        f"{mount}/outer/cpu.cfs_period_us": "100000",
    }
    assert cpu_limit(make(tmp_path, groups, files)) == limit


def test_a_path_that_leads_out_of_what_is_mounted(tmp_path: Path) -> None:
    """Docker with version 1: the path is the host's, and the mount is the container's own group. And a
    process that was moved out of its namespace: a path with dots."""
    files = {"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}
    assert cpu_limit(make(tmp_path / "a", "1:cpu:/docker/0123\n", files)) == 2
    assert cpu_limit(make(tmp_path / "b", "0::/../other\n", {"cpu.max": "100000 100000"})) == 1


def test_memory(tmp_path: Path) -> None:
    """Each group has a limit and a use of its own."""
    files = {
        "memory/a/memory.limit_in_bytes": str(4 * GIB),
        "memory/a/memory.usage_in_bytes": str(3 * GIB),
        "memory/memory.limit_in_bytes": str(NO_V1_LIMIT),
        "memory/memory.usage_in_bytes": str(5 * GIB),
    }
    assert memory_left(make(tmp_path / "v1", "2:memory:/a\n", files)) == GIB
    files = {
        "a/memory.max": "max",
        "a/memory.current": str(GIB),
        "memory.max": str(3 * GIB),
        "memory.current": str(4 * GIB),
    }
    assert memory_left(make(tmp_path / "v2", "0::/a\n", files)) == 0
    assert memory_left(tmp_path / "nothing") == math.inf
