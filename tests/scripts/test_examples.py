"""Examples in other languages: what is missing is named, and each has its page."""

from pathlib import Path

import pytest

from scripts import examples


def test_a_missing_tool_chain_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    needs = ("sh", "no-such-compiler", "/no/such/header.h")
    lacking = examples.Example("cpp", needs, examples.binary_command)
    monkeypatch.setattr(examples, "EXAMPLES", {"cpp": lacking})
    assert examples.main([]) == 0 and examples.main(["cpp"]) == 1
    words = "cpp: skipped, no-such-compiler, /no/such/header.h not installed"
    assert all(line.startswith(words) for line in capsys.readouterr().out.splitlines())


def test_an_unknown_example_is_named():
    with pytest.raises(SystemExit, match="no example cobol: cpp, go, java"):
        examples.main(["cobol"])


@pytest.mark.parametrize("name", examples.EXAMPLES)
def test_every_example_has_a_page_and_all_commands(name: str, tmp_path: Path):
    folder = examples.ROOT / "examples" / name
    page = (folder / "README.md").read_text()
    assert all(command in page for command in ("stream", "unary", "chat", "cancel", "TOKEN=", "CA="))
    assert (folder / "Makefile").exists()
    assert examples.EXAMPLES[name].command(tmp_path, "here:1", "chat", "hi")
