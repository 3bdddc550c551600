"""The HTTP port of a process: a second service on the host finds another one, unless the port was chosen."""

import logging
import socket
from contextlib import closing

import pytest

from pagewire.config import ServeConfig
from pagewire.errors import StartupError
from pagewire.telemetry.watch import Watch


def test_where_the_default_is_taken_a_free_port_is_used(caplog: pytest.LogCaptureFixture):
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        watch = Watch(ServeConfig(), "supervisor")
        with closing(watch), caplog.at_level(logging.WARNING):
            watch.open(taken)
            assert watch.address is not None
            port = int(watch.address.rpartition(":")[2])
            assert port != taken
            assert f"port {taken} is in use: metrics and health are on port {port}" in caplog.text


def test_a_chosen_port_that_is_taken_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        watch = Watch(ServeConfig(http_port=taken), "supervisor")
        with closing(watch), pytest.raises(StartupError, match=f"cannot listen on 127.0.0.1:{taken}"):
            watch.open(1)
