"""Signals as a descriptor."""

import os
import select
import signal

import pytest

from engine_core.io.process_control import StopSignal


def is_readable(stop: StopSignal) -> bool:
    return bool(select.select([stop], [], [], 0)[0])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_makes_it_readable(number: signal.Signals) -> None:
    with StopSignal() as stop:
        assert not is_readable(stop)
        os.kill(os.getpid(), number)
        assert is_readable(stop)


def test_a_request_is_like_a_signal() -> None:
    with StopSignal() as stop:
        stop.request()
        assert is_readable(stop)


def test_handlers_are_restored() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopSignal():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_first_signal_may_ask_for_a_drain() -> None:
    calls: list[None] = []
    with StopSignal() as stop:
        stop.on_first = lambda: calls.append(None)
        os.kill(os.getpid(), signal.SIGTERM)
        assert calls and not is_readable(stop)
        os.kill(os.getpid(), signal.SIGTERM)
        assert len(calls) == 1 and is_readable(stop)
