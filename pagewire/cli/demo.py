"""`pagewire demo`: what `make demo` runs."""

import os
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from pagewire import logs
from pagewire.cli.extras import require_worker
from pagewire.command_config import DemoConfig
from pagewire.config import ServeConfig
from pagewire.local_service import Service
from pagewire.supervisor.notices import LoadingLine
from pagewire_client.params import Message, PromptLike, SamplingParams
from pagewire_client.sync import Client

_PROMPTS = ("The capital of France is", "1, 2, 3, 4,", "a b c d")
_QUESTIONS = ("What is the capital of France?", "And of Japan?")
_COUNTRY = "Give me JSON for Italy."
_WEATHER = "What is the weather in Rome?"
_FACT = "What is the capital of Japan?"
_COMPLETION = SamplingParams(temperature=0, max_tokens=40)
_ANSWER = SamplingParams(temperature=0, max_tokens=60)

_NEXT = """
try next:
  {pagewire} serve --openai-port 8000   # this model, with the OpenAI API and a console; says how to call it
  {pagewire} serve HuggingFaceTB/SmolLM2-135M-Instruct   # one of the Hugging Face Hub (270 MB)
  {pagewire} chat   # in another terminal, while one of them runs
  {pagewire} --help"""


@dataclass(frozen=True)
class Country:
    """The answer that a schema asks for."""

    country: str
    capital: str


def get_weather(city: str) -> dict[str, str]:
    """Returns the weather of a city."""
    print(f"call:      get_weather(city={city!r})", flush=True)
    return {"city": city, "weather": "sunny"}


def run(config: DemoConfig) -> int:
    """Starts a service, streams a few answers and stops it. Returns 0."""
    logs.setup("demo", config.log_level)
    require_worker("start the demo")
    line = LoadingLine(sys.stderr)
    print("starting a frontend, an engine core and a worker on the demo model", flush=True)
    start = time.monotonic()
    # A GPU worker would compile kernels for a minute first.
    options = ServeConfig(port=0, http_port=-1, device="cpu", log_level=config.log_level, no_standby=True)
    with Service(options, line.show) as service:
        line.clear()
        print(f"ready after {time.monotonic() - start:.1f} s: grpc://{service.address}\n", flush=True)
        with Client(service.address) as client:
            tokens, seconds = _talk(client)
            _show_forms(client)
    print(f"\n{tokens} tokens in {seconds:.2f} s: {tokens / seconds:.0f} tokens/s; everything stopped")
    print(_NEXT.format(pagewire=_command()))
    return 0


def _command() -> str:
    """Returns what runs `pagewire` in the reader's shell: its name, or its path where that is not on PATH."""
    script = Path(sys.executable).with_name("pagewire")
    if shutil.which("pagewire") == str(script) or not script.exists():
        return "pagewire"
    return os.path.relpath(script) if script.is_relative_to(Path.cwd()) else str(script)


def _talk(client: Client) -> tuple[int, float]:
    """Streams three completions and a chat of two turns. Returns the number of tokens, and the seconds."""
    start = time.monotonic()
    tokens = 0
    for prompt in _PROMPTS:
        print(prompt, end="", flush=True)
        tokens += _show(client, prompt, _COMPLETION)[1]
    messages: list[Message] = []
    for question in _QUESTIONS:
        print(f"\nuser:      {question}\nassistant: ", end="", flush=True)
        messages.append({"role": "user", "content": question})
        text, count = _show(client, messages, _ANSWER)
        messages.append({"role": "assistant", "content": text})
        tokens += count
    return tokens, time.monotonic() - start


def _show(client: Client, prompt: PromptLike, params: SamplingParams) -> tuple[str, int]:
    """Prints an answer as it is generated, in bold on a terminal. Returns its text and number of tokens."""
    bold, plain = ("\x1b[1m", "\x1b[0m") if sys.stdout.isatty() else ("", "")
    with client.stream(prompt, params) as stream:
        for delta in stream:
            print(f"{bold}{delta.text}{plain}", end="", flush=True)
        print()
        return stream.generation.text, stream.generation.usage.completion_tokens


def _show_forms(client: Client) -> None:
    """Prints an answer that has a schema, one by way of a tool, and one with its reasoning."""
    answer = client.chat(_asked(_COUNTRY), _ANSWER, schema=Country)
    print(f"assistant: {answer.text}\nparsed:    {answer.parsed}", flush=True)
    print(f"assistant: {client.run_tools(_asked(_WEATHER), [get_weather], _ANSWER).text}", flush=True)
    answer = client.chat(_asked(_FACT), _ANSWER, enable_thinking=True)
    print(f"thinking:  {answer.reasoning}\nassistant: {answer.text}", flush=True)


def _asked(question: str) -> list[Message]:
    """Prints a question, and returns the conversation that begins with it."""
    print(f"\nuser:      {question}", flush=True)
    return [{"role": "user", "content": question}]


COMMANDS = {"demo": (DemoConfig, run)}
