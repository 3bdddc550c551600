"""TokenizerService, which needs no engine."""

from collections.abc import Sequence
from itertools import chain, pairwise

from frontend.parts import FrontendParts
from frontend.prompts.prompt_encoding import TokenizedPrompt
from frontend.rpc.call_context import Context, current_caller, sender
from frontend.rpc.error_mapping import guarded
from frontend.tokenization import detokenized, tokenized
from pagewire.v1 import tokenizer_pb2, tokenizer_pb2_grpc

CHUNK = 1 << 20
"""Bytes per message of GetTokenizer; clients accept 4 MiB by default."""


async def archive_of(parts: FrontendParts) -> tuple[bytes, str]:
    """Returns the archive of the tokenizer's files, and its digest. The first call makes it, in a thread."""
    archive = parts.model.archive
    return await parts.prompts.run(lambda: (archive.data, archive.sha256), current_caller().tenant, CHUNK)


class TokenizerServicer(tokenizer_pb2_grpc.TokenizerServiceServicer):
    """Tokenizes and detokenizes with the model's tokenizer."""

    def __init__(self, parts: FrontendParts) -> None:
        self._parts = parts

    @guarded
    async def Tokenize(
        self, request: tokenizer_pb2.TokenizeRequest, context: Context
    ) -> tokenizer_pb2.TokenizeResponse:
        parts, caller = self._parts, current_caller()
        async with tokenized(parts, request, caller) as read:
            response = await parts.prompts.run(
                lambda: self._answer(request, read), caller.tenant, request.ByteSize()
            )
        if (max_model_len := parts.max_model_len) is not None:
            response.max_model_len = max_model_len
        return response

    @guarded
    async def Detokenize(
        self, request: tokenizer_pb2.DetokenizeRequest, context: Context
    ) -> tokenizer_pb2.DetokenizeResponse:
        texts = await detokenized(self._parts, request, current_caller())
        return tokenizer_pb2.DetokenizeResponse(texts=texts)

    @guarded
    async def GetTokenizer(self, request: tokenizer_pb2.GetTokenizerRequest, context: Context) -> None:
        await self._parts.generator.check_model(request.model, current_caller())
        data, digest = await archive_of(self._parts)
        with self._parts.write_timeouts.writer(sender(context)) as writer:
            for start in range(0, len(data), CHUNK):
                end = start + CHUNK
                await writer.write(
                    tokenizer_pb2.GetTokenizerResponse(
                        data=data[start:end], sha256=digest if end >= len(data) else ""
                    )
                )

    def _answer(
        self, request: tokenizer_pb2.TokenizeRequest, prompts: Sequence[TokenizedPrompt]
    ) -> tokenizer_pb2.TokenizeResponse:
        """Builds the response in a thread: token texts and offsets take time per token."""
        response = tokenizer_pb2.TokenizeResponse()
        for prompt, read in zip(request.prompts, prompts, strict=True):
            result = response.results.add(count=len(read.token_ids))
            if request.rendered_text and prompt.HasField("chat"):
                result.rendered_text = read.text
            if not request.count_only:
                self._fill(result, read, request)
        return response

    def _fill(
        self,
        result: tokenizer_pb2.Tokenization,
        read: TokenizedPrompt,
        request: tokenizer_pb2.TokenizeRequest,
    ) -> None:
        result.token_ids.extend(read.token_ids)
        if request.token_texts:
            result.token_texts.extend(map(self._parts.model.tokenizer.token_bytes, read.token_ids))
        if request.offsets:
            for start, end in byte_offsets(read):
                result.starts.append(start)
                result.ends.append(end)


def byte_offsets(read: TokenizedPrompt) -> list[tuple[int, int]]:
    """Returns offsets into the UTF-8 text. Tokens inside one code point all get that code point's offsets."""
    if read.text.isascii():
        return list(read.offsets)
    places, size = {0: 0}, 0
    for start, end in pairwise(sorted({0, *chain.from_iterable(read.offsets)})):
        size += len(read.text[start:end].encode())
        places[end] = size
    return [(places[start], places[end]) for start, end in read.offsets]
