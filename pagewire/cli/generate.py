"""`pagewire generate`."""

import sys
import time

from pagewire.cli.common.connect import connect
from pagewire.cli.common.interrupts import interruptible
from pagewire.cli.common.sampling import sampling_params
from pagewire.cli.common.standard_input import utf8_input
from pagewire.cli.common.timings import timings_line
from pagewire.client.results import Generation
from pagewire.command_config import GenerateConfig
from pagewire.flags import UsageError

CONFIG = GenerateConfig


def run(config: GenerateConfig) -> int:
    """Streams the text to standard output; several continuations are printed at the end."""
    prompt = config.prompt
    if prompt == "-":
        if sys.stdin.isatty():
            raise UsageError("PROMPT is missing", todo="pagewire generate 'The capital of France is'")
        with utf8_input():
            prompt = sys.stdin.read()
    start = time.monotonic()
    with connect(config, config.model_name) as client:
        stream = client.stream(prompt, sampling_params(config, config.n), timings=config.verbose)
        if (config.n or 1) > 1:
            result = stream.result()
            for output in result.outputs:
                print(f"[{output.index}] {output.text}")
        else:
            for delta in interruptible(stream):
                print(delta.text, end="", flush=True)
            print()
            result = stream.generation
    if config.usage:
        print(summary(result, time.monotonic() - start), file=sys.stderr)
    if config.verbose:
        print(timings_line(result), file=sys.stderr)
    return 0


def summary(result: Generation, seconds: float) -> str:
    """Returns token counts and speed in one line."""
    tokens = result.usage.completion_tokens
    ends = ", ".join(output.finish_reason or "broken off" for output in result.outputs)
    return (
        f"[{result.usage.prompt_tokens} + {tokens} tokens, {seconds:.2f} s, "
        f"{tokens / seconds:.1f} tokens/s, ended by: {ends}, seed {result.seed}]"
    )
