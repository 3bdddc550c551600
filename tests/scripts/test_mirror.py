"""Files without a test are found, and paths of the table that do not exist."""

import pytest

from scripts import mirror
from scripts.house import Function, Module
from scripts.mirror import Table, faults, own_test, source_path, without_test

F = Function("f", 1, True, 0, 0, True)


def module(name: str, *imports: str, folder: str = "", functions: tuple[Function, ...] = (F,)) -> Module:
    return Module(name, 1, folder or name.rpartition(".")[0], list(functions), imports=set(imports))


ONE, TWO = module("room.part.one"), module("room.part.two")
PACKAGE = module("room.part", folder="room.part")
CONSTANTS = module("room.part.constants", functions=())


def test_a_package_is_its_init_file():
    assert (source_path(ONE), own_test(ONE)) == ("room/part/one.py", "tests.room.part.test_one")
    assert (source_path(PACKAGE), own_test(PACKAGE)) == ("room/part/__init__.py", "tests.room.test_part")


def test_a_test_of_the_name_or_one_that_imports_it():
    assert without_test([TWO, ONE, CONSTANTS], []) == ["room/part/one.py", "room/part/two.py"]
    assert without_test([ONE, TWO], [module("tests.room.part.test_one")]) == ["room/part/two.py"]
    assert without_test([ONE, TWO], [module("tests.other.test_all", "room.part.two")]) == ["room/part/one.py"]
    assert without_test([ONE], [module("tests.other.fakes", "room.part.one")]) == ["room/part/one.py"]


@pytest.mark.parametrize(
    ("table", "found"),
    [
        ({"tests": ["room/part/one.py", "room/part/two.py"]}, []),
        ({"tests": ["room/part/"]}, []),
        ({"tests": ["room/part/one.py"]}, ["room/part/two.py: no test_two.py"]),
        ({"tests": ["room/part/", "room/p"]}, ["scripts/mirror.toml: room/p does not exist"]),
        ({"tests/no": ["room/part/"]}, ["scripts/mirror.toml: tests/no does not exist"]),
    ],
)
def test_the_table_covers_files_and_folders(table: Table, found: list[str], tmp_path, monkeypatch):
    monkeypatch.setattr(mirror, "ROOT", tmp_path)
    (tmp_path / "tests").mkdir()
    sentences = list(faults([ONE, TWO, CONSTANTS], [], table))
    assert len(sentences) == len(found)
    assert all(sentence.startswith(start) for sentence, start in zip(sentences, found, strict=True))
