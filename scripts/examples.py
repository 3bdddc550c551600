"""Builds the examples in other languages and runs each of their commands against a service (`make examples`).

    python -m scripts.examples            # all whose tool chain is installed; the others are named
    python -m scripts.examples cpp java   # these; exits 1 where a tool chain is missing

An answer has to be that of the Python client. examples/node has tests of its own (tests/e2e/test_node.py).
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pagewire import Client, flags
from pagewire.config import ServeConfig
from pagewire.local_service import Service

ROOT = Path(__file__).resolve().parents[1]
PROMPT, QUESTION = "The capital of France is", "What is the capital of Japan?"
MAX_TOKENS = 40
BUILD_S, RUN_S = 600, 120


@dataclass(frozen=True)
class Example:
    """A client in examples/NAME, with a Makefile that takes BUILD.

    needs: programs and files without which it cannot be built. command: runs it, for a build folder, an
    address, a command and a text. lists: a target of the Makefile that prints more files that it needs.
    """

    name: str
    needs: tuple[str, ...]
    command: Callable[[Path, str, str, str], list[str]]
    lists: str = ""

    def missing(self) -> list[str]:
        """Returns what is not installed: programs first, and other files once all programs are there."""
        missing = [each for each in self.needs if not (Path(each).exists() or shutil.which(each))]
        if self.lists and not missing:
            files = run(["make", "-s", self.lists], self, BUILD_S).stdout.split()
            missing = [each for each in files if not Path(each).exists()]
        return missing


def binary_command(build: Path, address: str, command: str, text: str) -> list[str]:
    """Returns the command line of a client that is compiled to a program of its own."""
    return [str(build / "client"), address, command, text]


def java_command(build: Path, address: str, command: str, text: str) -> list[str]:
    """Returns the command line of the Java client."""
    return ["make", "-s", "run", f"BUILD={build}", f"ARGS={address} {command} '{text}'"]


EXAMPLES = {
    example.name: example
    for example in (
        Example(
            "cpp",
            ("make", "g++", "pkg-config", "protoc", "grpc_cpp_plugin", "/usr/include/grpcpp/grpcpp.h"),
            binary_command,
        ),
        Example(
            "go",
            (
                "make",
                "go",
                "protoc",
                "protoc-gen-go",
                "protoc-gen-go-grpc",
                "/usr/share/gocode/src/google.golang.org/grpc",
            ),
            binary_command,
        ),
        Example(
            "java",
            ("make", "javac", "protoc", "grpc_java_plugin"),
            java_command,
            lists="jars",
        ),
    )
}


def build(example: Example, folder: Path) -> None:
    """Builds an example. Raises SystemExit with the compiler's words."""
    command = ["make", f"BUILD={folder}", "CXXFLAGS=-O0", f"-j{os.cpu_count() or 1}"]
    done = run(command, example, BUILD_S)
    if done.returncode:
        raise SystemExit(f"{example.name}: {done.stdout}{done.stderr}")


def check(example: Example, folder: Path, address: str) -> None:
    """Runs every command of an example. Raises SystemExit for an answer that is not the Python client's."""
    with Client(address) as client:
        answer = client.generate(PROMPT, temperature=0, max_tokens=MAX_TOKENS)
        chat = client.chat([{"role": "user", "content": QUESTION}], temperature=0, max_tokens=MAX_TOKENS)
    tokens = f"[{answer.usage.prompt_tokens} + {answer.usage.completion_tokens} tokens]"
    expected = {
        "stream": (PROMPT, f"{answer.text}\n{tokens}\n"),
        "unary": (
            PROMPT,
            f"{answer.text}\n[FINISH_REASON_{(answer.outputs[0].finish_reason or '').upper()}]\n",
        ),
        "chat": (QUESTION, f"{chat.text}\n"),
        "cancel": ("1, 2, 3,", "[CANCELLED]\n"),
    }
    for command, (text, output) in expected.items():
        done = run(example.command(folder, address, command, text), example, RUN_S)
        if done.returncode or done.stdout != output:
            shown = f"{done.stdout!r} in place of {output!r}; {done.stderr}"
            raise SystemExit(f"{example.name} {command}: exit code {done.returncode}, {shown}")


def run(command: list[str], example: Example, seconds: float) -> subprocess.CompletedProcess[str]:
    """Runs a command in the example's folder. Raises SystemExit if it takes longer than seconds."""
    where = ROOT / "examples" / example.name
    try:
        return subprocess.run(command, cwd=where, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired as late:
        written = "".join(part.decode() for part in (late.stdout, late.stderr) if isinstance(part, bytes))
        raise SystemExit(f"{example.name}: no end of {command} after {seconds} s; {written}") from None


def main(names: list[str]) -> int:
    """Returns the exit code."""
    if unknown := set(names) - set(EXAMPLES):
        raise SystemExit(f"there is no example {', '.join(sorted(unknown))}: {', '.join(EXAMPLES)}")
    chosen = [EXAMPLES[name] for name in names or EXAMPLES]
    lacking = {example.name: missing for example in chosen if (missing := example.missing())}
    for name, missing in lacking.items():
        print(f"{name}: skipped, {', '.join(missing)} not installed (examples/{name}/README.md)")
    ready = [example for example in chosen if example.name not in lacking]
    if ready:
        with tempfile.TemporaryDirectory() as folder:
            for example in ready:
                build(example, Path(folder) / example.name)
            given = ["--port=0", "--http-port=-1", "--log-level=warning"]
            with Service(flags.parse(ServeConfig, given, command="serve")) as service:
                for example in ready:
                    check(example, Path(folder) / example.name, service.address)
                    print(f"{example.name}: built, and answers as the Python client does")
    return int(bool(names and lacking))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
