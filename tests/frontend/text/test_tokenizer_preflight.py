"""The fork that reads the tokenizer first: what its parent process says meanwhile."""

import os
import signal
import sys
from contextlib import suppress

import pytest

from pagewire.errors import StartupError
from pagewire.host.spawn import Heartbeat

if sys.platform != "win32":
    from frontend.text.tokenizer_preflight import try_first


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks at the fork often, so that tests need not last."""
    monkeypatch.setattr(Heartbeat, "INTERVAL_S", 0.01)


def test_a_fork_that_computes_long_is_no_silence() -> None:
    """The supervisor kills a process that is silent for ten seconds; the fork may compute for a minute."""
    told: list[float] = []
    heard, hear = os.pipe()
    os.set_blocking(heard, False)

    def tell(fraction: float) -> None:
        told.append(fraction)
        os.write(hear, b"x")

    def computes() -> None:
        """Ends when three messages have come."""
        left = 3
        while left:
            with suppress(BlockingIOError):
                left -= len(os.read(heard, left))

    try_first(computes, "model", tell)
    assert len(told) > 2 and told == sorted(set(told)) and told[-1] < 1


def test_a_fork_that_waits_is_silence() -> None:
    """It may wait for ever: each message is of more processor time than the last."""
    told: list[float] = []
    never, _ = os.pipe()

    def waits() -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        os.read(never, 1)

    with pytest.raises(StartupError, match="SIGALRM"):
        try_first(waits, "model", told.append)
    assert told == sorted({*told})  # what the fork takes to begin, and nothing twice


def test_a_fork_that_dies_is_named() -> None:
    with pytest.raises(StartupError, match=r"the tokenizer.json of model ended .*SIGKILL") as ended:
        try_first(lambda: os.kill(os.getpid(), signal.SIGKILL), "model", lambda _: None)
    assert ended.value.may_pass
