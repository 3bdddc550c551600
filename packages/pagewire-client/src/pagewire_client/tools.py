"""Tools from plain functions: the schema from annotations, the call from a call.

A tool is a function with annotations and a docstring, one with options (tool()), a mapping with the fields of
pagewire.v1.Tool (`parameters` may be a mapping, too), or that message.
"""

import inspect
import json
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, Literal, ParamSpec, TypeVar, overload

from pagewire.v1 import prompt_pb2
from pagewire_client.results import ToolCall

P = ParamSpec("P")
R = TypeVar("R")


class FunctionTool(Generic[P, R]):
    """A function as a tool, with options; a call of it is a call of the function.

    strict: the arguments of the model's calls fit the schema (pagewire.v1.Tool.strict).
    """

    def __init__(self, function: Callable[P, R], *, strict: bool = False) -> None:
        self.function = function
        self.strict = strict

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)


@overload
def tool(function: Callable[P, R], /, *, strict: bool = False) -> FunctionTool[P, R]: ...


@overload
def tool(*, strict: bool = False) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...


def tool(function: Callable[..., Any] | None = None, /, *, strict: bool = False) -> Any:
    """Returns a function as a tool: `tool(f, strict=True)`, or the decorator `@tool(strict=True)`."""
    if function is None:
        return lambda decorated: FunctionTool(decorated, strict=strict)
    return FunctionTool(function, strict=strict)


ToolLike = Callable[..., Any] | Mapping[str, Any] | prompt_pb2.Tool
"""A tool that a model may call; a FunctionTool among the callables."""

_TYPES: dict[object, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
}
_MODES = {
    "auto": prompt_pb2.ToolChoice.MODE_AUTO,
    "none": prompt_pb2.ToolChoice.MODE_NONE,
    "required": prompt_pb2.ToolChoice.MODE_REQUIRED,
}


class ToolLoopError(RuntimeError):
    """A model went on calling tools for as many rounds as were allowed."""


def to_tool(tool: ToolLike) -> prompt_pb2.Tool:
    """Returns the message of a tool. Raises TypeError for a function whose annotations have no schema."""
    if isinstance(tool, prompt_pb2.Tool):
        return tool
    if isinstance(tool, Mapping):
        fields = dict(tool)
        parameters = fields.pop("parameters", "")
        text = parameters if isinstance(parameters, str) else json.dumps(parameters, ensure_ascii=False)
        return prompt_pb2.Tool(parameters=text, **fields)
    strict = isinstance(tool, FunctionTool) and tool.strict
    function = function_of(tool)
    schema = json.dumps(schema_of(function), ensure_ascii=False)
    about = inspect.getdoc(function) or ""
    return prompt_pb2.Tool(name=function.__name__, description=about, parameters=schema, strict=strict)


def function_of(tool: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function of a tool with options; another callable as it is."""
    return tool.function if isinstance(tool, FunctionTool) else tool


def to_choice(choice: str) -> prompt_pb2.ToolChoice:
    """Returns the message of "auto", "none", "required", or the name of a tool."""
    if choice in _MODES:
        return prompt_pb2.ToolChoice(mode=_MODES[choice])
    return prompt_pb2.ToolChoice(function=choice)


def choice_after_calls(choice: str) -> str:
    """Returns the choice for the answer that follows calls: one that required them is met."""
    return choice if choice in ("auto", "none") else "auto"


def schema_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Returns the JSON schema of a function's parameters. Raises TypeError."""
    try:
        hints = typing.get_type_hints(function)
    except NameError as error:
        raise TypeError(f"{function.__name__}: {error}") from None
    properties, required = {}, []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"{function.__name__}: parameter {name!r} cannot be given by name")
        if name not in hints:
            raise TypeError(f"{function.__name__}: parameter {name!r} has no annotation")
        try:
            properties[name] = _schema(hints[name])
        except TypeError as error:
            raise TypeError(f"{function.__name__}: parameter {name!r}: {error}") from None
        if parameter.default is parameter.empty:
            required.append(name)
    return {"type": "object", "properties": properties, "required": required}


def _schema(hint: Any) -> dict[str, Any]:
    if hint is Any:
        return {}
    if hint in _TYPES:
        return {"type": _TYPES[hint]}
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return {"enum": list(parts)}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_schema(part) for part in parts]}
    if hint is list or origin in (list, Sequence):
        return {"type": "array", "items": _schema(parts[0])} if parts else {"type": "array"}
    if hint is dict or (origin in (dict, Mapping) and parts[0] is str):
        return {"type": "object", "additionalProperties": _schema(parts[1])} if parts else {"type": "object"}
    raise TypeError(f"there is no JSON schema for {hint!r}")


def functions_of(tools: Iterable[ToolLike]) -> dict[str, Callable[..., Any]]:
    """Returns the functions among tools, by name. Raises TypeError for a tool that cannot be called."""
    functions = {}
    for tool in tools:
        if isinstance(tool, Mapping | prompt_pb2.Tool):
            raise TypeError(f"run_tools needs functions, and {to_tool(tool).name!r} is none")
        function = function_of(tool)
        functions[function.__name__] = function
    return functions


def bound_call(call: ToolCall, functions: Mapping[str, Callable[..., Any]]) -> Callable[[], Any]:
    """Returns the call, ready to be made. Raises ValueError, worded for the model, for one that cannot be."""
    function = functions.get(call.name)
    if function is None:
        raise ValueError(f"there is no tool {call.name!r}")
    try:
        arguments = json.loads(call.arguments)
    except ValueError:
        raise ValueError("the arguments are no JSON") from None
    if not isinstance(arguments, dict):
        raise ValueError("the arguments are no JSON object")
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        raise ValueError(str(error)) from None
    return lambda: function(**arguments)


def result_message(call: ToolCall, result: object) -> dict[str, Any]:
    """Returns the message that answers a call: text as it is, other values as JSON."""
    text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)
    return {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": text}
