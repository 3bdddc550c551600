"""`pagewire completion`: bash itself completes; the other scripts have every command and flag."""

import subprocess

import pytest

from pagewire import cli
from pagewire.cli.completion import SCRIPTS, commands
from pagewire.flags import UsageError

COMPLETE = """
source /dev/stdin <<< "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _pagewire; printf '%s\\n' "${COMPREPLY[@]}"
"""


def completed(*words: str) -> list[str]:
    """What bash offers for the last word."""
    arguments = ["bash", "-c", COMPLETE, "bash", SCRIPTS["bash"](commands()), "pagewire", *words]
    return subprocess.run(arguments, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("re",), ["requests", "resume", "replay"]),
        (("serve", "--max-num-s"), ["--max-num-seqs"]),
        (("serve", "--policy", ""), ["fair", "fcfs"]),
        (("requests", "--wa"), ["--watch"]),
        (("completion", ""), ["bash", "zsh", "fish"]),
        (("serve", "README.m"), ["README.md"]),
        (("version", "--"), []),
    ],
)
def test_bash(words: tuple[str, ...], expected: list[str]):
    assert completed(*words) == expected


@pytest.mark.parametrize("shell", SCRIPTS)
def test_a_script_has_every_command_and_flag(shell: str, capsys: pytest.CaptureFixture[str]):
    assert cli.run(["completion", shell]) == 0
    script = capsys.readouterr().out
    for command in commands():
        assert command.name in script
        for flag in command.flags:
            name = f"-l {flag.option[2:]} " if shell == "fish" else flag.option
            assert name in script, (command.name, flag.option)


def test_help_with_quotes_stays_one_word():
    """The help of --stop-regex and others has apostrophes, colons and brackets."""
    for shell in ("zsh", "fish"):
        for line in SCRIPTS[shell](commands()).splitlines():
            plain = line.replace("'\\''", "").replace("\\'", "")
            assert plain.count("'") % 2 == 0, line


def test_another_shell_is_refused():
    with pytest.raises(UsageError):
        cli.run(["completion", "csh"])
