"""POST /v1/embeddings, and /pooling."""

import time
from base64 import b64encode
from collections.abc import Callable
from functools import partial
from typing import Any

from frontend.call.call import Call
from frontend.errors import InvalidRequest
from frontend.field_names import Names, renaming
from frontend.http.exchange import Exchange
from frontend.parts import FrontendParts
from frontend.streams.pooling import Vectors
from frontend.vectors import PACKED, as_dtype, split
from pagewire.ipc.columns import unpack_f32
from pagewire.v1 import pooling_pb2
from pagewire_openai.endpoints import read_in_turn, request_id_of, usage_of
from pagewire_openai.requests import values
from pagewire_openai.requests.completion import PROMPTS
from pagewire_openai.requests.fields import Field, Table, given, read_fields
from pagewire_openai.requests.inputs import read_inputs

Json = dict[str, Any]

_ENCODINGS = ("float", "base64")
EMBEDDINGS: Table = {
    "model": Field(values.text, "model"),
    "input": Field(values.anything, inner=PROMPTS),
    "encoding_format": Field(values.text),
    "embed_dtype": Field(values.text, "raw_dtype"),
    "endianness": Field(values.nothing("little", "native")),
    "dimensions": Field(values.count, "dimensions"),
    "prompt_name": Field(values.text, "prompt_name"),
    "user": Field(values.anything),
    "normalize": Field(values.boolean, "normalize"),
    "add_special_tokens": Field(values.boolean),
    "truncate_prompt_tokens": Field(values.count),
    "priority": Field(values.int32, "priority"),
    "cache_salt": Field(values.text, "cache.salt"),
}


POOLING: Table = {**EMBEDDINGS, "task": Field(values.nothing("token_embed"))}


async def embeddings(parts: FrontendParts, body: Json, call: Call, exchange: Exchange) -> None:
    """POST /v1/embeddings."""
    names, request = Names(), pooling_pb2.EmbedRequest()
    vectors = await _embed(parts, body, EMBEDDINGS, request, names, call, exchange)
    encoding = given(body, "encoding_format", "float")

    def data(index: int) -> Json:
        column = vectors.columns[index]
        return {"object": "embedding", "embedding": _encoded(column, encoding, request.raw_dtype)}

    await _respond(parts, request, vectors, data, {}, names, call, exchange)


async def pooling(parts: FrontendParts, body: Json, call: Call, exchange: Exchange) -> None:
    """POST /pooling, as in vLLM: vectors of tokens."""
    names, request = Names(), pooling_pb2.EmbedRequest(kind=pooling_pb2.EMBEDDING_KIND_TOKENS)
    vectors = await _embed(parts, body, POOLING, request, names, call, exchange)
    encoding = given(body, "encoding_format", "float")

    def data(index: int) -> Json:
        column = vectors.columns[index]
        if encoding == "base64":
            return {"object": "pooling", "data": _encoded(column, encoding, request.raw_dtype)}
        of_tokens = split(column, len(vectors.token_ids[index]))
        return {
            "object": "pooling",
            "data": [_encoded(each, encoding, request.raw_dtype) for each in of_tokens],
        }

    facts = {"id": request.request_id, "created": int(time.time())}
    await _respond(parts, request, vectors, data, facts, names, call, exchange)


async def _embed(
    parts: FrontendParts,
    body: Json,
    table: Table,
    request: pooling_pb2.EmbedRequest,
    names: Names,
    call: Call,
    exchange: Exchange,
) -> Vectors:
    """Reads a body into a request and embeds its inputs. Raises ServiceError."""
    names["kind"] = "model"  # which kinds there are is the model's
    _, call = await read_in_turn(partial(_read, body, table, request, names), parts, call, exchange)
    request.request_id = request_id_of(exchange, names)
    parts.state.require_open()
    with renaming(names):
        return await parts.embedder.embed(request, call)


async def _respond(
    parts: FrontendParts,
    request: pooling_pb2.EmbedRequest,
    vectors: Vectors,
    data: Callable[[int], Json],
    facts: Json,
    names: Names,
    call: Call,
    exchange: Exchange,
) -> None:
    """Sends vectors. data: returns the entry of an input. facts: more about the response. Raises
    ServiceError."""

    def entries() -> list[Json]:
        return [
            {"index": index, **data(index), **({"truncated_tokens": truncated} if truncated else {})}
            for index, truncated in enumerate(vectors.truncated)
        ]

    with renaming(names):
        read = await parts.prompts.run(entries, call.caller.tenant, sum(map(len, vectors.columns)))
    usage, model = usage_of(vectors.usage), parts.model.answering_name(request.model)
    await exchange.respond(200, {"object": "list", **facts, "data": read, "model": model, "usage": usage})


def _read(body: Json, table: Table, request: pooling_pb2.EmbedRequest, names: Names) -> None:
    """Reads the inputs, and what holds for all of them. Raises InvalidRequest."""
    read_fields(body, table, request, names)
    if given(body, "encoding_format", "float") not in _ENCODINGS:
        raise InvalidRequest({"encoding_format": f"must be {' or '.join(_ENCODINGS)}"})
    has_numbers = given(body, "encoding_format", "float") != "base64"
    if has_numbers and request.raw_dtype in ("float16", "bfloat16"):
        raise InvalidRequest({"embed_dtype": "needs encoding_format base64: numbers are float32"})
    request.inputs.extend(read_inputs(body, names))


def _encoded(column: bytes, encoding: str, dtype: str) -> list[float] | str:
    """Returns a float32 column as numbers, or in base64 as elements of a type; "": float32. Packed signs are
    numbers, too. Raises InvalidRequest."""
    if encoding == "base64":
        return b64encode(as_dtype(column, dtype or "float32")).decode()
    if dtype in PACKED:
        return list(memoryview(as_dtype(column, dtype)).cast("b" if PACKED[dtype] == "int8" else "B"))
    return unpack_f32(column)
