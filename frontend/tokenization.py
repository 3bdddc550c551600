"""Tokenize and Detokenize, for all transports."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from frontend.auth.caller import Caller
from frontend.parts import FrontendParts
from frontend.prompts.prompt_encoding import TokenizedPrompt, copy_token_ids
from frontend.validation.requests import check_detokenize, check_tokenize
from frontend.validation.rules import Limits
from pagewire.v1 import tokenizer_pb2


@asynccontextmanager
async def tokenized(
    parts: FrontendParts, request: tokenizer_pb2.TokenizeRequest, caller: Caller
) -> AsyncIterator[list[TokenizedPrompt]]:
    """Yields the prompts of a request, whose bytes count as being tokenized within the block. Raises
    ServiceError."""
    await parts.generator.check_model(request.model, caller)
    size = request.ByteSize()
    check = partial(check_tokenize, request, Limits(parts.vocab_size, 1, frozenset(), 1, 1))
    await parts.large_messages.run(check, size, caller)
    read = partial(
        parts.prompts.read, vocab_size=parts.vocab_size, offsets=request.offsets, tenant=caller.tenant
    )
    with parts.limits.reading(size, caller):
        yield [await read(each, f"prompts[{place}]") for place, each in enumerate(request.prompts)]


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
