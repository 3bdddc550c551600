"""From a kernel (kernels.cpu.compiler.language) to LLVM code: one module for the kernel and all that it
calls.

A name is a place on the stack; LLVM makes registers of those. There is no optimization here: LLVM does that.
"""

import ast
import inspect
import textwrap
import typing
from collections.abc import Callable
from functools import cache
from typing import Any

from llvmlite import ir

from kernels.cpu.compiler.arithmetic import (
    BOOL,
    FLOAT,
    INT,
    CompileError,
    Value,
    binary,
    compare,
    convert,
    is_constant,
    type_of,
)
from kernels.cpu.compiler.expressions import VECTORS, Callee, Expressions, FunctionOf, Places
from kernels.cpu.compiler.language import STATIC
from kernels.cpu.compiler.llvm import target_triple
from kernels.cpu.compiler.record_values import RecordValue, is_record
from kernels.cpu.instruction_sets import X86_64

STACK_BYTES = 64
"""Functions align the stack to a multiple of this on x86-64. LLVM decides late that vectors have to wait
there, when the register that aligning takes has been given away. Else they lie anywhere, some across two
cache lines, and a loop in which sums wait takes up to twice as long: in some processes, and not in others."""
KINDS = {int: INT, float: FLOAT, bool: BOOL, type(None): ir.VoidType()}


def lower(kernel: Callable[..., Any], name: str, *statics: Any) -> str:
    """Returns LLVM code in which the kernel has that name. statics: the values of its Static parameters.
    Raises CompileError, which says where."""
    module = ir.Module(name)
    functions: dict[Any, Callee] = {}

    def function_of(python: Any, statics: tuple[Any, ...]) -> Callee:
        key = python, statics
        if key not in functions:
            functions[key] = _declare(python, module, f"{python.__name__}.{len(functions)}")
            functions[key].function.linkage = "internal"
            _define(python, functions[key], statics, function_of)
        return functions[key]

    try:
        entry = _declare(kernel, module, name)
        if statics:
            _call(entry, function_of(kernel, statics))
        else:
            functions[kernel, ()] = entry
            _define(kernel, entry, (), function_of)
    except CompileError as error:
        error.place = error.place or _place(kernel, 1)
        raise
    return str(module)


def _call(entry: Callee, function: Callee) -> None:
    """Defines an entry as a call of a function that has its parameters and no result."""
    builder = ir.IRBuilder(entry.function.append_basic_block())
    builder.call(function.function, entry.function.args)
    builder.ret_void()


def _place(python: Any, line: int) -> str:
    """Of a line of the function, from 1 on: FILE:LINE."""
    return f"{python.__code__.co_filename}:{python.__code__.co_firstlineno + line - 1}"


def _declare(python: Any, module: Any, name: str) -> Callee:
    """Declares a function by its annotations."""
    parameters, result = _annotations(python)
    given = [hint for hint in parameters.values() if not _is_static(hint)]
    kinds = [_kind(hint) for hint in given]
    function = ir.Function(module, ir.FunctionType(_kind(result), kinds), name)
    function.attributes.add("nounwind")
    if target_triple().startswith(X86_64):
        function.attributes.alignstack = STACK_BYTES
    return Callee(function, given, result)


@cache
def _annotations(python: Any) -> tuple[dict[str, Any], Any]:
    """Of the parameters by their names, and of the result."""
    hints = typing.get_type_hints(python, include_extras=True)
    parameters = list(inspect.signature(python).parameters)
    if not {"return", *parameters} <= hints.keys():
        raise CompileError(f"{python.__qualname__} lacks annotations")
    return {parameter: hints[parameter] for parameter in parameters}, hints["return"]


def _is_static(annotation: Any) -> bool:
    """Whether a parameter's value is known while compiling."""
    return STATIC in getattr(annotation, "__metadata__", ())


def _is_list(annotation: Any) -> bool:
    return typing.get_origin(annotation) is list


def _kind(annotation: Any) -> Any:
    """LLVM's type."""
    if is_record(annotation):
        return INT
    if typing.get_origin(annotation) is tuple:
        return ir.LiteralStructType([_kind(one) for one in typing.get_args(annotation)])
    if annotation in VECTORS:
        return VECTORS[annotation].llvm
    if annotation not in KINDS:
        raise CompileError(f"{annotation} is no type of the language")
    return KINDS[annotation]


def _define(python: Any, declared: Callee, statics: tuple[Any, ...], function_of: FunctionOf) -> None:
    parameters, _ = _annotations(python)
    names = [name for name, hint in parameters.items() if _is_static(hint)]
    body = _Body(declared, python.__globals__, function_of)
    body.constants = dict(zip(names, statics, strict=True))
    try:
        body.write(_tree_of(python))
    except CompileError as error:
        error.place = error.place or _place(python, body.line)
        raise


@cache
def _tree_of(python: Any) -> ast.FunctionDef:
    tree = ast.parse(textwrap.dedent(inspect.getsource(python))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    return tree


def _reached_from(first: Any) -> set[Any]:
    """The blocks that a run may enter from one of them on: also past a loop, but not past `while True`."""
    reached, waiting = {first}, [first]
    while waiting:
        end = waiting.pop().terminator
        operands = end.operands if end else []
        if operands and isinstance(operands[0], ir.Constant):  # a branch whose condition is known
            operands = operands[1:2] if operands[0].constant else operands[2:]
        following = {one for one in operands if isinstance(one, ir.Block)} - reached
        reached |= following
        waiting += following
    return reached


class _Body(Expressions):
    """Statements of one function."""

    def __init__(self, declared: Callee, names: dict[str, Any], function_of: FunctionOf) -> None:
        function = declared.function
        self._places = ir.IRBuilder(function.append_basic_block("places"))
        super().__init__(ir.IRBuilder(function.append_basic_block("body")), names, function_of)
        self._function, self._declared = function, declared
        self._loops: list[tuple[Any, Any]] = []  # where continue and break go
        self.line = 1

    def write(self, tree: ast.FunctionDef) -> None:
        """The whole function."""
        names = [one.arg for one in tree.args.args if one.arg not in self.constants]
        for name, value, kind in zip(names, self._function.args, self._declared.parameters, strict=True):
            self._assign(name, RecordValue(kind, value) if is_record(kind) else value)
        self._block(tree.body)
        if not self.builder.block.is_terminated:
            if isinstance(self._function.function_type.return_type, ir.VoidType):
                self.builder.ret_void()
            elif self.builder.block in _reached_from(self._function.blocks[1]):
                raise CompileError(f"{tree.name} may end without a result")
            else:
                self.builder.unreachable()
        self._places.branch(self._function.blocks[1])

    def _block(self, statements: list[ast.stmt]) -> None:
        """What follows a return, a break or a continue is never reached."""
        for statement in statements:
            if not self.builder.block.is_terminated:
                self.line = statement.lineno
                self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Expr(value=ast.Constant(value=str())) | ast.Pass():
                pass
            case ast.Expr(value=value):
                self.evaluate(value)
            case ast.Assign(targets=targets, value=value):
                result = self.evaluate(value)
                for target in targets:
                    self._assign_to(target, result)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                self._assign(name, self.evaluate(value))
            case ast.AugAssign(target=ast.Name(id=name) as target, op=operation, value=value):
                before = self.evaluate(ast.Name(id=name, ctx=ast.Load()))
                self._assign(name, binary(self.builder, type(operation), before, self.evaluate(value)))
            case ast.AugAssign(target=ast.Attribute(value=owner, attr=name), op=operation, value=value):
                changed = self.record(owner)
                before = changed.load(self.builder, name)
                result = binary(self.builder, type(operation), before, self.evaluate(value))
                changed.store(self.builder, name, result)
            case ast.AugAssign(target=ast.Subscript() as target, op=operation, value=value):
                before = self.evaluate(target)
                self._assign_to(target, binary(self.builder, type(operation), before, self.evaluate(value)))
            case ast.If():
                self._if(node)
            case ast.While(test=test, body=body, orelse=[]):
                self._loop(lambda: self.condition(test), lambda: None, body, lambda: None)
            case ast.For(target=ast.Name(), iter=ast.Call(func=ast.Name(id="range")), orelse=[]):
                self._for(node)
            case ast.For(target=target, iter=ast.Call() as values, body=body, orelse=[]):
                for value in self.unrolled(values):
                    self.bind(target, value)
                    self._block(body)
            case ast.Break() | ast.Continue():
                self.builder.branch(self._loops[-1][isinstance(node, ast.Break)])
            case ast.Return(value=value):
                self._return(None if value is None else self.evaluate(value))
            case _:
                raise CompileError(f"{type(node).__name__} is not in the language")

    def _assign_to(self, target: ast.expr, value: Value) -> None:
        """Tuples: all values are there before the first name changes."""
        match target:
            case ast.Name(id=name):
                self._assign(name, value)
            case ast.Attribute(value=owner, attr=name):
                self.record(owner).store(self.builder, name, value)
            case ast.Subscript(value=ast.Name(id=name), slice=index) if name in self.lists:
                place = self.lists[name][self.evaluate(index)]
                self.builder.store(convert(self.builder, value, place.allocated_type), place)
            case ast.Tuple(elts=targets) if isinstance(value, tuple) and len(targets) == len(value):
                for one, part in zip(targets, value, strict=True):
                    self._assign_to(one, part)
            case _:
                raise CompileError("values go to names, as many as there are")

    def _assign(self, name: str, value: Value) -> None:
        if isinstance(value, list):
            return self._assign_list(name, value)
        if name in self.variables or isinstance(value, RecordValue):
            value = self._record_address(name, value)
        kind = type_of(value)
        if name not in self.variables:
            self.variables[name] = self._places.alloca(kind)
        place = self.variables[name]
        wanted = place.allocated_type
        if wanted not in (kind, FLOAT):
            raise CompileError(f"{name} is {wanted}, and this is {kind}")
        self.builder.store(convert(self.builder, value, wanted), place)

    def _assign_list(self, name: str, values: list[Value]) -> None:
        """A name stands for the places of a list, or gets its own with these values."""
        if isinstance(values, Places):
            self.lists[name] = values
            return
        kinds = [type_of(value) for value in values]
        if [place.allocated_type for place in self.lists.get(name, ())] != kinds:
            self.lists[name] = Places(self._places.alloca(kind) for kind in kinds)
        for value, kind, place in zip(values, kinds, self.lists[name], strict=True):
            self.builder.store(convert(self.builder, value, kind), place)

    def call_kernel(self, python: Any, arguments: list[Value]) -> Value:
        """Calls a function that is compiled along, or compiles it here, if it takes or gives lists."""
        if not inspect.isfunction(python):
            raise CompileError(f"{python} cannot be called in a kernel")
        parameters, result = _annotations(python)
        if any(_is_list(hint) for hint in (*parameters.values(), result)):
            return self._inlined(python, dict(zip(parameters, arguments, strict=True)))
        known = [_is_static(hint) for hint in parameters.values()]
        known += [False] * (len(arguments) - len(known))
        statics = tuple(value for value, static in zip(arguments, known, strict=False) if static)
        if any(isinstance(value, ir.Value) for value in statics):
            raise CompileError(f"a static parameter of {python.__name__} needs a constant")
        given = [value for value, static in zip(arguments, known, strict=False) if not static]
        return self.call_compiled(self.function_of(python, statics), given)

    def _inlined(self, python: Any, arguments: dict[str, Value]) -> Value:
        """Compiles a function where it is called."""
        body = _Inlined(self, python)
        for name, value in arguments.items():
            if isinstance(value, ir.Value | RecordValue | list):
                body._assign(name, value)
            else:
                body.constants[name] = value
        *statements, last = _tree_of(python).body
        body._block(statements)
        if isinstance(last, ast.Return):
            return None if last.value is None else body.evaluate(last.value)
        body._block([last])
        return None

    def _record_address(self, name: str, value: Value) -> Value:
        """What is kept of a value under a name, which is that of one type of records, or of none."""
        kind = value.kind if isinstance(value, RecordValue) else None
        if name in self.variables and self.records.get(name) is not kind:
            raise CompileError(f"{name} is {self.records.get(name, 'no record')}, and this is {kind}")
        if not isinstance(value, RecordValue):
            return value
        self.records[name] = value.kind
        return value.address

    def _if(self, node: ast.If) -> None:
        test = self.condition(node.test)
        if isinstance(test, bool):
            return self._block(node.body if test else node.orelse)
        then, otherwise, after = (self.builder.append_basic_block() for _ in range(3))
        self.builder.cbranch(test, then, otherwise)
        for block, statements in ((then, node.body), (otherwise, node.orelse)):
            self.builder.position_at_end(block)
            self._block(statements)
            self._go_on(after)
        self.builder.position_at_end(after)

    def _for(self, node: ast.For) -> None:
        """The loop counts by itself: what the body does with the name is no matter."""
        assert isinstance(node.target, ast.Name) and isinstance(node.iter, ast.Call)
        bounds = [self.evaluate(one) for one in node.iter.args]
        first, end, step = {1: [0, *bounds, 1], 2: [*bounds, 1], 3: bounds}[len(bounds)]
        down = is_constant(step) and step < 0
        count, name = self._places.alloca(INT), node.target.id
        self.builder.store(convert(self.builder, first, INT), count)
        end = convert(self.builder, end, INT)

        def more() -> Any:
            return compare(self.builder, ast.Gt if down else ast.Lt, self.builder.load(count), end)

        def enter() -> None:
            self._assign(name, self.builder.load(count))

        def advance() -> None:
            self.builder.store(binary(self.builder, ast.Add, self.builder.load(count), step), count)

        self._loop(more, enter, node.body, advance)

    def _loop(
        self,
        more: Callable[[], Any],
        enter: Callable[[], None],
        body: list[ast.stmt],
        advance: Callable[[], None],
    ) -> None:
        test, inside, following, after = (self.builder.append_basic_block() for _ in range(4))
        self.builder.branch(test)
        self.builder.position_at_end(test)
        goes_on = convert(self.builder, more(), BOOL)
        self.builder.cbranch(goes_on, inside, after)
        self._loops.append((following, after))
        self.builder.position_at_end(inside)
        enter()
        self._block(body)
        self._go_on(following)
        self._loops.pop()
        self.builder.position_at_end(following)
        advance()
        self.builder.branch(test)
        self.builder.position_at_end(after)

    def _go_on(self, block: Any) -> None:
        if not self.builder.block.is_terminated:
            self.builder.branch(block)

    def _return(self, value: Value) -> None:
        if isinstance(self, _Inlined):
            raise CompileError("a function that takes or gives lists returns at its end only")
        kind = self._function.function_type.return_type
        value = self._address_of(value, self._declared.result)
        if isinstance(kind, ir.VoidType):
            self.builder.ret_void()
            return
        if not isinstance(kind, ir.LiteralStructType):
            self.builder.ret(convert(self.builder, value, kind))
            return
        if not isinstance(value, tuple) or len(value) != len(kind.elements):
            raise CompileError("as many values are returned as the annotation says")
        result: Any = ir.Constant(kind, ir.Undefined)
        for i, (part, wanted) in enumerate(zip(value, kind.elements, strict=True)):
            result = self.builder.insert_value(result, convert(self.builder, part, wanted), i)
        self.builder.ret(result)


class _Inlined(_Body):
    """Statements of a function, within those of another one."""

    def __init__(self, caller: _Body, python: Any) -> None:
        Expressions.__init__(self, caller.builder, python.__globals__, caller.function_of)
        self._places, self._function, self._declared = caller._places, caller._function, caller._declared
        self._loops, self.line = [], 1
