"""POST /v1/embeddings."""

from base64 import b64encode
from functools import partial
from typing import Any

from frontend.call.call import Call
from frontend.errors import InvalidRequest, ServiceError
from frontend.http.exchange import Exchange
from frontend.parts import FrontendParts
from frontend.vectors import PACKED, as_dtype
from pagewire.ipc.columns import unpack_f32
from pagewire.v1 import pooling_pb2
from pagewire_openai.endpoints import read_in_turn, request_id_of
from pagewire_openai.requests import values
from pagewire_openai.requests.completion import PROMPTS
from pagewire_openai.requests.fields import Field, Names, Table, given, read_fields
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


async def embeddings(parts: FrontendParts, body: Json, call: Call, exchange: Exchange) -> None:
    """POST /v1/embeddings."""
    names, request = Names(), pooling_pb2.EmbedRequest()
    _, call = await read_in_turn(partial(_read, body, request, names), parts, call, exchange)
    encoding = given(body, "encoding_format", "float")
    request.request_id = request_id_of(exchange, names)
    parts.state.require_open()
    try:
        vectors = await parts.embedder.embed(request, call)
    except ServiceError as error:
        raise names.translated(error) from None

    def data() -> list[Json]:
        return [
            {
                "object": "embedding",
                "index": index,
                "embedding": _encoded(column, encoding, request.raw_dtype),
                **({"truncated_tokens": vectors.truncated[index]} if vectors.truncated[index] else {}),
            }
            for index, column in enumerate(vectors.columns)
        ]

    usage = {"prompt_tokens": vectors.prompt_tokens, "total_tokens": vectors.prompt_tokens}
    try:
        read = await parts.prompts.run(data, call.caller.tenant, sum(map(len, vectors.columns)))
    except ServiceError as error:
        raise names.translated(error) from None
    answer = {
        "object": "list",
        "data": read,
        "model": parts.model.answering_name(request.model),
        "usage": usage,
    }
    await exchange.respond(200, answer)


def _read(body: Json, request: pooling_pb2.EmbedRequest, names: Names) -> None:
    """Reads the inputs, and what holds for all of them. Raises InvalidRequest."""
    read_fields(body, EMBEDDINGS, request, names)
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
