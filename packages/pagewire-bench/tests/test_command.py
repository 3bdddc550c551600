"""`pagewire bench`, from the command line to its files."""

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench_fakes import answer, made_record
from pagewire import cli
from pagewire.flags import UsageError
from pagewire_bench.record import write_record
from tests.pagewire import fakes
from tests.patience import PATIENCE_S


def test_a_load_test(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    fake = fakes.FakeService()
    fake.respond = answer
    prompts, figures, page = (tmp_path / name for name in ("prompts.jsonl", "a.json", "a.html"))
    prompts.write_text('"hello"\n{"token_ids": [1, 2], "max_tokens": 3}\n')
    with fakes.running(fake) as address:
        arguments = [f"--address={address}", f"--prompts={prompts}", "--concurrency=1,2", "--num-requests=4"]
        files = [f"--json={figures}", f"--html={page}", f"--svg={tmp_path / 'svg'}"]
        assert cli.run(["bench", *arguments, *files, "--label=mine"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("load") and shown[1].startswith("1 concurrent") and "latencies in ms" in shown
    assert json.loads(figures.read_text())["figures"][1]["complete"] == 4
    assert "pagewire bench: mine" in page.read_text()
    assert (tmp_path / "svg" / "inter-token-latency.svg").exists()
    assert cli.run(["bench", "compare", str(figures), str(figures)]) == 0
    assert "no difference shown" in capsys.readouterr().out


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """SIGINT interrupts; a process that a shell starts in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_keeps_the_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """The signal comes with the first request of the second level."""
    fake = fakes.FakeService()
    sent = []

    def interrupt(request, context):
        sent.append(request)
        if len(sent) > 5:
            left = threading.Event()
            context.add_callback(left.set)
            if len(sent) == 6:
                os.kill(os.getpid(), signal.SIGINT)
            left.wait(PATIENCE_S)
        return answer(request, context)

    fake.respond = interrupt
    prompts, figures = tmp_path / "prompts.jsonl", tmp_path / "a.json"
    prompts.write_text('"hello"\n')
    with fakes.running(fake) as address:
        arguments = [f"--address={address}", f"--prompts={prompts}", "--concurrency=1,2", "--num-requests=3"]
        assert cli.run(["bench", *arguments, f"--json={figures}"]) == 130
    shown = capsys.readouterr()
    assert "1 concurrent" in shown.out and "interrupted at 2 concurrent" in shown.err
    assert json.loads(figures.read_text())["figures"][0]["complete"] == 3


def test_a_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for name, factor in (("a", 1.0), ("b", 1.5)):
        write_record(made_record(factor, label=name), tmp_path / name)
    assert cli.run(["bench", "compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    assert "worse" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["compar"], "unknown argument 'compar'"),
        (["run", "x"], "unknown argument 'x'"),
        (["compare", "a"], "two files are needed"),
        (["--url=nothing"], "is not a URL"),
        (["--token-file=/no/such/file"], "--token-file"),
    ],
)
def test_wrong_usage(arguments: list[str], words: str):
    with pytest.raises(UsageError, match=words):
        cli.run(["bench", *arguments])
