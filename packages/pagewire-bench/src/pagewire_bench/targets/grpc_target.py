"""Our own API, over gRPC."""

from typing import Self

from pagewire_bench.prompts import BenchRequest
from pagewire_bench.targets.target import OnTokens, OutputOptions, RequestFailed, ServedModel, TokenCounts
from pagewire_client.aio import AsyncClient
from pagewire_client.errors import PermissionDenied, RpcError
from pagewire_client.params import PromptLike, SamplingParams


class GrpcTarget:
    """Sends requests as every client does, one stream for each, over one connection."""

    def __init__(self, client: AsyncClient, options: OutputOptions) -> None:
        """client: is closed with this object."""
        self._client = client
        self._options = options

    async def open(self) -> ServedModel:
        """Returns the served model. Raises RpcError."""
        model = await self._client.model()
        return ServedModel(model.name, await self._server(), model.vocab_size, model.max_model_len)

    async def send(self, request: BenchRequest, on_tokens: OnTokens) -> TokenCounts:
        """Streams one answer. Raises RequestFailed, by the name of the status."""
        params = SamplingParams(
            temperature=self._options.temperature,
            max_tokens=request.max_tokens,
            ignore_eos=self._options.ignore_eos or None,
        )
        prompt: PromptLike = request.prompt
        try:
            async with self._client.stream(prompt, params) as stream:
                async for delta in stream:
                    if delta.token_ids:
                        on_tokens(len(delta.token_ids))
        except RpcError as error:
            kind = f"{error.code.name} {error.reason}".strip()
            raise RequestFailed(kind, error.message) from error
        return TokenCounts(stream.generation.usage.prompt_tokens)

    async def _server(self) -> str:
        """Returns name and version, or the name alone where only administrators may ask for the version."""
        try:
            return f"pagewire {(await self._client.server_info()).version}"
        except PermissionDenied:
            return "pagewire"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()
