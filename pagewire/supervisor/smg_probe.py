"""Asks smg over HTTP whether it serves, and whether it still answers."""

import contextlib
import http.client
import json
import threading

ANSWER_S = 2.0
"""Seconds that smg may take for one answer."""
_PAUSE_S = 0.5


def serves(host: str, port: int) -> bool:
    """Returns whether smg knows a model, which it learns from the first frontend that it reaches."""
    with contextlib.closing(http.client.HTTPConnection(host, port, timeout=ANSWER_S)) as connection:
        try:
            connection.request("GET", "/v1/models")
            response = connection.getresponse()
            content = json.load(response)
            return response.status == 200 and isinstance(content, dict) and bool(content.get("data"))
        except (OSError, http.client.HTTPException, ValueError):
            return False


class SmgProbe:
    """Asks again and again from start() to close(), in a thread: an answer that does not come blocks."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._answered = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="smg-probe", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def close(self) -> None:
        """Lets the thread end; it may still wait for an answer."""
        self._closed.set()

    def take_answer(self) -> bool:
        """Returns whether smg has answered since the last call."""
        answered = self._answered.is_set()
        self._answered.clear()
        return answered

    def _run(self) -> None:
        while not self._closed.wait(_PAUSE_S):
            if self._answers():
                self._answered.set()

    def _answers(self) -> bool:
        """Any status counts: smg answers 503 where no frontend is left."""
        with contextlib.closing(
            http.client.HTTPConnection(self._host, self._port, timeout=ANSWER_S)
        ) as connection:
            try:
                connection.request("GET", "/liveness")
                return bool(connection.getresponse().status)
            except (OSError, http.client.HTTPException):
                return False
