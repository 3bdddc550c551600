"""LLM.embed: many inputs, a bounded number per call, through the death of a frontend."""

import time
from collections.abc import Sequence
from typing import Any

import grpc
from tqdm import tqdm

from pagewire.client.errors import Unavailable, from_grpc
from pagewire.client.transport import channel
from pagewire.local_service import Service
from pagewire.v1 import pooling_pb2, prompt_pb2

_PER_CALL = 256
"""Inputs of one request: enough to fill the engine's steps, few enough to be computed again."""
_PAUSE_S = 0.2
"""Between two attempts while the service restarts what has died."""


def embed_all(
    connection: grpc.Channel,
    service: Service,
    inputs: Sequence[prompt_pb2.Prompt],
    progress: bool,
    **options: Any,
) -> list[list[float]]:
    """Returns a vector per input. options: fields of the request. Raises RpcError."""
    vectors: list[list[float]] = []
    with tqdm(total=len(inputs), unit="input", dynamic_ncols=True, disable=not progress) as bar:
        for start in range(0, len(inputs), _PER_CALL):
            request = pooling_pb2.EmbedRequest(inputs=inputs[start : start + _PER_CALL], **options)
            response = _embed(connection, service, request)
            vectors += [list(embedding.values) for embedding in response.embeddings]
            bar.update(len(response.embeddings))
    return vectors


def _embed(
    connection: grpc.Channel, service: Service, request: pooling_pb2.EmbedRequest
) -> pooling_pb2.EmbedResponse:
    """Calls until there is an answer, or the service has ended. Raises RpcError."""
    call = connection.unary_unary(channel.EMBED.path, **channel.EMBED.codec)
    while True:
        try:
            response: pooling_pb2.EmbedResponse = call(request)
            return response
        except grpc.RpcError as caught:
            error = from_grpc(caught)
            if not isinstance(error, Unavailable) or not service.is_running:
                raise error from None
        time.sleep(_PAUSE_S)
