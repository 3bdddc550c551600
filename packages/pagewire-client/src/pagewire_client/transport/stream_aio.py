"""The stream of one generation, for asyncio."""

from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, Self

import grpc

from pagewire_client.errors import RpcError, from_grpc
from pagewire_client.results import Delta, Generation
from pagewire_client.transport import io_aio
from pagewire_client.transport.recovery import Recovery


class AsyncStream:
    """An iterator of the deltas of one running generation, in the order in which they were generated.

    When the server dies, the stream continues on another one, or on the same one once it is back. The
    request lives as long as this object: aclose(), the end of an async with statement, an exception while
    it waits (a cancelled task, Ctrl-C), and dropping the last reference cancel it and free its memory on the
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

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self

    async def __anext__(self) -> Delta:
        while not self._ready:
            if self._closed:
                raise StopAsyncIteration
            try:
                response = await io_aio.read(self._call)
            except grpc.RpcError as error:
                await self._send_again(from_grpc(error))
                continue
            except BaseException:  # such as CancelledError or Ctrl-C
                self._cancel()
                raise
            if response is None:
                self._closed = True
                raise StopAsyncIteration
            self._ready.extend(self._recovery.received(response))
        return self._ready.popleft()

    async def _send_again(self, error: RpcError) -> None:
        """Sends the request again after a pause. Raises the error where another attempt cannot help."""
        if self._recovery.is_complete_despite(error):
            self._closed = True
            return
        pause = self._recovery.after(error)
        if pause is None or self._closed:
            self._closed = True
            raise error from None
        try:
            await io_aio.sleep(pause)
        except BaseException:
            self._closed = True
            raise
        if not self._closed:
            self._call = self._send(self._recovery)

    async def result(self) -> Generation:
        """Reads to the end and returns the whole generation."""
        async for _ in self:
            pass
        return self.generation

    async def aclose(self) -> None:
        """Cancels the request, unless it has ended. Idempotent."""
        self._cancel()

    def _cancel(self) -> None:
        if not self._closed:
            self._closed = True
            self._call.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        self._cancel()
