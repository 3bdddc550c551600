"""Relevance: POST /rerank as in Cohere, Jina, vLLM and TEI, and /score as in vLLM."""

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from frontend.call.call import Call
from frontend.field_names import Names, renaming
from frontend.http.exchange import Exchange
from frontend.parts import FrontendParts
from frontend.streams.scorer import Scored
from pagewire.v1 import pooling_pb2
from pagewire_openai.endpoints import read_in_turn, request_id_of, usage_of
from pagewire_openai.requests.scoring import Rerank, read_rerank, read_score, read_tei_rerank

Json = dict[str, Any]
AT_ONCE = 64
"""Pairs with queries of their own that run at once."""


async def rerank(parts: FrontendParts, body: Json, call: Call, exchange: Exchange) -> None:
    """POST /v1/rerank: Jina's, and Cohere's first version."""
    await _rerank(parts, body, call, exchange, returns_texts=True)


async def rerank_v2(parts: FrontendParts, body: Json, call: Call, exchange: Exchange) -> None:
    """POST /v2/rerank: Cohere's."""
    await _rerank(parts, body, call, exchange, returns_texts=False)


async def rerank_either(parts: FrontendParts, body: Json, call: Call, exchange: Exchange) -> None:
    """POST /rerank: a body of TEI has `texts`, others `documents`."""
    if "texts" not in body:
        await _rerank(parts, body, call, exchange, returns_texts=True)
        return
    names, length = Names(), parts.engine.require_known().model.max_model_len
    read = partial(read_tei_rerank, body, names, length)
    asked, call = await read_in_turn(read, parts, call, exchange)
    asked.request.request_id = request_id_of(exchange, names)
    found = await _score(parts, asked.request, call, names)
    raw = body.get("raw_scores")
    ranks = [
        {"index": each.index, "score": each.raw if raw else each.score}
        | ({"text": asked.texts[each.index]} if asked.returns_texts else {})
        for each in found.documents
    ]
    await exchange.respond(200, ranks)


async def score(parts: FrontendParts, body: Json, call: Call, exchange: Exchange) -> None:
    """POST /v1/score and /score."""
    names = Names()
    request_id = request_id_of(exchange, names)
    requests, call = await read_in_turn(
        partial(read_score, body, names, parts.config.max_request_bytes), parts, call, exchange
    )
    found = await _score_all(parts, requests, request_id, call)
    scores = [
        each.score for one in found for each in sorted(one.documents, key=lambda document: document.index)
    ]
    data = [{"index": index, "object": "score", "score": each} for index, each in enumerate(scores)]
    facts = {"id": request_id, "object": "list", "created": int(time.time())}
    name = parts.model.answering_name(requests[0][0].model)
    usage = usage_of(*(each.usage for each in found))
    await exchange.respond(200, {**facts, "model": name, "data": data, "usage": usage})


async def _rerank(
    parts: FrontendParts, body: Json, call: Call, exchange: Exchange, *, returns_texts: bool
) -> None:
    """returns_texts: unless the body says otherwise."""
    names = Names()
    asked: Rerank
    asked, call = await read_in_turn(partial(read_rerank, body, names), parts, call, exchange)
    asked.request.request_id = request_id_of(exchange, names)
    found = await _score(parts, asked.request, call, names)
    returned = returns_texts if asked.returns_texts is None else asked.returns_texts
    results = [
        {"index": each.index, "relevance_score": each.score}
        | ({"document": {"text": asked.texts[each.index]}} if returned else {})
        for each in found.documents
    ]
    answer = {
        "id": asked.request.request_id,
        "model": parts.model.answering_name(asked.request.model),
        "results": results,
        "usage": usage_of(found.usage),
        "meta": {"tokens": {"input_tokens": found.usage.prompt_tokens}},
    }
    await exchange.respond(200, answer)


async def _score_all(
    parts: FrontendParts,
    requests: Sequence[tuple[pooling_pb2.ScoreRequest, Names]],
    request_id: str,
    call: Call,
) -> list[Scored]:
    """Returns the scores of all requests, which are one to the client. Raises ServiceError with the client's
    names."""
    if len(requests) == 1:
        ((request, names),) = requests
        request.request_id = request_id
        return [await _score(parts, request, call, names)]
    room = asyncio.Semaphore(AT_ONCE)

    async def run(member: str, request: pooling_pb2.ScoreRequest, names: Names) -> Scored:
        request.request_id = member
        async with room:
            return await _score(parts, request, call, names)

    with parts.generator.registry.group(request_id, call.caller, len(requests), call.aborted) as members:
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [
                    tasks.create_task(run(member, *each))
                    for member, each in zip(members, requests, strict=True)
                ]
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
    return [task.result() for task in running]


async def _score(parts: FrontendParts, request: pooling_pb2.ScoreRequest, call: Call, names: Names) -> Scored:
    """Returns the scores, best first. Raises ServiceError with the client's names."""
    parts.state.require_open()
    with renaming(names):
        return await parts.scorer.score(request, call)
