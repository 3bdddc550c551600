"""`pagewire token new`."""

from pathlib import Path

import pytest

from frontend.auth.caller import Caller, Terms
from frontend.auth.tokens import read_tokens
from pagewire import cli
from pagewire.flags import UsageError


def new(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    """The token, and what is said beside it."""
    assert cli.run(["token", "new", *arguments]) == 0
    out, err = capsys.readouterr()
    return out.strip(), err


def test_the_line_that_is_printed_lets_the_token_in(capsys):
    token, said = new(capsys, "--tenant=alice")
    (line,) = [line for line in said.splitlines() if line.startswith("- ")]
    assert token not in said
    assert read_tokens(f"tokens:\n{line}").find(token, 0.0) == Caller("alice", terms=Terms())


def test_all_that_can_be_said_of_a_token(capsys, tmp_path):
    path = tmp_path / "tokens.yaml"
    options = ["--weight=2", "--max-requests=3", "--max-tokens-per-minute=4", "--role=admin"]
    token, _ = new(capsys, "--tenant=1e3", f"--auth-file={path}", *options, "--expires=2027-01-31")
    table = read_tokens(path.read_text())
    assert table.find(token, 0.0) == Caller("1e3", is_admin=True, terms=Terms(2.0, 3, 4))
    assert path.stat().st_mode & 0o777 == 0o600 and token not in path.read_text()


@pytest.mark.parametrize(
    "before", ["", "# ours\ntokens:\n  # first\n", "tokens:\n- {sha256: '%s', tenant: x}"]
)
def test_tokens_are_added_to_a_file(capsys, tmp_path, before):
    path = tmp_path / "tokens.yaml"
    if before:
        path.write_text(before % ("0" * 64) if "%" in before else before)
        path.chmod(0o640)
    found = [new(capsys, f"--tenant={name}", f"--auth-file={path}")[0] for name in ("alice", "bob")]
    table = read_tokens(path.read_text())
    assert [table.find(token, 0.0).tenant for token in found] == ["alice", "bob"]
    assert before[:6] in path.read_text() and list(tmp_path.iterdir()) == [path]
    assert path.stat().st_mode & 0o777 == (0o640 if before else 0o600)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "--tenant"),
        (("--tenant=a/b",), "--tenant"),
        (("--tenant=a", "--expires=soon"), "expires"),
        (("--tenant=a", "--weight=0"), "--weight"),
        (("old", "--tenant=a"), "new"),
    ],
)
def test_what_cannot_be(arguments, words):
    with pytest.raises(UsageError) as caught:
        cli.run(["token", *arguments])
    assert words in str(caught.value) + caught.value.todo


@pytest.mark.parametrize("content", ["nonsense", "tokens: []", "tokens: [{tenant: x}]", None])
def test_a_file_that_cannot_be_added_to_stays_as_it_is(capsys, tmp_path, content):
    path: Path = tmp_path / "tokens.yaml"
    if content is None:
        path.mkdir()
    else:
        path.write_text(content)
    with pytest.raises(UsageError):
        cli.run(["token", "new", "--tenant=a", f"--auth-file={path}"])
    assert content is None or path.read_text() == content
    assert capsys.readouterr().out == "" and list(tmp_path.iterdir()) == [path]
