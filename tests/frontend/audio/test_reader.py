"""Sounds in prompts: from requests of every kind to what the core is sent."""

import json
import shutil
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from frontend.audio import checkpoint, reader
from frontend.audio.resample import resampled
from frontend.errors import InvalidRequest, Unsupported
from frontend.model.info import load_model
from frontend.prompts.prompt_encoding import PromptEncoder, TokenizedPrompt
from pagewire.config import FrontendConfig
from pagewire.internal.v1 import engine_pb2
from pagewire.ipc.columns import unpack_u32
from pagewire.v1 import model_pb2, prompt_pb2
from tests.audio_models import BINS, make_audio_model
from tests.frontend.audio.sounds import RATE, chunk, form, riff, sound, wav
from tests.frontend.fakes import details_of, run_service, say

CLIP, OTHER = wav(sound(0.5)), wav(sound(1, 1))
VECTORS, MORE = 12, 25
"""Of these clips, in the tiny Qwen2-Audio."""
HEARS = {"engine_options": {"media_kinds": [engine_pb2.MEDIA_KIND_AUDIO]}}
QWEN, VOXTRAL = "<|AUDIO|>", "[AUDIO]"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    families = "qwen2_audio", "voxtral"
    return {family: make_audio_model(tmp_path_factory.mktemp(family), family) for family in families}


def encoder_of(folder: Path) -> PromptEncoder:
    model = load_model(FrontendConfig(model=str(folder)))
    return PromptEncoder(model.tokenizer, model.chat_template, model.answers, None, model.media)


def read(encoder: PromptEncoder, **fields: object) -> TokenizedPrompt:
    return encoder.read(prompt_pb2.Prompt(**fields), "prompt", vocab_size=400, max_model_len=1024)


def test_text_and_chat_have_the_same_sounds(folders: dict[str, Path]):
    encoder = encoder_of(folders["qwen2_audio"])
    text = read(encoder, text=f"a{QWEN}b{QWEN}", media=[{"data": CLIP}, {"data": OTHER}])
    assert text.num_media_tokens == VECTORS + MORE == len(text.token_ids) - 2
    first, second = text.media
    assert unpack_u32(first.positions) == list(range(1, 1 + VECTORS))
    assert list(first.shape) == [51, BINS] and list(second.shape) == [100, BINS]
    assert len(first.data) == 4 * 51 * BINS and first.kind == engine_pb2.MEDIA_KIND_AUDIO
    parts = [
        {"text": f"what is {QWEN}?"},
        {"media": {"data": CLIP}},
        {"text": "b"},
        {"media": {"data": OTHER}},
    ]
    chat = read(encoder, chat={"messages": [{"role": "user", "content": parts}]})
    assert [item.digest for item in chat.media] == [first.digest, second.digest]
    assert chat.num_media_tokens == VECTORS + MORE
    assert f"?<|audio_bos|>{QWEN}<|audio_eos|>b<|audio_bos|>{QWEN}<|audio_eos|>" in chat.text


def test_a_long_sound_is_several_items_where_the_model_hears_parts(folders: dict[str, Path]):
    encoder = encoder_of(folders["voxtral"])
    found = read(encoder, text=f"[BEGIN_AUDIO]{VOXTRAL}b", media=[{"data": wav(sound(2.5))}])
    assert [list(item.shape) for item in found.media] == [[100, BINS]] * 3
    places = [unpack_u32(item.positions) for item in found.media]
    assert places == [list(range(1 + 10 * part, 11 + 10 * part)) for part in range(3)]
    assert found.num_media_tokens == 30


@pytest.mark.parametrize(
    ("template", "written"),
    [
        (
            "{% for part in message['content'] %}{% if 'audio' in part %}<|AUDIO|>{% else %}{{ part.text }}"
            "{% endif %}{% endfor %}",
            f"a{QWEN}b",
        ),
        ("{{ message['content'] }}", f"{QWEN}\nab"),
    ],
)
def test_templates_that_look_for_a_field_and_those_of_text_alone(
    template: str, written: str, folders: dict[str, Path], tmp_path: Path
):
    folder = tmp_path / "model"
    shutil.copytree(folders["qwen2_audio"], folder)
    source = "{% for message in messages %}" + template + "{% endfor %}"
    (folder / "chat_template.jinja").write_text(source)
    parts = [{"text": "a"}, {"media": {"data": CLIP}}, {"text": "b"}]
    found = read(encoder_of(folder), chat={"messages": [{"role": "user", "content": parts}]})
    assert found.text == written and found.num_media_tokens == VECTORS


def test_equal_clips_have_one_digest_whatever_is_beside_them(folders: dict[str, Path]):
    encoder = encoder_of(folders["qwen2_audio"])
    stereo = wav(np.stack((sound(0.5), sound(0.5)), 1))
    found = read(encoder, text=QWEN * 3, media=[{"data": CLIP}, {"data": OTHER}, {"data": stereo}])
    assert found.media[0].digest == found.media[2].digest != found.media[1].digest


def test_other_rates_are_resampled(folders: dict[str, Path]):
    encoder, samples = encoder_of(folders["qwen2_audio"]), sound(0.5, rate=48000)
    found = read(encoder, text=QWEN, media=[{"data": wav(samples, 48000)}])
    [item] = encoder._images.reader._family.hear(resampled(samples, 48000, RATE)).items  # type: ignore
    assert found.media[0].data == item.tobytes()
    assert found.num_media_tokens == VECTORS


REFUSED = {
    "an odd rate": (wav(sound(0.5), 16001), "has 16001 samples a second, a rate of which 16000 are not made"),
    "no rate": (wav(sound(0.5), 0), "has 0 samples a second"),
    "a high rate": (wav(sound(0.5), 384000), "has 384000 samples a second"),
    "too long": (wav(sound(1.01)), "has 1.01 s, and the model hears 1 s at once"),
    "too short": (wav(sound(0.02)), "has 0.0200 s, too few to hear"),
    "not finite": (
        riff(form(3, bits=32), chunk(b"data", np.full(1600, np.nan, "<f4").tobytes())),
        "not finite, or far from -1 to 1",
    ),
    "far too loud": (riff(form(3, bits=64), chunk(b"data", np.full(1600, 1e300).tobytes())), "not finite"),
    "MP3": (b"ID3\4" + bytes(64), "is MP3, which is not decoded here: send WAV, FLAC"),
    "damaged": (CLIP[:-2], "damaged"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_model_cannot_hear_is_refused_by_its_path(name: str, folders: dict[str, Path]):
    data, problem = REFUSED[name]
    with pytest.raises(InvalidRequest, match=problem) as caught:
        read(encoder_of(folders["qwen2_audio"]), text=QWEN * 2, media=[{"data": CLIP}, {"data": data}])
    assert list(caught.value.violations) == ["prompt.media[1]"]


def test_seconds_are_limited_over_all_sounds(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch):
    encoder, fields = encoder_of(folders["voxtral"]), {"text": VOXTRAL * 2, "media": [{"data": OTHER}] * 2}
    monkeypatch.setattr(reader, "MAX_MEDIA_SECONDS", 2)
    assert read(encoder, **fields).num_media_tokens == 20
    monkeypatch.setattr(reader, "MAX_MEDIA_SECONDS", 1)
    with pytest.raises(InvalidRequest, match="sounds may have 1 s in all") as caught:
        read(encoder, **fields)
    assert list(caught.value.violations) == ["prompt.media[1]"]


@pytest.mark.parametrize(
    ("changes", "caveat"),
    [
        ({"feature_extractor_type": "Other"}, "feature_extractor_type is not WhisperFeatureExtractor"),
        ({"feature_size": 80}, "makes other spectrograms than the encoder takes"),
        ({"chunk_length": 30}, "makes other spectrograms than the encoder takes"),
        ({"dither": 0.1}, "dither is not 0"),
        ({"do_normalize": True}, "do_normalize is true"),
        ({"hop_length": 500}, "do not fit together"),
        ({"n_fft": "400"}, "n_fft must be a positive integer"),
        (None, "there is no preprocessor_config.json"),
    ],
)
def test_a_checkpoint_whose_sounds_are_not_known_is_served_text_alone(
    changes: dict[str, Any] | None, caveat: str, folders: dict[str, Path], tmp_path: Path
):
    folder = tmp_path / "model"
    shutil.copytree(folders["qwen2_audio"], folder)
    stated = folder / "preprocessor_config.json"
    if changes is None:
        stated.unlink()
    else:
        stated.write_text(json.dumps(json.loads(stated.read_text()) | changes))
    encoder = encoder_of(folder)
    assert read(encoder, text="hi").token_ids
    with pytest.raises(Unsupported, match=caveat):
        read(encoder, text=QWEN, media=[{"data": CLIP}])


def test_without_numpy_the_model_is_served_text_alone(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(checkpoint.importlib.util, "find_spec", lambda name: None)
    model = load_model(FrontendConfig(model=str(folders["qwen2_audio"])))
    assert model.audio.reader is None and "pip install 'pagewire[audio]'" in model.audio.caveat


async def test_a_service_sends_sounds_and_refuses_hostile_ones(folders: dict[str, Path]):
    """The core gets a spectrogram; files are refused by their fields, and the service goes on."""
    prompt = {"chat": {"messages": [{"role": "user", "content": [{"media": {"data": CLIP}}, {"text": "?"}]}]}}
    async with run_service(folders["qwen2_audio"], say([5]), **HEARS) as service:
        messages = await service.generate(prompt=prompt)
        request = await service.engine.requests.get()
        [item] = request.media
        assert list(item.shape) == [51, BINS] and len(unpack_u32(item.positions)) == VECTORS
        usage = messages[-1].usage
        assert usage.audio_tokens == VECTORS < usage.prompt_tokens and not usage.image_tokens
        described = (await service.models.GetModel(model_pb2.GetModelRequest())).model
        assert model_pb2.CAPABILITY_AUDIO in described.capabilities and not described.audio_caveat
        assert described.limits.max_media_seconds == 1200
        assert model_pb2.CAPABILITY_IMAGES not in described.capabilities
        for name, (data, problem) in REFUSED.items():
            with pytest.raises(grpc.aio.AioRpcError, match=problem) as caught:
                await service.generate(prompt={"text": QWEN, "media": [{"data": data}]})
            [violation] = details_of(caught.value)["BadRequest"].field_violations
            assert violation.field == "prompt.media[0]", name
        assert (await service.generate(prompt={"text": "hi"}))[-1].usage.prompt_tokens
