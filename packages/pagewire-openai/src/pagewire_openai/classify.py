"""POST /classify, as in vLLM."""

import time
from functools import partial
from typing import Any

from frontend.call.call import Call
from frontend.field_names import Names, renaming
from frontend.http.exchange import Exchange
from frontend.parts import FrontendParts
from pagewire.v1 import pooling_pb2
from pagewire_openai.endpoints import read_in_turn, request_id_of, usage_of
from pagewire_openai.requests import values
from pagewire_openai.requests.completion import PROMPTS
from pagewire_openai.requests.fields import Field, Table, read_fields
from pagewire_openai.requests.inputs import read_inputs

Json = dict[str, Any]

CLASSIFY: Table = {
    "model": Field(values.text, "model"),
    "input": Field(values.anything, inner=PROMPTS),
    "user": Field(values.anything),
    "add_special_tokens": Field(values.boolean),
    "truncate_prompt_tokens": Field(values.count),
    "priority": Field(values.int32, "priority"),
    "cache_salt": Field(values.text, "cache.salt"),
}


async def classify(parts: FrontendParts, body: Json, call: Call, exchange: Exchange) -> None:
    """POST /classify."""
    names, request = Names(), pooling_pb2.ClassifyRequest()
    _, call = await read_in_turn(partial(_read, body, request, names), parts, call, exchange)
    request.request_id = request_id_of(exchange, names)
    parts.state.require_open()
    with renaming(names):
        found = await parts.classifier.classify(request, call)
    data = [
        {"index": index, "label": _label(found.labels, probs), "probs": probs, "num_classes": len(probs)}
        for index, probs in enumerate(found.values)
    ]
    facts = {
        "id": request.request_id,
        "created": int(time.time()),
        "model": parts.model.answering_name(request.model),
    }
    await exchange.respond(200, {"object": "list", **facts, "data": data, "usage": usage_of(found.usage)})


def _read(body: Json, request: pooling_pb2.ClassifyRequest, names: Names) -> None:
    """Reads the inputs, and what holds for all of them. Raises InvalidRequest."""
    read_fields(body, CLASSIFY, request, names)
    request.inputs.extend(read_inputs(body, names))


def _label(labels: tuple[str, ...], probs: list[float]) -> str:
    return labels[probs.index(max(probs))]
