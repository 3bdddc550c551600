# Generated from stream_aio.py by scripts/clients.py: change that file, then run 'make clients'.
"""The stream of one generation, for threads."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Self

import grpc

from pagewire_client.errors import RpcError, from_grpc
from pagewire_client.results import Delta, Generation
from pagewire_client.transport import io_sync
from pagewire_client.transport.recovery import Recovery


class Stream:
    """An iterator of the deltas of one running generation, in the order in which they were generated.

    When the server dies, the stream continues on another one, or on the same one once it is back. The
    request lives as long as this object: close(), the end of a with statement, an exception while
    it waits (such as Ctrl-C), and dropping the last reference cancel it and free its memory on the
    server. `generation` holds everything received so far.
    """

    _closed = True  # until the request is sent

    def __init__(self, recovery: Recovery, send: Callable[[Recovery], Any]) -> None:
        self._recovery = recovery
        self._send = send
        self._call = send(recovery)
        self._closed = False
        self._ready: deque[Delta] = deque()
        self.generation = recovery.generation

    def __iter__(self) -> Iterator[Delta]:
        return self

    def __next__(self) -> Delta:
        while not self._ready:
            if self._closed:
                raise StopIteration
            try:
                response = io_sync.read(self._call)
            except grpc.RpcError as error:
                self._send_again(from_grpc(error))
                continue
            except BaseException:  # such as Ctrl-C
                self._cancel()
                raise
            if response is None:
                self._closed = True
                raise StopIteration
            self._ready.extend(self._recovery.received(response))
        return self._ready.popleft()

    def _send_again(self, error: RpcError) -> None:
        """Sends the request again after a pause. Raises the error where another attempt cannot help."""
        if self._recovery.is_complete_despite(error):
            self._closed = True
            return
        pause = self._recovery.after(error)
        if pause is None or self._closed:
            self._closed = True
            raise error from None
        try:
            io_sync.sleep(pause)
        except BaseException:
            self._closed = True
            raise
        if not self._closed:
            self._call = self._send(self._recovery)

    def result(self) -> Generation:
        """Reads to the end and returns the whole generation."""
        for _ in self:
            pass
        return self.generation

    def close(self) -> None:
        """Cancels the request, unless it has ended. Idempotent."""
        self._cancel()

    def _cancel(self) -> None:
        if not self._closed:
            self._closed = True
            self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self._cancel()
