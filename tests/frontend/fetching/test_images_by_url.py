"""Images by URL, through a service: what was fetched is what counts."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path

import grpc
import pytest

from frontend.errors import ServiceError
from frontend.fetching import fetch as fetch_module
from frontend.fetching.fetch import Fetcher
from frontend.fetching.urls import REFUSED, media_hosts
from frontend.prompts.process import answer_to
from frontend.prompts.process_pool import _service_error
from pagewire.host import spawn
from pagewire.internal.v1 import engine_pb2, reader_pb2
from pagewire.v1 import generation_pb2, model_pb2, tokenizer_pb2
from tests.frontend.fakes import Output, Service, details_of, run_service, say
from tests.frontend.fetching.servers import Pictures, answer, serving
from tests.frontend.media.pictures import file_of, picture
from tests.patience import soon
from tests.vision_models import make_vision_model

SEES = {"engine_options": {"media_kinds": [engine_pb2.MEDIA_KIND_IMAGE]}}
PNG, OTHER = file_of(picture(90, 60)), file_of(picture(60, 90))
MAX_TOKENS = generation_pb2.FINISH_REASON_MAX_TOKENS
HERE = ["127.0.0.1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_vision_model(tmp_path_factory.mktemp("llava"), "llava")


@pytest.fixture
def server() -> Iterator[Pictures]:
    with serving(
        png=answer(PNG), gone=answer(b"", "404 Not Found"), busy=answer(b"", "503 Service Unavailable")
    ) as made:
        yield made


class Here:
    """Fetches in a thread of this process, from loopback."""

    def __init__(self, hosts: tuple[str, ...]) -> None:
        self._fetcher = Fetcher(media_hosts(hosts), lambda host, port: HERE, HERE.__contains__)

    async def ask(self, request: reader_pb2.ReadRequest, *_: object) -> tuple[reader_pb2.ReadResponse, bytes]:
        response, media = await asyncio.to_thread(answer_to, request, None, self._fetcher)
        if response.HasField("error"):
            raise _service_error(response.error)
        return response, media

    async def close(self) -> None:
        pass


@asynccontextmanager
async def serves(folder: Path, server: Pictures, script: object = None) -> AsyncIterator[tuple[Service, str]]:
    """A service, and the URL of its pictures."""
    hosts = (f"http://pictures.test:{server.port}",)
    async with run_service(folder, script, media_hosts=hosts, **SEES) as service:
        service.frontend.parts.prompts._media._processes = Here(hosts)
        yield service, f"http://pictures.test:{server.port}"


def prompt(*uris: str) -> dict[str, object]:
    return {"text": "<image>" * len(uris), "media": [{"uri": uri} for uri in uris]}


async def refused(service: Service, **fields: object) -> tuple[grpc.StatusCode, str, dict[str, str]]:
    """Returns code, reason and violations."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await service.generate(**fields)
    details = details_of(caught.value)
    fields_of = details["BadRequest"].field_violations if "BadRequest" in details else ()
    return (
        caught.value.code(),
        details["ErrorInfo"].reason,
        {each.field: each.description for each in fields_of},
    )


async def test_a_url_is_the_file_behind_it(folder: Path, server: Pictures) -> None:
    async with serves(folder, server, say([5])) as (service, base):
        messages = await service.generate(prompt=prompt(f"{base}/png"))
        given = await service.generate(prompt={"text": "<image>", "media": [{"data": PNG}]})
        by_url, by_data = [await service.engine.requests.get() for _ in range(2)]
        assert list(by_url.media) == list(by_data.media) and by_url.media
        assert list(messages[0].media_digests) == [sha256(PNG).digest()]
        assert not given[0].media_digests and server.num_connections == 1
        parts = [{"media": {"uri": f"{base}/png"}}, {"text": "what?"}]
        chat = {"chat": {"messages": [{"role": "user", "content": parts}]}}
        counted = await service.tokenizer.Tokenize(tokenizer_pb2.TokenizeRequest(prompts=[chat]))
        parts[0] = {"media": {"data": PNG}}
        same = await service.tokenizer.Tokenize(tokenizer_pb2.TokenizeRequest(prompts=[chat]))
        assert counted.results == same.results and server.num_connections == 2
        described = (await service.models.GetModel(model_pb2.GetModelRequest())).model
        assert described.limits.max_fetched_bytes == 16 << 20


async def test_a_refusal_names_the_field(folder: Path, server: Pictures) -> None:
    async with serves(folder, server, say([5])) as (service, base):
        code, reason, found = await refused(service, prompt=prompt(f"{base}/png", f"{base}/gone"))
        assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
        assert found == {"prompt.media[1].uri": "cannot be fetched: its server answers 404"}
        code, reason, found = await refused(service, prompt=prompt(f"{base}/busy"))
        assert (code, reason) == (grpc.StatusCode.UNAVAILABLE, "MEDIA_UNAVAILABLE")
        assert list(found) == ["prompt.media[0].uri"]
        parts = [{"text": "a"}, {"media": {"uri": "https://elsewhere.test/secret"}}]
        chat = {"chat": {"messages": [{"role": "user", "content": parts}]}}
        *_, found = await refused(service, prompt=chat)
        assert found == {"prompt.chat.messages[0].content[1].media.uri": REFUSED}
        *_, found = await refused(service, prompt=prompt("file:///etc/passwd"))
        assert "fetching is not served of file" in found["prompt.media[0].uri"]
    async with run_service(folder, say([5]), **SEES) as service:
        *_, found = await refused(service, prompt=prompt("https://pictures.test/png"))
        assert "fetching is not served (--media-hosts)" in found["prompt.media[0].uri"]


async def test_the_prompts_of_a_request_share_what_is_fetched(
    folder: Path, server: Pictures, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_module, "MAX_FETCHED_BYTES", 2 * len(PNG) - 1)
    async with serves(folder, server) as (service, base):
        prompts = [prompt(f"{base}/png")] * 2
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await service.tokenizer.Tokenize(tokenizer_pb2.TokenizeRequest(prompts=prompts))
        (violation,) = details_of(caught.value)["BadRequest"].field_violations
        assert violation.field == "prompts[1].media[0].uri"
        assert not service.frontend.parts.limits.num_bytes


async def test_a_continuation_needs_the_files_of_its_stream(folder: Path, server: Pictures) -> None:
    async with serves(folder, server, say([5])) as (service, base):
        asked = {"prompt": prompt(f"{base}/png"), "sampling": {"seed": 1}}
        first = (await service.generate(**asked))[0]
        known = {"media_digests": list(first.media_digests)}
        again = await service.generate(**asked, continuation=known)
        assert again[0].media_digests == first.media_digests
        server.answers["/png"] = answer(OTHER)
        code, reason, _ = await refused(service, **asked, continuation=known)
        assert (code, reason) == (grpc.StatusCode.FAILED_PRECONDITION, "MEDIA_CHANGED")
        text = {"prompt": {"text": "hi"}, "sampling": {"seed": 1}}
        code, reason, _ = await refused(service, **text, continuation=known)
        assert (code, reason) == (grpc.StatusCode.FAILED_PRECONDITION, "MEDIA_CHANGED")
        *_, found = await refused(service, **text, continuation={"media_digests": [b"short"]})
        assert list(found) == ["continuation.media_digests"]
        changed = await service.generate(prompt=prompt(f"{base}/png"))
        assert list(changed[0].media_digests) == [sha256(OTHER).digest()]


async def test_a_request_that_is_submitted_again_is_compared_by_content(
    folder: Path, server: Pictures
) -> None:
    async with serves(folder, server) as (service, base):
        asked = {"request_id": "a", "prompt": prompt(f"{base}/png")}
        first = asyncio.create_task(service.generate(**asked))
        handle = (await service.engine.requests.get()).handle
        server.answers["/png"] = answer(OTHER)
        assert (await refused(service, **asked))[1] == "REQUEST_ID_IN_USE"
        await service.engine.output(handle, Output([5], MAX_TOKENS))
        await first


async def test_files_are_not_kept_once_they_are_read(
    folder: Path, server: Pictures, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serves(folder, server) as (service, base):
        generator, specs = service.frontend.parts.generator, []
        prepare = generator._prepare

        async def seen(spec, timings):  # type: ignore[no-untyped-def]
            specs.append(spec)
            assert generator.limits._media.num_held == len(spec.prompt.packed_media) > 0
            return await prepare(spec, timings)

        monkeypatch.setattr(generator, "_prepare", seen)
        call = asyncio.create_task(service.generate(prompt=prompt(f"{base}/png")))
        handle = (await service.engine.requests.get()).handle
        assert specs[0].request.ByteSize() < len(PNG)
        assert not generator.limits.num_bytes
        await service.engine.output(handle, Output([5], MAX_TOKENS))
        await call
        assert not generator.limits._media.num_held


async def test_a_process_of_its_own_fetches(
    folder: Path, server: Pictures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in service; the process alone is told that loopback may be reached."""
    hosts = (f"http://pictures.test:{server.port}",)
    program = (
        "from functools import partial;"
        "from frontend.prompts import process as reader_main;"
        "from pagewire.config import FrontendConfig;"
        "found = ['127.0.0.1'];"
        "reader_main.Fetcher = partial("
        "reader_main.Fetcher, resolve=lambda host, port: found, judge=found.__contains__);"
        f"reader_main.run(FrontendConfig(model={str(folder)!r}, media_hosts={hosts!r}))"
    )
    monkeypatch.setattr(spawn, "command", lambda arguments: [sys.executable, "-c", program])
    async with run_service(folder, say([5]), media_hosts=hosts, **SEES) as service:
        messages = await service.generate(prompt=prompt(f"{hosts[0]}/png"))
        assert list(messages[0].media_digests) == [sha256(PNG).digest()]
        media = service.frontend.parts.prompts._media
        assert media is not None and len(media._processes._idle) == 1
        with pytest.raises(ServiceError, match="answers 404"):
            job = reader_pb2.FetchMedia(uris=[f"{hosts[0]}/gone"], paths=["prompt.media[0].uri"])
            await media._processes.ask(reader_pb2.ReadRequest(media=job), "prompt.media[0].uri")


async def test_another_core_gets_the_same_media_without_a_fetch(folder: Path, server: Pictures) -> None:
    async with serves(folder, server) as (service, base):
        call = asyncio.create_task(service.generate(prompt=prompt(f"{base}/png")))
        first = await soon(service.engine.requests.get())
        await service.engine.stop()
        while service.frontend.state.serves:
            await service.frontend.state.changed()
        service.engine.epoch += 1
        await service.engine.start()
        again = await soon(service.engine.requests.get())
        assert again.again and list(again.media) == list(first.media) and again.media
        await service.engine.output(again.handle, Output([5], MAX_TOKENS))
        await call
        assert server.num_connections == 1
