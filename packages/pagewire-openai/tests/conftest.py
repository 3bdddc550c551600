"""A frontend with the OpenAI API in this process, its fake engine, and the openai package's client."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from tests.frontend.conftest import checkpoint, model
from tests.frontend.fakes import Script, Service, encode, run_service, say

__all__ = ["checkpoint", "model", "run_api"]


@dataclass
class Api:
    """The running API. http: sends raw requests."""

    service: Service
    base_url: str
    openai: openai.AsyncOpenAI
    http: httpx2.AsyncClient

    async def post(self, path: str, **body: Any) -> httpx2.Response:
        """Sends a JSON body."""
        return await self.http.post(path, json=body)


RunApi = Callable[..., AbstractAsyncContextManager[Api]]


@pytest.fixture
def run_api(checkpoint: Path) -> RunApi:
    """Runs the API; keyword arguments are flags of the frontend."""

    @asynccontextmanager
    async def run(
        script: Script | None = None, key: str = "none", model_path: Path = checkpoint, **flags: Any
    ) -> AsyncIterator[Api]:
        script = script or say(encode("he"), encode("llo"))
        async with run_service(model_path, script, openai_port=0, **flags) as service:
            url = service.frontend.facts["openai"]
            async with (
                openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0) as client,
                httpx2.AsyncClient(base_url=url.removesuffix("/v1"), timeout=60) as http,
            ):
                yield Api(service, url, client, http)

    return run
