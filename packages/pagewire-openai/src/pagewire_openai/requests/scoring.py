"""Reads bodies that score: Cohere's, Jina's, vLLM's and TEI's to rerank, vLLM's to score pairs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from frontend.errors import InvalidRequest
from frontend.field_names import Names
from frontend.validation.requests import MAX_PROMPTS
from pagewire.v1 import pooling_pb2, prompt_pb2
from pagewire_openai.requests import values
from pagewire_openai.requests.fields import (
    Field,
    Table,
    given,
    list_of,
    object_schema,
    read_fields,
    read_object,
)

_DOCUMENT: Table = {"text": Field(values.text)}
_SIDES = {
    "left": prompt_pb2.TRUNCATION_SIDE_LEFT,
    "right": prompt_pb2.TRUNCATION_SIDE_RIGHT,
}
_SHARED: Table = {
    "model": Field(values.text, "model"),
    "user": Field(values.anything),
    "priority": Field(values.int32, "priority"),
    "cache_salt": Field(values.text, "cache.salt"),
    "instruction": Field(values.text, "instruction"),
}
RERANK: Table = {
    **_SHARED,
    "query": Field(values.text, "query.text"),
    "documents": Field(values.anything, inner=list_of(values.text.schema, object_schema(_DOCUMENT, "text"))),
    "top_n": Field(values.count, "top_n"),
    "return_documents": Field(values.boolean),
    "max_tokens_per_doc": Field(values.count),
}
TEI_RERANK: Table = {
    "query": Field(values.text, "query.text"),
    "texts": Field(values.text_list),
    "truncate": Field(values.boolean),
    "truncation_direction": Field(values.text),
    "raw_scores": Field(values.boolean),
    "return_text": Field(values.boolean),
}
SPELLINGS = (
    ("text_1", "text_2"),
    ("data_1", "data_2"),
    ("queries", "documents"),
    ("queries", "items"),
)
"""Names of the two sides of pairs."""
SCORE: Table = {
    **_SHARED,
    **{name: Field(values.texts) for spelling in SPELLINGS for name in spelling},
    "max_tokens_per_doc": Field(values.count),
}


@dataclass(frozen=True, slots=True)
class Rerank:
    """A request to rerank, and its texts for the answer.

    returns_texts: None: as the path has it.
    """

    request: pooling_pb2.ScoreRequest
    texts: Sequence[str]
    returns_texts: bool | None


def read_rerank(body: Mapping[str, Any], names: Names) -> Rerank:
    """Reads a body of Cohere, Jina or vLLM. Raises InvalidRequest, Unsupported."""
    request = pooling_pb2.ScoreRequest()
    read_fields(body, RERANK, request, names)
    texts = _read_documents(body.get("documents"))
    _require_query(request)
    _put_documents(request, texts, names, "documents")
    _truncate(request, given(body, "max_tokens_per_doc", None), names)
    return Rerank(request, texts, given(body, "return_documents", None))


def read_tei_rerank(body: Mapping[str, Any], names: Names, max_length: int) -> Rerank:
    """Reads a body of TEI. max_length: tokens of a text. Raises InvalidRequest, Unsupported."""
    request = pooling_pb2.ScoreRequest()
    read_fields(body, TEI_RERANK, request, names)
    side = _SIDES.get(given(body, "truncation_direction", "right").lower())
    if side is None:
        raise InvalidRequest({"truncation_direction": "must be left or right"})
    texts = given(body, "texts", [])
    _require_query(request)
    _put_documents(request, texts, names, "texts")
    if given(body, "truncate", False):
        for document in request.documents:
            document.truncate_to, document.truncation_side = max_length, side
    return Rerank(request, texts, given(body, "return_text", False))


def read_score(
    body: Mapping[str, Any], names: Names, max_bytes: int
) -> list[tuple[pooling_pb2.ScoreRequest, Names]]:
    """Reads vLLM's body. Returns one request with all documents of one query, else one for each pair, each
    with the client's names. max_bytes: of all of them. Raises InvalidRequest, Unsupported."""
    shared = pooling_pb2.ScoreRequest()
    read_fields(body, SCORE, shared, names)
    first, second = next((each for each in SPELLINGS if body.get(each[1]) is not None), SPELLINGS[0])
    sides = []
    for name in (first, second):
        content = body.get(name)
        texts = values.texts(content) if content is not None else []
        if not 1 <= len(texts) <= MAX_PROMPTS:
            raise InvalidRequest({name: f"must be a text, or a list of 1 to {MAX_PROMPTS}"})
        sides.append(texts)
    queries, documents = sides
    others = SCORE.keys() - _SHARED.keys() - {first, second, "max_tokens_per_doc"}
    for other in sorted(name for name in others if body.get(name) is not None):
        raise InvalidRequest({other: f"cannot be combined with {second}"})
    if len(queries) not in (1, len(documents)):
        problem = f"must be one text, or as many as {second} has ({len(documents)}), not {len(queries)}"
        raise InvalidRequest({first: problem})
    most, size = given(body, "max_tokens_per_doc", None), len(queries) * shared.ByteSize()
    if len(queries) > 1 and size > max_bytes:
        problem = f"{len(queries)} texts, each with the other fields, are {size} bytes, above {max_bytes}"
        raise InvalidRequest({first: problem})
    requests = []
    for place, query in enumerate(queries):
        request, own = pooling_pb2.ScoreRequest(), names.copy()
        request.CopyFrom(shared)
        request.query.text = query
        own["query.text"] = first if len(queries) == 1 else f"{first}[{place}]"
        texts = documents if len(queries) == 1 else [documents[place]]
        _put_documents(request, texts, own, second)
        if len(queries) > 1:
            for path in ("documents[0]", "documents[0].text"):
                own[path] = f"{second}[{place}]"
        _truncate(request, most, own)
        requests.append((request, own))
    return requests


def _require_query(request: pooling_pb2.ScoreRequest) -> None:
    if not request.query.text:
        raise InvalidRequest({"query": "is required"})


def _read_documents(content: Any) -> list[str]:
    if not isinstance(content, list):
        raise InvalidRequest({"documents": "must be a list of strings, or of objects with text"})
    texts = []
    for place, each in enumerate(content[: MAX_PROMPTS + 1]):
        path = f"documents[{place}]"
        if isinstance(each, dict):
            texts.append(read_object(each, path, _DOCUMENT, ("text",))["text"])
            continue
        try:
            texts.append(values.text(each))
        except ValueError as error:
            raise InvalidRequest({path: str(error)}) from None
    return texts


def _put_documents(request: pooling_pb2.ScoreRequest, texts: Sequence[str], names: Names, name: str) -> None:
    """Sets the documents. name: the client's."""
    request.documents.extend(prompt_pb2.Prompt(text=text) for text in texts)
    names["documents"] = name
    for place in range(len(texts)):
        names[f"documents[{place}].text"] = f"{name}[{place}]"


def _truncate(request: pooling_pb2.ScoreRequest, most: int | None, names: Names) -> None:
    """Keeps the first tokens of each document."""
    for place, document in enumerate(request.documents if most is not None else ()):
        document.truncate_to, document.truncation_side = most or 0, prompt_pb2.TRUNCATION_SIDE_RIGHT
        names[f"documents[{place}].truncate_to"] = "max_tokens_per_doc"
