"""Sounds in messages: `input_audio`, and the official client."""

import base64
from pathlib import Path

import pytest

from pagewire.internal.v1 import engine_pb2
from tests.audio_models import make_audio_model
from tests.frontend.audio.sounds import sound, wav
from tests.frontend.fakes import say
from tests.patience import soon

DATA = base64.b64encode(wav(sound(0.5))).decode()
HEARS = {"engine_options": {"media_kinds": [engine_pb2.MEDIA_KIND_AUDIO]}, "script": say([70])}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_audio_model(tmp_path_factory.mktemp("qwen2_audio"), "qwen2_audio")


async def test_a_part_is_a_sound(run_api, folder: Path) -> None:
    async with run_api(model_path=folder, **HEARS) as api:

        async def post(given: dict[str, object]):
            parts = [{"type": "input_audio", "input_audio": given}, {"type": "text", "text": "?"}]
            return await api.post(
                "/v1/chat/completions", model="fake", messages=[{"role": "user", "content": parts}]
            )

        answer = await post({"data": DATA, "format": "wav"})
        assert answer.status_code == 200, answer.text
        [item] = (await soon(api.service.engine.requests.get())).media
        assert item.kind == engine_pb2.MEDIA_KIND_AUDIO
        assert answer.json()["usage"]["prompt_tokens_details"]["audio_tokens"] == 12
        for data in ("", "?", base64.b64encode(b"ID3" + bytes(20)).decode()):
            answer = await post({"data": data, "format": "mp3"})
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == "messages[0].content[0].input_audio.data"
        assert "is MP3" in answer.json()["error"]["message"]
        url = {"url": f"data:audio/wav;base64,{DATA}"}
        parts = [{"type": "audio_url", "audio_url": url}, {"type": "text", "text": "?"}]
        answer = await api.post(
            "/v1/chat/completions", model="fake", messages=[{"role": "user", "content": parts}]
        )
        assert answer.status_code == 200, answer.text
        [other] = (await soon(api.service.engine.requests.get())).media
        assert other.digest == item.digest
        answer = await post({"format": "wav"})
        assert answer.status_code == 400 and "input_audio.data" in answer.text
