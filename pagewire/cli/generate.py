"""`pagewire generate`, and what `pagewire chat` shares with it: sampling parameters and timings."""

import dataclasses
import sys
import time
from pathlib import Path

from pagewire.cli.connect import connect, read_file
from pagewire.cli.terminal import interruptible, short_seconds, utf8_input
from pagewire.command_config import GenerateConfig, SamplingConfig
from pagewire.flags import UsageError
from pagewire_client.audio import Audio
from pagewire_client.images import Image
from pagewire_client.params import SamplingParams
from pagewire_client.results import Generation

_FILES = ("json_schema", "grammar", "lark", "structural_tag")
_FORMS = ("json_object", "regex", "choice", *_FILES)


def run(config: GenerateConfig) -> int:
    """Streams the text to standard output; several continuations are printed at the end."""
    prompt = config.prompt
    if prompt == "-":
        if sys.stdin.isatty():
            raise UsageError("PROMPT is missing", todo="pagewire generate 'The capital of France is'")
        with utf8_input():
            prompt = sys.stdin.read()
    media = _media(config)
    if len(media) > 1:
        raise UsageError("--image and --audio are of models that take one or the other")
    start = time.monotonic()
    with connect(config, config.model_name) as client:
        asked = {"prompt": prompt, **media} if media else prompt
        stream = client.stream(asked, sampling_params(config, config.n), timings=config.verbose)
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


def _media(config: GenerateConfig) -> dict[str, list[Image | Audio]]:
    """Returns the images or sounds of a prompt, by the field that has them. Raises UsageError."""
    given = (
        ("images", "--image", Image, config.image),
        ("audio", "--audio", Audio, config.audio),
    )
    found: dict[str, list[Image | Audio]] = {}
    for field, option, kind, names in given:
        try:
            if names:
                found[field] = [kind(Path(name)) for name in names]
        except OSError as error:
            raise UsageError(f"{option} {error.filename}: {error.strerror}") from error
    return found


def summary(result: Generation, seconds: float) -> str:
    """Returns token counts and speed in one line."""
    tokens = result.usage.completion_tokens
    ends = ", ".join(output.finish_reason or "broken off" for output in result.outputs)
    return (
        f"[{result.usage.prompt_tokens} + {tokens} tokens, {seconds:.2f} s, "
        f"{tokens / seconds:.1f} tokens/s, ended by: {ends}, seed {result.seed}]"
    )


def sampling_params(config: SamplingConfig, n: int | None = None) -> SamplingParams:
    """Returns the parameters given as flags; the others keep the model's defaults. Raises UsageError."""
    forms = {name: getattr(config, name) for name in _FORMS}
    given = ["--" + name.replace("_", "-") for name, value in forms.items() if value]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} cannot be combined: an output has one form")
    texts = {name: read_file(name, forms[name]) if forms[name] else None for name in _FILES}
    return SamplingParams(
        schema=texts["json_schema"],
        json_object=config.json_object,
        regex=config.regex,
        choice=config.choice or None,
        grammar=texts["grammar"],
        lark=texts["lark"],
        structural_tag=texts["structural_tag"],
        max_tokens=config.max_tokens,
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        min_p=config.min_p,
        repetition_penalty=config.repetition_penalty,
        seed=config.seed,
        stop=config.stop,
        stop_regex=config.stop_regex,
        n=n,
    )


def timings_line(result: Generation) -> str:
    """Returns the phases of an answer and its causes of waiting that are not 0, its tokens and its id."""
    timings, tokens = result.timings, result.usage.completion_tokens
    about = (
        f"request {result.request_id}, {result.usage.prompt_tokens} tokens of prompt "
        f"({result.usage.cached_prompt_tokens} cached), {tokens} of output"
    )
    if timings is None:
        return f"[{about}; the answer was broken off]"
    names = ("preprocess", "queue", "prefill", "decode", "preempted", "total")
    phases = [
        f"{name} {short_seconds(getattr(timings, name))}"
        for name in names
        if name != "preempted" or timings.preempted
    ]
    waits = [
        f"{field.name} {short_seconds(waited)}"
        for field in dataclasses.fields(timings.waits)
        if (waited := getattr(timings.waits, field.name)) and field.name != "queue"
    ]
    per_token = timings.decode / (tokens - 1) if tokens > 1 else 0.0
    parts = [about, ", ".join(phases), f"{short_seconds(per_token)} per token"]
    if waits:
        parts.append(f"waited for {', '.join(waits)}")
    return f"[{'; '.join(parts)}]"


COMMANDS = {"generate": (GenerateConfig, run)}
