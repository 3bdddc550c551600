"""The measurements of scripts.house, on sources that are small enough to count by hand."""

import ast
from pathlib import Path

import pytest

from scripts import house
from scripts.house import Module, cycles, folder_graph, module_graph, read_function, repeated_classes


def test_cycles_are_found_and_chains_are_not():
    assert cycles({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert cycles({"a": {"b"}, "b": {"a"}, "c": {"d"}, "d": {"c"}}) == [["a", "b"], ["c", "d"]]


def module(name: str, imports: set[str], types: frozenset[str] = frozenset()) -> Module:
    return Module(name, 1, name.rpartition(".")[0], imports=imports, type_imports=set(types))


def test_folders_form_a_graph_of_their_own():
    modules = [
        module("room.a.one", {"room.b.two"}),
        module("room.b.two", {"room.b.three"}),
        module("room.b.three", set(), frozenset({"room.a.one"})),
        module("room.main", {"room.a.one"}),
    ]
    assert folder_graph(modules, False) == {"room.a": {"room.b"}, "room.main": {"room.a"}}
    assert cycles(folder_graph(modules, True)) == [["room.a", "room.b"]]
    assert cycles(module_graph(modules, True)) == [["room.a.one", "room.b.three", "room.b.two"]]


def test_a_folder_inside_another_is_part_of_it():
    modules = [
        module("room.a.one", {"room.a.b.two"}),
        module("room.a.b.two", {"room.a.one", "room.ab.three"}),
    ]
    modules.append(module("room.ab.three", set()))
    assert folder_graph(modules, False) == {"room.a.b": {"room.ab"}}


def test_a_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(house, "ROOT", tmp_path)
    path = tmp_path / "room" / "part" / "one.py"
    path.parent.mkdir(parents=True)
    path.write_text(
        "from typing import TYPE_CHECKING\nfrom room.part import two\nfrom room.three import THREE\n"
        "if TYPE_CHECKING:\n    from room.four import Four\nclass One:\n    def f(self): ...\n"
    )
    found = house.read_module(path, {"room.part.two", "room.three", "room.four", "room.part"})
    assert (found.name, found.folder, found.lines, found.classes) == (
        "room.part.one",
        "room.part",
        7,
        ["One"],
    )
    assert found.imports == {"room.part.two", "room.three"} and found.type_imports == {"room.four"}


def test_annotations_are_counted_without_self():
    (node,) = ast.parse("def f(self, a: int, *b, c=1, **d: str) -> None:\n    'Says.'\n    return\n").body
    assert isinstance(node, ast.FunctionDef)
    function = read_function(node)
    assert (function.parameters, function.annotated_parameters, function.lines) == (4, 2, 3)
    assert function.has_docstring and function.has_return


def test_a_public_class_name_stands_once_in_a_folder():
    one, two, other = (module(name, set()) for name in ("room.a.one", "room.a.two", "room.b.one"))
    one.classes, two.classes, other.classes = ["Same", "_Own", "A"], ["Same", "_Own", "B"], ["Same", "A"]
    assert repeated_classes([one, two, other]) == ["room.a.Same"]


def test_a_docstring_that_only_points_elsewhere_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(house, "ROOT", tmp_path)
    path = tmp_path / "room" / "one.py"
    path.parent.mkdir()
    path.write_text(
        'class One:\n    def f(self):\n        """See Base."""\n'
        '    def g(self):\n        """See Base. Copies the rows first."""\n'
        '    def h(self):\n        """Sees all."""\n'
    )
    assert house.read_module(path, set()).pointers == ["f"]


def test_a_constant_with_two_values_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(house, "ROOT", tmp_path)
    path = tmp_path / "room" / "one.py"
    path.parent.mkdir()
    path.write_text("WAIT = 1\nMOST = 2\nWAIT = 3\nWAIT, MOST = 4, 5\ndef f():\n    MOST = 6\n")
    assert house.read_module(path, set()).repeated == ["WAIT"]
