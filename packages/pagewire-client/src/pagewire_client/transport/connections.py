# Generated from connections_aio.py by scripts/clients.py: change that file, then run 'make clients'.
"""Connections to the frontends of a service, for threads."""

from collections.abc import Sequence
from typing import Any, Self, Unpack

import grpc

from pagewire.v1 import generation_pb2
from pagewire_client.errors import Unavailable, from_grpc
from pagewire_client.transport import channel, io_sync
from pagewire_client.transport.channel import Method, Q, R
from pagewire_client.transport.credentials import AccessOptions, Credentials
from pagewire_client.transport.recovery import Recovery


class Connections:
    """Connections to one or several frontends. One is used until it fails, then the next one."""

    def __init__(
        self,
        address: str | Sequence[str] = "127.0.0.1:50051",
        *,
        model: str = "",
        **access: Unpack[AccessOptions],
    ) -> None:
        """Connects lazily: the first call opens the connection.

        address: HOST:PORT or a name that gRPC resolves. Several addresses are frontends of one service; the
        client uses one until it fails. model: served name; default: the only model. access: token and TLS.
        Raises ValueError for a wrong argument, and OSError for certificate files that cannot be read.
        """
        self._credentials = Credentials(**access)
        self._channels = [self._connect(each) for each in channel.addresses(address)]
        self._server = 0  # index of the channel in use
        self._model = model

    def close(self) -> None:
        """Cancels the requests in flight and closes the connections."""
        for connection in self._channels:
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connect(self, address: str) -> io_sync.Channel:
        credentials = self._credentials
        target, options = channel.target(address), channel.options(address, credentials)
        if credentials.secure:
            return io_sync.secure_channel(target, credentials.for_channel(), options=options)
        return io_sync.insecure_channel(target, options=options)

    def _recovery(self, request: generation_pb2.GenerateRequest, timeout: float | None) -> Recovery:
        return Recovery(request, len(self._channels), self._server, timeout)

    def _unary(self, method: Method[Q, R], request: Q, timeout: float | None) -> R:
        """Calls a method that any server can answer: the next server is asked where one is unavailable."""
        for _ in self._channels[1:]:
            try:
                return self._call(method, request, timeout)
            except Unavailable:
                self._server = (self._server + 1) % len(self._channels)
        return self._call(method, request, timeout)

    def _call(self, method: Method[Q, R], request: Q, timeout: float | None) -> R:
        call = self._channels[self._server].unary_unary(method.path, **method.codec)
        try:
            response: R = io_sync.unary(call, request, timeout, self._credentials.metadata())
        except grpc.RpcError as error:
            raise from_grpc(error) from None
        return response

    def _streaming(self, method: Method[Q, R], request: Q, timeout: float | None) -> Any:
        call = self._channels[self._server].unary_stream(method.path, **method.codec)
        return call(request, timeout=timeout, metadata=self._credentials.metadata())
