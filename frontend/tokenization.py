"""Tokenize and Detokenize, for all transports."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from frontend.auth.caller import Caller
from frontend.fetching.urls import media_hosts
from frontend.parts import FrontendParts
from frontend.prompts.media_fetcher import lacks_files
from frontend.prompts.prompt_encoding import TokenizedPrompt, copy_token_ids
from frontend.validation.requests import check_detokenize, check_tokenize
from frontend.validation.rules import Limits
from pagewire.v1 import prompt_pb2, tokenizer_pb2


@asynccontextmanager
async def tokenized(
    parts: FrontendParts, request: tokenizer_pb2.TokenizeRequest, caller: Caller
) -> AsyncIterator[list[TokenizedPrompt]]:
    """Yields the prompts of a request, whose bytes count as being tokenized within the block. Raises
    ServiceError."""
    await parts.generator.check_model(request.model, caller)
    size = request.ByteSize()
    hosts = media_hosts(parts.config.media_hosts)
    check = partial(
        check_tokenize, request, Limits(parts.vocab_size, 1, frozenset(), 1, 1, media_hosts=hosts)
    )
    await parts.large_messages.run(check, size, caller)

    if any(map(lacks_files, request.prompts)):
        request, asked = tokenizer_pb2.TokenizeRequest(), request
        request.CopyFrom(asked)
        await parts.prompts.put_files(_named(request), caller.tenant, parts.config.max_request_bytes - size)
        size = request.ByteSize()
    read = partial(
        parts.prompts.read, vocab_size=parts.vocab_size, offsets=request.offsets, tenant=caller.tenant
    )
    with parts.limits.reading(size, caller):
        yield [await read(prompt, path) for path, prompt in _named(request)]


def _named(request: tokenizer_pb2.TokenizeRequest) -> list[tuple[str, prompt_pb2.Prompt]]:
    return [(f"prompts[{place}]", prompt) for place, prompt in enumerate(request.prompts)]


async def detokenized(
    parts: FrontendParts, request: tokenizer_pb2.DetokenizeRequest, caller: Caller
) -> list[str]:
    """Returns the texts of a request's sequences. Raises ServiceError."""
    await parts.generator.check_model(request.model, caller)
    skip = request.skip_special_tokens if request.HasField("skip_special_tokens") else True

    def decode() -> list[str]:
        check_detokenize(request, parts.vocab_size)
        sequences = [copy_token_ids(sequence.ids) for sequence in request.sequences]
        return parts.model.tokenizer.decode(sequences, skip_special_tokens=skip)

    size = request.ByteSize()
    with parts.limits.reading(size, caller):
        return await parts.prompts.run(decode, caller.tenant, size)
