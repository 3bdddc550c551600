"""The routes of the OpenAI API, and of Anthropic's Messages."""

from collections.abc import Iterator

from starlette.routing import Route

from frontend.http.endpoint import Endpoint, ErrorBody, Handle, Slot
from frontend.http.error_body import error_body
from frontend.inspector import Inspector
from frontend.parts import FrontendParts
from pagewire_openai import embeddings, endpoints, tokens
from pagewire_openai.responses.messages import message_error


class OpenAiApi:
    """Serves the OpenAI API on the HTTP port of one frontend; see frontend.http.port.Extension."""

    name = "openai"
    path = "/v1"

    def __init__(self, parts: FrontendParts, inspector: Inspector) -> None:
        """inspector: as every plug-in of the port gets it; nothing of it is served here."""
        self._parts = parts

    def routes(self) -> Iterator[Route]:
        """Yields a route per path."""
        call, control = self._parts.limits.call, self._parts.limits.control
        yield self._route("POST", "/v1/chat/completions", endpoints.chat_completions, call)
        yield self._route("POST", "/v1/completions", endpoints.completions, call)
        yield self._route("POST", "/v1/responses", endpoints.responses, call)
        yield self._route("POST", "/v1/messages", endpoints.messages, call, message_error)
        yield self._route("POST", "/v1/messages/count_tokens", tokens.count_tokens, call, message_error)
        yield self._route("POST", "/v1/embeddings", embeddings.embeddings, call)
        yield self._route("POST", "/tokenize", tokens.tokenize, call)
        yield self._route("POST", "/detokenize", tokens.detokenize, call)
        yield self._route("GET", "/v1/models", endpoints.list_models, control)
        yield self._route("GET", "/v1/models/{name:path}", endpoints.get_model, control)
        yield self._route("GET", "/version", endpoints.version, control)

    def start(self) -> None:
        """Does nothing: no task runs between requests."""

    async def stop(self) -> None:
        """Does nothing."""

    def _route(
        self, method: str, path: str, handle: Handle, slot: Slot, tell: ErrorBody = error_body
    ) -> Route:
        return Route(path, Endpoint(self._parts, path, handle, slot, tell), methods=[method])
