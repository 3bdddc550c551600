"""Signals as events."""

import os
import signal

import pytest

from pagewire.supervisor.events import STOPPING, Signals
from tests.patience import PATIENCE_S


def test_signals_are_collected_and_handlers_restored():
    before = signal.getsignal(signal.SIGTERM)
    with Signals() as signals:
        assert signals.take() == set()
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGCHLD)
        assert signals.wait(PATIENCE_S) == {signal.SIGTERM, signal.SIGCHLD}
        assert signals.wait(0.0) == set()
    assert signal.getsignal(signal.SIGTERM) is before
    assert signal.SIGCHLD not in STOPPING


@pytest.mark.parametrize("ignored", [False, True])
def test_sighup_stays_ignored_if_it_was(ignored: bool):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        with Signals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGTERM)
            assert (signal.SIGHUP in signals.wait(PATIENCE_S)) != ignored
    finally:
        signal.signal(signal.SIGHUP, before)
