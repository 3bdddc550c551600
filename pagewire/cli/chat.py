"""`pagewire chat`."""

import contextlib
import sys

from pagewire.cli.connect import connect
from pagewire.cli.interrupts import interruptible
from pagewire.cli.sampling import sampling_params
from pagewire.client.params import Message
from pagewire.config import ChatConfig

CONFIG = ChatConfig


def run(config: ChatConfig) -> int:
    """Reads a line, streams the answer, until end of input. Ctrl-C ends the answer, not the chat."""
    params = sampling_params(config)
    messages: list[Message] = []
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
                return 0
            messages.append({"role": "user", "content": line})
            stream = client.stream(messages, params)
            try:
                for delta in interruptible(stream):
                    print(delta.text, end="", flush=True)
            except KeyboardInterrupt:
                stream.close()
            print()
            messages.append({"role": "assistant", "content": stream.generation.text})
