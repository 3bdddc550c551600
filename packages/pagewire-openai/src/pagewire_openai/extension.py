"""The routes of the OpenAI API, and of Anthropic's Messages."""

from collections.abc import Iterator

from starlette.routing import Route

from frontend.call.call import Call
from frontend.http.endpoint import Endpoint, Handle
from frontend.http.error_body import error_body
from frontend.http.exchange import Exchange
from frontend.inspector import Inspector
from frontend.parts import FrontendParts
from pagewire_openai import adapters, classify, embeddings, endpoints, scoring, tokens
from pagewire_openai.openapi import OF_PORT, Operation, openapi_document
from pagewire_openai.requests.chat import CHAT
from pagewire_openai.requests.completion import COMPLETION
from pagewire_openai.requests.fields import object_schema, one_of
from pagewire_openai.requests.messages import COUNTED, MESSAGES
from pagewire_openai.requests.response import RESPONSE
from pagewire_openai.requests.scoring import RERANK, SCORE, TEI_RERANK
from pagewire_openai.requests.values import Json
from pagewire_openai.responses.messages import message_error


def _post(path: str, summary: str, handle: Handle, body: Json, name: str = "") -> tuple[Operation, Handle]:
    """name: the operation's; empty: the handle's."""
    return Operation("POST", path, name or handle.__name__, summary, body), handle


def _get(path: str, summary: str, handle: Handle) -> tuple[Operation, Handle]:
    return Operation("GET", path, handle.__name__, summary), handle


async def openapi(parts: FrontendParts, body: Json, call: Call, exchange: Exchange) -> None:
    """GET /openapi.json."""
    await exchange.respond(200, openapi_document([*OF_PORT, *(operation for operation, _ in SERVED)]))


RERANKED = object_schema(RERANK, "query", "documents")
SERVED: tuple[tuple[Operation, Handle], ...] = (
    _post(
        "/v1/chat/completions",
        "Continues a conversation",
        endpoints.chat_completions,
        object_schema(CHAT, "messages"),
    ),
    _post(
        "/v1/completions",
        "Continues prompts",
        endpoints.completions,
        object_schema(COMPLETION),
    ),
    _post(
        "/v1/responses",
        "Continues a conversation of items",
        endpoints.responses,
        object_schema(RESPONSE, "input"),
    ),
    _post(
        "/v1/messages",
        "Continues a conversation, in Anthropic's form",
        endpoints.messages,
        object_schema(MESSAGES, "max_tokens", "messages"),
    ),
    _post(
        "/v1/messages/count_tokens",
        "Counts the tokens of a conversation",
        tokens.count_tokens,
        object_schema(COUNTED, "messages"),
    ),
    _post(
        "/v1/embeddings",
        "Embeds inputs",
        embeddings.embeddings,
        object_schema(embeddings.EMBEDDINGS, "input"),
    ),
    _post(
        "/pooling",
        "Embeds the tokens of inputs",
        embeddings.pooling,
        object_schema(embeddings.POOLING, "input"),
    ),
    _post("/v1/rerank", "Orders documents by relevance", scoring.rerank, RERANKED),
    _post("/v2/rerank", "Orders documents, in Cohere's form", scoring.rerank_v2, RERANKED),
    _post(
        "/rerank",
        "Orders documents, also in TEI's form",
        scoring.rerank_either,
        one_of(RERANKED, object_schema(TEI_RERANK, "query", "texts")),
    ),
    _post("/v1/score", "Scores pairs of texts", scoring.score, object_schema(SCORE)),
    _post("/score", "Scores pairs of texts", scoring.score, object_schema(SCORE), "score_pairs"),
    _post("/classify", "Labels inputs", classify.classify, object_schema(classify.CLASSIFY, "input")),
    _post(
        "/tokenize", "Tokenizes a prompt or a conversation", tokens.tokenize, object_schema(tokens.TOKENIZE)
    ),
    _post(
        "/detokenize",
        "Makes text of token ids",
        tokens.detokenize,
        object_schema(tokens.DETOKENIZE, "tokens"),
    ),
    _post(
        "/v1/load_lora_adapter",
        "Loads an adapter",
        adapters.load_lora_adapter,
        object_schema(adapters.LOADED, "lora_name", "lora_path"),
    ),
    _post(
        "/v1/unload_lora_adapter",
        "Unloads an adapter",
        adapters.unload_lora_adapter,
        object_schema(adapters.UNLOADED, "lora_name"),
    ),
    _get("/v1/models", "Lists the served model by all its names, and adapters", endpoints.list_models),
    _get("/v1/models/{name:path}", "Describes the served model or an adapter", endpoints.get_model),
    _get("/version", "The version of pagewire", endpoints.version),
    _get("/openapi.json", "This document", openapi),
)


class OpenAiApi:
    """Serves the OpenAI API on the HTTP port of one frontend; see frontend.http.port.Extension."""

    name = "openai"
    path = "/v1"

    def __init__(self, parts: FrontendParts, inspector: Inspector) -> None:
        """inspector: as every plug-in of the port gets it; nothing of it is served here."""
        self._parts = parts

    def routes(self) -> Iterator[Route]:
        """Yields a route per path. Requests with a body count as calls, others as control calls."""
        limits = self._parts.limits
        for operation, handle in SERVED:
            path = operation.path
            slot = limits.call if operation.body is not None else limits.control
            tell = message_error if path.startswith("/v1/messages") else error_body
            yield Route(path, Endpoint(self._parts, path, handle, slot, tell), methods=[operation.method])

    def start(self) -> None:
        """Does nothing: no task runs between requests."""

    async def stop(self) -> None:
        """Does nothing."""
