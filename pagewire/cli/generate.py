"""`pagewire generate`."""

import signal
import sys
import time
from types import FrameType

from pagewire.cli.sampling import sampling_params
from pagewire.client.results import Generation
from pagewire.client.sync import Client
from pagewire.config import GenerateConfig
from pagewire.flags import UsageError

CONFIG = GenerateConfig


def run(config: GenerateConfig) -> int:
    """Streams the text to standard output as it is made; several continuations one after another."""
    prompt = config.prompt
    if prompt == "-":
        if sys.stdin.isatty():
            raise UsageError("there is no PROMPT", todo="pagewire generate 'The capital of France is'")
        prompt = sys.stdin.read()
    start = time.monotonic()
    with Client(config.address, model=config.model_name) as client:
        stream = client.stream(prompt, sampling_params(config, config.n))
        if (config.n or 1) > 1:
            result = stream.result()
            for output in result.outputs:
                print(f"[{output.index}] {output.text}")
        else:
            interrupts = _Interrupts()
            for delta in stream:
                interrupts.check()
                print(delta.text, end="", flush=True)
            print()
            result = stream.generation
    if config.usage:
        print(summary(result, time.monotonic() - start), file=sys.stderr)
    return 0


class _Interrupts:
    """Remembers Ctrl-C. The KeyboardInterrupt is lost when it meets code that cannot raise, such as a
    callback within gRPC; the next text then finds it here."""

    def __init__(self) -> None:
        self._came = False
        signal.signal(signal.SIGINT, self._handle)

    def check(self) -> None:
        """Raises KeyboardInterrupt when there was one."""
        if self._came:
            raise KeyboardInterrupt

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        self._came = True
        raise KeyboardInterrupt


def summary(result: Generation, seconds: float) -> str:
    """Token counts and speed, in one line."""
    tokens = result.usage.completion_tokens
    ends = ", ".join(output.finish_reason or "broken off" for output in result.outputs)
    return (
        f"[{result.usage.prompt_tokens} + {tokens} tokens, {seconds:.2f} s, "
        f"{tokens / seconds:.1f} tokens/s, ended by: {ends}, seed {result.seed}]"
    )
