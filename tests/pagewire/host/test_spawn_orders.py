"""Orders of a supervisor: a line each, which says what was meant when it is read."""

import json

import pytest

from pagewire.host.spawn import Activation, KeptWorkers, WorkerStarted, read_order

ORDERS = [
    (Activation(), {"order": "activate", "after_kill": False}),
    (Activation(after_kill=True), {"order": "activate", "after_kill": True}),
    (
        Activation(True, KeptWorkers("ipc:///folder/workers.ipc", (123, 4))),
        {"order": "activate", "after_kill": True, "address": "ipc:///folder/workers.ipc", "pids": [123, 4]},
    ),
    (WorkerStarted(124), {"order": "worker", "pid": 124, "why": ""}),
    (WorkerStarted(0, "no more\nprocesses"), {"order": "worker", "pid": 0, "why": "no more\nprocesses"}),
]


@pytest.mark.parametrize(("order", "content"), ORDERS)
def test_an_order_is_one_line(order: Activation | WorkerStarted, content: dict[str, object]):
    """Whatever it says, so that the next one is read from its beginning."""
    line = order.line()
    assert json.loads(line) == content
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert read_order(line) == order
