"""A frontend with the OpenAI API in this process, its fake engine, and the openai package's client."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from pagewire.ipc.columns import unpack_u32
from tests.frontend.conftest import checkpoint, model
from tests.frontend.fakes import Script, Service, encode, run_service, say, write_checkpoint
from tests.patience import PATIENCE_S, soon

__all__ = ["checkpoint", "model", "run_api", "turns"]


TURNS = (
    "{% for m in messages %}[{{ m['role'] }}|{{ m['reasoning_content'] or '' }}|{{ m['content'] }}"
    "{% for c in m['tool_calls'] or [] %}|{{ c['id'] }}:{{ c['function']['name'] }}"
    "{{ c['function']['arguments'] | tojson }}{% endfor %}|{{ m['tool_call_id'] or '' }}]{% endfor %}"
    "{{ reasoning_effort }}{% if enable_thinking is false %}off{% endif %}{# <think></think> <tool_call>"
    "{'name', 'arguments'}</tool_call> #}{% if tools %}{% endif %}"
)
"""Shows what it was given."""


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

    async def prompt_of(self, place: int) -> str:
        """Returns the text of the prompt of the request at a place, counted from 1."""
        for _ in range(place):
            sent = await soon(self.service.engine.requests.get())
        answer = await self.post("/detokenize", tokens=unpack_u32(sent.prompt_token_ids))
        text: str = answer.json()["prompt"]
        return text.removeprefix("<|begin|>")


@pytest.fixture(scope="session")
def turns(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose prompts show what its template was given."""
    return write_checkpoint(tmp_path_factory.mktemp("turns"), chat_template_jinja=TURNS)


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
                httpx2.AsyncClient(base_url=url.removesuffix("/v1"), timeout=PATIENCE_S) as http,
            ):
                yield Api(service, url, client, http)

    return run
