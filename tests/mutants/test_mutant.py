"""Patterns of syntax find the code that they describe, however it is formatted."""

from pathlib import Path

import pytest

from tests.mutants.mutant import Mutant

SOURCE = '''
_LIMIT = 3

class Pool:
    """Blocks."""

    def free(self, blocks):
        for block in blocks:  # newest last
            if block.count > _LIMIT and (
                block.shared
            ):
                self._log(block, "shared")
                continue
            self._free.append(block)

    def other(self, blocks):
        self._free.append(blocks)
'''


def mutated(tmp_path: Path, within: str, old: str, new: str) -> str:
    (tmp_path / "room/folder").mkdir(parents=True)
    (tmp_path / "room/folder/pool.py").write_text(SOURCE)
    path, source = Mutant(name="x", within=within, old=old, new=new, tests=()).mutated(tmp_path)
    assert path == tmp_path / "room/folder/pool.py"
    return source


@pytest.mark.parametrize(
    ("within", "old", "new", "expected"),
    [
        pytest.param("room:Pool.free", "b.count > _LIMIT and b.shared", "False", "if False:", id="a local"),
        pytest.param(
            "room:Pool.free",
            "x.count > ... and x.shared",
            "x.count > ...",
            "if block.count > _LIMIT:",
            id="...",
        ),
        pytest.param(
            "room/folder:Pool.free",
            "self._log(..., 'shared')",
            "self._log(..., 'x')",
            "self._log(block, 'x')",
            id="arguments",
        ),
        pytest.param("room:Pool.other", "self._free.append(blocks)", "", "pass", id="the only statement"),
        pytest.param("room:", "_LIMIT = 3", "_LIMIT = 4", "_LIMIT = 4", id="a module's statement"),
        pytest.param(
            "room:Pool.free",
            "if ...:\n    ...\nself._free.append(block)",
            "self._free.append(block)",
            "for block in blocks:\n            self._free.append(block)",
            id="statements",
        ),
    ],
)
def test_a_bug_is_made(tmp_path: Path, within: str, old: str, new: str, expected: str) -> None:
    assert expected in mutated(tmp_path, within, old, new)


@pytest.mark.parametrize(
    ("within", "old", "count"),
    [
        pytest.param("room:Pool.free", "self._free.remove(block)", "0 matches in 1", id="other code"),
        pytest.param("room:Pool.close", "self._free.append(blocks)", "0 matches in 0", id="no function"),
        pytest.param("room:Pool", "self._free.append(...)", "2 matches in 1", id="two"),
        pytest.param("room:Pool.free", "y.count > _LIMIT and x.shared", "0 matches in 1", id="two locals"),
    ],
)
def test_a_bug_that_cannot_be_made_is_named(tmp_path: Path, within: str, old: str, count: str) -> None:
    with pytest.raises(ValueError, match=f"x: {count} functions '{within}'"):
        mutated(tmp_path, within, old, "False")


def test_tests_are_found_by_the_end_of_their_path(tmp_path: Path) -> None:
    for folder in ("one", "other"):
        (tmp_path / "tests" / folder).mkdir(parents=True)
        (tmp_path / "tests" / folder / "test_pool.py").touch()
    mutant = Mutant(name="x", within="", old="", new="", tests=("one/test_pool.py::test_a", "test_pool.py"))
    every = ["tests/one/test_pool.py", "tests/other/test_pool.py"]
    assert mutant.test_paths(tmp_path) == ["tests/one/test_pool.py::test_a", *every]
    with pytest.raises(ValueError, match="x: there is no test_none.py"):
        Mutant(name="x", within="", old="", new="", tests=("test_none.py",)).test_paths(tmp_path)
