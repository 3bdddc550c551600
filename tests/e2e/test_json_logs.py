"""With --log-format json, standard error of the whole service is for programs."""

import json
import os
import signal
from collections.abc import Callable
from datetime import datetime

from tests.e2e import services


def test_every_line_of_every_process_is_an_object(serve: Callable[..., services.Serve]):
    service = serve("--device=simulated", "--profile=instant", "--log-format=json")
    service.wait_ready()
    (worker,) = services.processes(service.process.pid)["worker"]
    os.kill(worker, signal.SIGKILL)
    services.wait_until(lambda: services.processes(service.process.pid).get("worker", [worker]) != [worker])
    service.process.terminate()
    code, error = service.end()
    assert code == 0
    lines = [json.loads(line) for line in error.splitlines()]
    assert {"serve", "engine-core", "frontend"} <= {line["process"] for line in lines}
    for line in lines:
        assert {"time", "level", "logger", "message", "process", "pid"} <= line.keys()
        assert datetime.fromisoformat(line["time"]).tzinfo is not None


def test_last_words_are_an_object_too(serve: Callable[..., services.Serve]):
    service = serve("/nowhere", "--log-format=json")
    code, error = service.end()
    last = json.loads(error.splitlines()[-1])
    assert code == 1 and last["level"] == "error" and last["todo"]
