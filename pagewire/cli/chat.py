"""`pagewire chat`."""

import contextlib
import sys

from pagewire.cli.connect import connect
from pagewire.cli.interrupts import interruptible
from pagewire.cli.sampling import sampling_params
from pagewire.client.errors import RpcError
from pagewire.client.params import Message, SamplingParams
from pagewire.client.sync import Client
from pagewire.command_config import ChatConfig

CONFIG = ChatConfig


def run(config: ChatConfig) -> int:
    """Reads lines and streams answers until the end of input. Ctrl-C ends an answer, not the conversation; an
    error drops its question. Returns 1 if a question in a script failed."""
    params = sampling_params(config)
    messages: list[Message] = []
    failed = False
    if config.system:
        messages.append({"role": "system", "content": config.system})
    if sys.stdin.isatty():
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  # line editing for input()
        print("Ctrl-D ends the conversation.", file=sys.stderr)
    with connect(config, config.model_name) as client:
        while True:
            try:
                line = input("> " if sys.stdin.isatty() else "")
            except EOFError:
                return int(failed and not sys.stdin.isatty())
            messages.append({"role": "user", "content": line})
            try:
                answer = _stream(client, messages, params)
            except RpcError as error:
                failed = True
                del messages[-1]
                print(f"error: {error}", file=sys.stderr)
                print(
                    f"do:    {error.todo or 'ask differently; this question is forgotten'}", file=sys.stderr
                )
            else:
                messages.append({"role": "assistant", "content": answer})


def _stream(client: Client, messages: list[Message], params: SamplingParams) -> str:
    """Prints an answer as it is generated, and returns its text. Raises RpcError."""
    stream = client.stream(messages, params)
    try:
        for delta in interruptible(stream):
            print(delta.text, end="", flush=True)
    except KeyboardInterrupt:
        stream.close()
    finally:
        print()
    return stream.generation.text
