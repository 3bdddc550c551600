"""`pagewire chat`."""

import contextlib
import inspect
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pagewire.cli.connect import connect
from pagewire.cli.generate import sampling_params, timings_line
from pagewire.cli.terminal import interruptible, utf8_input
from pagewire.command_config import ChatConfig
from pagewire.flags import UsageError
from pagewire_client.errors import RpcError
from pagewire_client.params import GenerateOptions, Message, SamplingParams
from pagewire_client.results import FinishReason, Generation, Output
from pagewire_client.sync import Client
from pagewire_client.tools import FunctionTool, choice_after_calls, function_of, functions_of, to_tool
from pagewire_client.transport import io_sync

_TOOLS = "pagewire_tools"
"""The name of the module that --tools FILE is run as."""
_HELP = """\
/exit, Ctrl-D  end the conversation
Ctrl-C         end an answer
Anything else is sent to the model."""
_MAX_ROUNDS = 8
"""Answers with calls that may follow one question."""


def run(config: ChatConfig) -> int:
    """Reads lines and streams answers until the end of input. Ctrl-C ends an answer, not the conversation; an
    error drops its question. Returns 1 if a question in a script failed."""
    params, options = sampling_params(config), _options(config)
    messages: list[Message] = []
    failed = False
    if config.system:
        messages.append({"role": "system", "content": config.system})
    if sys.stdin.isatty():
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  # line editing for input()
        print("Ctrl-D ends the conversation; /help.", file=sys.stderr)
    with connect(config, config.model_name) as client:
        while True:
            try:
                with utf8_input():
                    line = input("> " if sys.stdin.isatty() else "")
            except EOFError:
                return int(failed and not sys.stdin.isatty())
            if sys.stdin.isatty() and line.strip() in ("/help", "/?"):
                print(_HELP, file=sys.stderr)
                continue
            if sys.stdin.isatty() and line.strip() in ("/exit", "/quit", "/bye"):
                return 0
            before = len(messages)
            messages.append({"role": "user", "content": line})
            try:
                _answer(client, messages, params, options)
            except RpcError as error:
                failed = True
                del messages[before:]
                print(f"error: {error}", file=sys.stderr)
                print(
                    f"do:    {error.todo or 'ask differently; this question is forgotten'}", file=sys.stderr
                )


def _options(config: ChatConfig) -> GenerateOptions:
    """Returns the options of each answer. Raises UsageError for tools that cannot be read, and for a choice
    without tools."""
    options: GenerateOptions = {}
    if config.verbose:
        options["timings"] = True
    if config.tool_choice != "auto" and not config.tools:
        raise UsageError("--tool-choice needs --tools")
    if config.tools:
        options["tools"] = functions_in(config.tools)
        options["tool_choice"] = config.tool_choice
    if config.thinking:
        options["enable_thinking"] = True
    if config.reasoning_budget is not None:
        options["reasoning_budget"] = config.reasoning_budget
    return options


def _answer(
    client: Client, messages: list[Message], params: SamplingParams, options: GenerateOptions
) -> None:
    """Prints an answer as it is generated, with calls of functions, and appends it to the messages. Raises
    RpcError."""
    callable_by_name = functions_of(options.get("tools", ()))
    options = {**options}
    for _ in range(_MAX_ROUNDS):
        answer = _stream(client, messages, params, options)
        output = answer.outputs[0] if answer.outputs else Output(0)
        messages.append(output.message)
        if output.finish_reason is not FinishReason.TOOL_CALLS:
            return
        if "tool_choice" in options:
            options["tool_choice"] = choice_after_calls(options["tool_choice"])
        for call in output.tool_calls:
            print(f"[{call.name}({call.arguments})]", file=sys.stderr)
            messages.append(io_sync.call_tool(call, callable_by_name))
    print(f"[no answer after {_MAX_ROUNDS} rounds of calls]", file=sys.stderr)


def _stream(
    client: Client, messages: list[Message], params: SamplingParams, options: GenerateOptions
) -> Generation:
    """Prints an answer as it is generated, its reasoning to standard error, and returns it. Raises
    RpcError."""
    stream, answered = client.stream(messages, params, **options), False
    try:
        for delta in interruptible(stream):
            print(delta.reasoning, end="", file=sys.stderr, flush=True)
            if delta.text and not answered and stream.generation.reasoning:
                print(file=sys.stderr, flush=True)
            answered |= bool(delta.text)
            print(delta.text, end="", flush=True)
    except KeyboardInterrupt:
        stream.close()
    finally:
        print()
    if options.get("timings"):
        print(timings_line(stream.generation), file=sys.stderr)
    return stream.generation


def functions_in(file: str) -> list[Callable[..., Any]]:
    """Returns the public functions that a Python file defines, those made by pagewire.tool too; none for no
    file. Raises UsageError for a file that cannot be run, has none, or has one whose annotations have no
    schema."""
    if not file:
        return []
    try:
        names = runpy.run_path(str(Path(file).expanduser()), run_name=_TOOLS)
    except Exception as error:
        raise UsageError(f"--tools: {file}: {error}") from error
    functions: list[Callable[..., Any]] = [
        value for name, value in names.items() if not name.startswith("_") and _is_own_function(value)
    ]
    if not functions:
        raise UsageError(f"--tools: {file} defines no public function")
    for function in functions:
        try:
            to_tool(function)
        except TypeError as error:
            raise UsageError(f"--tools: {file}: {error}") from error
    return functions


def _is_own_function(value: object) -> bool:
    """Returns whether a name of the file is a function that the file defines."""
    function = function_of(value) if isinstance(value, FunctionTool) else value
    return inspect.isfunction(function) and function.__module__ == _TOOLS


COMMANDS = {"chat": (ChatConfig, run)}
