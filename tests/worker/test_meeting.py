"""Where ranks of several hosts meet."""

import os
import socket

import pytest

from pagewire.errors import StartupError
from worker.meeting import Meeting


def never() -> bool:
    return False


def test_rank_0_listens_where_it_says_and_nowhere_else():
    first, other = Meeting(0, "127.0.0.1", never), Meeting(1, "127.0.0.1", never)
    assert (first.own_address(), other.own_address(), other.port) == ("127.0.0.1", "127.0.0.1", 0)
    assert first.host == socket.gethostname()
    socket.create_connection(("127.0.0.1", first.port)).close()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.2", first.port))
    os.close(first.take_socket())


def test_an_address_that_is_not_of_this_host_is_named():
    with pytest.raises(StartupError) as raised:
        Meeting(0, "192.0.2.1", never)
    assert raised.value.what == "cannot listen on 192.0.2.1" and "--master-addr" in raised.value.todo
