"""Where the time of a run went, by two readings of a service's metrics."""

import http.server
import os
import threading
from dataclasses import replace

import pytest

from benchmarks.service import breakdown
from benchmarks.service.breakdown import Meter, between

PAGE = b"""pagewire_core_step_seconds_count 3
pagewire_core_step_seconds_sum 0.5
pagewire_worker_waiting_seconds_total 0.25
pagewire_worker_phase_seconds_total{phase="forward"} 0.125
"""


def test_what_reading_takes_is_not_part_of_a_run(monkeypatch: pytest.MonkeyPatch):
    """A frontend that works 5 ms for each page of metrics, and 1 ms for the run between two of them."""
    spent = {"frontend": 0.0}

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            spent["frontend"] += 0.005
            self.send_response(200)
            self.end_headers()
            self.wfile.write(PAGE)

        def log_message(self, *_: object) -> None:
            """Tests are quiet."""

    monkeypatch.setattr(breakdown, "by_role", lambda supervisor: {"frontend": [1]})
    monkeypatch.setattr(breakdown, "processor_seconds", lambda pid: spent["frontend"])
    monkeypatch.setattr(breakdown, "context_switches", lambda pid: (int(2000 * spent["frontend"]), 7))
    with http.server.HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        meter = Meter(f"127.0.0.1:{server.server_port}", os.getpid())
        before = meter.read()
        spent["frontend"] += 0.001
        after = meter.read()
        server.shutdown()
        thread.join()
    found = between(before, replace(after, steps=after.steps + 1, stepping=1.0), seconds=1.0, tokens=2)
    assert found.us_per_token["frontend"] == pytest.approx(500)
    assert (found.wake_ups_per_token["frontend"], found.preemptions_per_token["frontend"]) == (1, 0)
    assert (found.steps, found.step_ms) == (1, 500)
