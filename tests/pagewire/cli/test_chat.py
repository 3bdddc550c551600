"""`pagewire chat`: what its flags become."""

import contextlib
import io
from pathlib import Path

import pytest

from pagewire.cli import chat
from pagewire.cli.chat import _options
from pagewire.command_config import ChatConfig
from pagewire.flags import UsageError


def test_flags_become_options_of_each_answer(tmp_path: Path) -> None:
    tools = tmp_path / "tools.py"
    tools.write_text("def now() -> str:\n    return 'noon'\n")
    assert _options(ChatConfig()) == {}
    assert _options(ChatConfig(thinking=True)) == {"enable_thinking": True}
    options = _options(ChatConfig(tools=str(tools), tool_choice="required", reasoning_budget=0))
    assert [function.__name__ for function in options.pop("tools")] == ["now"]
    assert options == {"tool_choice": "required", "reasoning_budget": 0}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_words_of_a_terminal_are_not_sent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, sent = iter(["/help", "what is /help?", "/exit", "never"]), []
    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("builtins.input", lambda _: next(lines))
    monkeypatch.setattr(chat, "connect", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(chat, "_answer", lambda _, messages, *rest: sent.append(messages[-1]["content"]))
    assert chat.run(ChatConfig()) == 0
    assert sent == ["what is /help?"] and "end the conversation" in capsys.readouterr().err


def test_a_choice_needs_tools() -> None:
    with pytest.raises(UsageError, match="--tool-choice needs --tools"):
        _options(ChatConfig(tool_choice="required"))
