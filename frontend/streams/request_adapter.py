"""The adapter of one request: what names it, and from where on it adapts the prompt."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from frontend.errors import ContextLengthExceeded, InvalidRequest, ServiceError, Unsupported
from frontend.media.files import media_of
from frontend.prompts.prompt_encoding import TokenizedPrompt
from pagewire.internal.v1.engine_pb2 import AdapterRef, NamedAdapter
from pagewire.v1.generation_pb2 import AppliedAdapter, GenerateRequest
from pagewire.v1.pooling_pb2 import (
    ClassifyRequest,
    EmbedRequest,
    ScoreContinuationsRequest,
    ScoreRequest,
)

Request = GenerateRequest | EmbedRequest | ScoreRequest | ClassifyRequest | ScoreContinuationsRequest


class AdapterName(NamedTuple):
    """What names the adapter of a request."""

    name: str  # empty: nothing does
    field: str  # that has the name
    digest: bytes  # of the adapter that its broken stream had; empty: the name's


def named_by(request: Request, models: Sequence[str]) -> AdapterName:
    """Returns what names a request's adapter: `adapter`, or a `model` that is none of the served models.
    Raises InvalidRequest."""
    model = "" if request.model in models else request.model
    adapter = request.adapter if isinstance(request, GenerateRequest | EmbedRequest | ScoreRequest) else ""
    if model and adapter and model != adapter:
        raise InvalidRequest({"adapter": "must be that of model, or absent, where model names an adapter"})
    digest = request.continuation.adapter_digest if isinstance(request, GenerateRequest) else b""
    if digest and not (adapter or model):
        raise InvalidRequest({"continuation.adapter_digest": "needs the adapter's name, in adapter or model"})
    return AdapterName(adapter or model, "adapter" if adapter else "model", digest)


def name_field(error: ServiceError, field: str) -> None:
    """Changes a core's refusal of a request's adapter to one of the field that names it."""
    if (text := error.violations.get("adapter")) is not None:
        error.message, error.violations = f"{field} {text}", {field: text}


@dataclass(frozen=True, slots=True)
class CallAdapter:
    """An adapter, and where it begins in a prompt. start: None: it is not switched on in it."""

    adapter: NamedAdapter
    start: int | None

    def reference(self) -> AdapterRef | None:
        """Returns what the core is told; None: the base model answers."""
        if self.start is None:
            return None
        adapter = self.adapter
        return AdapterRef(
            name=adapter.name,
            source=adapter.source,
            digest=adapter.digest,
            start=self.start,
            virtual_tokens=adapter.virtual_tokens,
        )

    def shown(self) -> AppliedAdapter:
        """Returns what the client is told."""
        return AppliedAdapter(name=self.adapter.name, digest=self.adapter.digest, start=self.start)


def check_virtual_tokens(request: Request, adapter: NamedAdapter, field: str) -> None:
    """Refuses what an adapter with virtual tokens cannot have, since these have no ids. field: names the
    adapter. Raises InvalidRequest and Unsupported."""
    if not adapter.virtual_tokens:
        return
    if not isinstance(request, GenerateRequest):
        raise Unsupported({field: "is an adapter of virtual tokens (prompt tuning), which only generates"})
    output = request.output
    wanted = {
        "prompt.embeddings": request.prompt.HasField("embeddings"),
        **dict.fromkeys((path for path, _ in media_of(request.prompt, "prompt")), True),
        "output.prompt_token_ids": output.prompt_token_ids,
        "output.prompt_logprobs": output.HasField("prompt_logprobs"),
        "output.echo": output.echo,
    }
    why = "cannot be combined with an adapter of virtual tokens (prompt tuning), which have no ids"
    if paths := [path for path, is_wanted in wanted.items() if is_wanted]:
        raise InvalidRequest(dict.fromkeys(paths, why))


def with_virtual_tokens(
    prompt: TokenizedPrompt, count: int, max_model_len: int, *, prompt_only: bool
) -> TokenizedPrompt:
    """Returns a prompt behind so many virtual tokens. prompt_only: it needs no room for output. Raises
    ContextLengthExceeded."""
    if (length := count + len(prompt.token_ids)) >= max_model_len + prompt_only:
        raise ContextLengthExceeded("prompt", length, max_model_len)
    return replace(prompt, token_ids=array("I", bytes(4 * count)) + prompt.token_ids, num_virtual=count)


def apply(adapter: NamedAdapter, prompt: Sequence[int]) -> CallAdapter:
    """Returns from where on an adapter adapts a prompt: all of it, or, of activated LoRA, from the first
    token of the last invocation on."""
    invocation = list(adapter.invocation_token_ids)
    if not invocation:
        return CallAdapter(adapter, 0)
    return CallAdapter(adapter, _last_place(invocation, prompt))


def _last_place(part: Sequence[int], tokens: Sequence[int]) -> int | None:
    """Returns where `part`, which is not empty, begins for the last time in `tokens`; None: it is not there.
    Knuth, Morris and Pratt's search from the end: it reads each token once."""
    wanted = part[::-1]
    borders, length = [0], 0  # the longest proper prefix of each prefix of `wanted` that is its suffix
    for token in wanted[1:]:
        length = _extended(length, token, wanted, borders)
        borders.append(length)
    length = 0
    for place in range(len(tokens) - 1, -1, -1):
        length = _extended(length, tokens[place], wanted, borders)
        if length == len(wanted):
            return place
    return None


def _extended(length: int, token: int, wanted: Sequence[int], borders: Sequence[int]) -> int:
    """Returns how much of the beginning of `wanted` ends with a token behind so much of it."""
    while length and wanted[length] != token:
        length = borders[length - 1]
    return length + (wanted[length] == token)
