"""A bug, made on purpose: a pattern of syntax within one function, and what a developer might write instead.

Formatting, comments, the names of local variables and the file in which the function stands do not matter.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

Names = dict[str, str]
"""Local variables of a pattern, with their names in the source."""
Wild = list[list[ast.AST]]
"""What each `...` of a pattern stands for."""
_IGNORED = ("ctx", "kind", "type_comment")


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One bug, and the tests that must notice it.

    name: in words; of the bug, not of the test.
    within: FOLDER:FUNCTION, for example "engine_core:BlockPool.free". The function, or class, is searched
        in all files below the folder. Without a function: statements of a module.
    old: an expression, or consecutive statements, which must match once in the function. `...` stands for any
        expression, or for any number of arguments or statements.
    new: the replacement; if empty, statements are left out. A `...` stands for what that of old matched.
    tests: files or tests of which one must fail, named by the end of their path ("io/test_hang_detector.py").
    """

    name: str
    within: str
    old: str
    new: str
    tests: tuple[str, ...]

    def mutated(self, root: Path) -> tuple[Path, str]:
        """The file with the bug. Raises ValueError unless exactly one part of the source matches."""
        folder, _, function = self.within.partition(":")
        old, new = ast.parse(self.old).body, ast.parse(self.new).body
        sources = ((path, path.read_text(encoding="utf-8")) for path in sorted((root / folder).rglob("*.py")))
        scopes = [
            (path, tree, scope)
            for path, source in sources
            if function.rpartition(".")[2] in source
            for tree in (ast.parse(source),)
            for scope in scopes_of(tree, function)
        ]
        found: list[tuple[Path, ast.Module, Match]] = []
        for may_differ in (False, True):  # names of local variables
            found = [
                (path, tree, match)
                for path, tree, scope in scopes
                for match in matches(scope, old, new, local_names(scope) if may_differ else set())
            ]
            if found:
                break
        if len(found) == 1:
            path, tree, match = found[0]
            match.put(new, tree)
            return path, ast.unparse(tree)
        raise ValueError(f"{self.name}: {len(found)} matches in {len(scopes)} functions {self.within!r}")

    def test_paths(self, root: Path) -> list[str]:
        """The tests as pytest names them. Raises ValueError where there is none."""
        paths = []
        for test in self.tests:
            end, separator, node = test.partition("::")
            folders = (root / "tests", *root.glob("packages/*/tests"))
            name = end.rpartition("/")[2]
            below = [path for each in folders for path in each.rglob(name) if path.match(end)]
            if not below:
                raise ValueError(f"{self.name}: there is no {test}")
            paths += [f"{path.relative_to(root)}{separator}{node}" for path in sorted(below)]
        return paths


@dataclass
class Match:
    """Where a pattern stands: an expression, or some statements of a block."""

    expression: ast.expr | None
    block: list[ast.stmt]
    span: slice
    names: Names
    wild: Wild

    def put(self, new: list[ast.stmt], tree: ast.Module) -> None:
        """Puts a replacement in its place."""
        filled = Filler(self).visit(ast.Module(new, [])).body
        if self.expression is not None:
            Exchange(self.expression, filled[0].value).visit(tree)
        else:
            self.block[self.span] = filled
            self.block[:] = self.block or [ast.Pass()]


def scopes_of(tree: ast.Module, function: str) -> Iterator[ast.AST]:
    """The functions and classes of a qualified name; the module itself for none."""

    def inside(node: ast.AST, before: str) -> Iterator[ast.AST]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{before}{child.name}"
                if name == function:
                    yield child
                else:
                    yield from inside(child, f"{name}.")
            elif isinstance(child, ast.stmt):
                yield from inside(child, before)

    return inside(tree, "") if function else iter((tree,))


def local_names(scope: ast.AST) -> set[str]:
    """Parameters and assigned variables of a function, but self and cls."""
    if not isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
        return set()
    names = {node.arg for node in ast.walk(scope) if isinstance(node, ast.arg)}
    names |= {
        node.id for node in ast.walk(scope) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    return names - {"self", "cls"}


def matches(scope: ast.AST, old: list[ast.stmt], new: list[ast.stmt], variables: set[str]) -> Iterator[Match]:
    """Every part of a function that a pattern matches. variables: names that may differ from its own."""
    expressions = [each.value for each in (*old, *new) if isinstance(each, ast.Expr)]
    is_expression = len(old) == len(new) == 1 and len(expressions) == 2
    for node in ast.walk(scope):
        names, wild = Names(), Wild()
        if not is_expression:
            for _, value in ast.iter_fields(node):
                if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                    yield from block_matches(value, old, variables)
        elif isinstance(node, ast.expr) and is_match(expressions[0], node, variables, names, wild):
            yield Match(node, [], slice(0), names, wild)


def block_matches(block: list[ast.stmt], old: list[ast.stmt], variables: set[str]) -> Iterator[Match]:
    """Runs of statements of one block."""
    for start in range(len(block)):
        for end in range(start + 1, len(block) + 1):
            names, wild = Names(), Wild()
            if is_match(old, block[start:end], variables, names, wild):
                yield Match(None, block, slice(start, end), names, wild)
                break


def is_match(pattern: object, node: object, variables: set[str], names: Names, wild: Wild) -> bool:
    """Compares two parts of syntax trees; fills names and wild."""
    if isinstance(pattern, list) and isinstance(node, list):
        at = next(
            (place for place, each in enumerate(pattern) if is_wild(each) or is_wild_statement(each)), None
        )
        if at is not None:
            behind = len(pattern) - at - 1
            end = len(node) - behind
            if end < at or not is_match(pattern[:at], node[:at], variables, names, wild):
                return False
            wild.append(node[at:end])
            return is_match(pattern[at + 1 :], node[end:], variables, names, wild)
        return len(pattern) == len(node) and all(
            is_match(one, other, variables, names, wild) for one, other in zip(pattern, node, strict=True)
        )
    if is_wild(pattern) and isinstance(node, ast.expr):
        wild.append([node])
        return True
    if isinstance(pattern, ast.AST) and isinstance(node, ast.AST):
        if type(pattern) is not type(node):
            return False
        if isinstance(pattern, ast.Name) and isinstance(node, ast.Name) and node.id in variables:
            is_new = pattern.id not in names and node.id not in names.values()
            return (
                names.setdefault(pattern.id, node.id) == node.id if is_new or pattern.id in names else False
            )
        return all(
            is_match(value, getattr(node, field), variables, names, wild)
            for field, value in ast.iter_fields(pattern)
            if field not in _IGNORED
        )
    return pattern == node


def is_wild(node: object) -> bool:
    """True for the expression `...`."""
    return isinstance(node, ast.Constant) and node.value is ...


def is_wild_statement(node: object) -> bool:
    """True for the statement `...`."""
    return isinstance(node, ast.Expr) and is_wild(node.value)


class Filler(ast.NodeTransformer):
    """Puts the source's names and what `...` has matched into a replacement."""

    def __init__(self, match: Match) -> None:
        self._match = match
        self._wild = iter(match.wild)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self._match.names.get(node.id, node.id), node.ctx)

    def visit_Constant(self, node: ast.Constant) -> ast.AST | list[ast.AST]:
        if not is_wild(node):
            return node
        parts = next(self._wild)
        return parts[0] if len(parts) == 1 else parts

    def visit_Expr(self, node: ast.Expr) -> ast.AST | list[ast.AST]:
        return next(self._wild) if is_wild_statement(node) else self.generic_visit(node)


class Exchange(ast.NodeTransformer):
    """Replaces one expression of a tree by another one."""

    def __init__(self, old: ast.expr, new: ast.expr) -> None:
        self._old = old
        self._new = new

    def visit(self, node: ast.AST) -> ast.AST:
        return self._new if node is self._old else self.generic_visit(node)
