"""POST /v1/embeddings, with the openai package's client."""

import base64
import shutil
import struct

import openai
import pytest

from pagewire.internal.v1.engine_pb2 import POOLING_TYPE_ALL, POOLING_TYPE_LAST, POOLING_TYPE_MEAN, Pooling
from pagewire.ipc.columns import unpack_f32, unpack_u32
from tests.frontend.fakes import BEGIN, MAX_MODEL_LEN, encode, fake_vector, pool

LAST = Pooling(type=POOLING_TYPE_LAST, normalize=True)
HI = [BEGIN, *encode("x")]


async def test_texts_and_token_ids(run_api):
    """The package asks for base64 unless told otherwise."""
    async with run_api(pool, pooling_type="last") as api:
        create = api.openai.embeddings.create
        for given, expected in (
            ("x", [HI]),
            (["x", "yé"], [HI, [BEGIN, *encode("yé")]]),
            ([7, 8, 9], [[7, 8, 9]]),
            ([[7, 8], [9]], [[7, 8], [9]]),
        ):
            answer = await create(model="fake", input=given)
            assert [each.embedding for each in answer.data] == [fake_vector(ids, LAST) for ids in expected]
            assert [each.index for each in answer.data] == list(range(len(expected)))
            assert answer.model == "fake" and answer.object == "list"
            total = sum(map(len, expected))
            assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (total, total)
        floats = await create(model="fake", input="x", encoding_format="float", dimensions=3)
        assert floats.data[0].embedding == fake_vector(HI, Pooling(type=1, normalize=True, dimensions=3))


async def test_fields_beyond_the_original(run_api):
    async with run_api(pool, pooling_type="mean") as api:
        extra = {
            "normalize": False,
            "add_special_tokens": False,
            "truncate_prompt_tokens": 2,
            "cache_salt": "s",
        }
        answer = await api.post("/v1/embeddings", input="abc", encoding_format="base64", **extra)
        column = base64.b64decode(answer.json()["data"][0]["embedding"])
        assert unpack_f32(column) == fake_vector(encode("bc"), Pooling(type=POOLING_TYPE_MEAN))
        sent = api.service.engine.requests.get_nowait()
        assert sent.cache_salt == "s" and unpack_u32(sent.prompt_token_ids) == encode("bc")


async def test_elements_of_other_types(run_api):
    async with run_api(pool, pooling_type="last") as api:
        expected = fake_vector(HI, LAST)
        for dtype, code in (("float32", "f"), ("float16", "e")):
            body = {"input": "x", "encoding_format": "base64", "embed_dtype": dtype, "endianness": "little"}
            answer = await api.post("/v1/embeddings", **body)
            data = base64.b64decode(answer.json()["data"][0]["embedding"])
            assert list(struct.unpack(f"<8{code}", data)) == expected, "exact in both"
        answer = await api.post("/v1/embeddings", **body | {"embed_dtype": "bfloat16"})
        data = base64.b64decode(answer.json()["data"][0]["embedding"])
        words = (word << 16 for word in struct.unpack("<8H", data))
        assert struct.unpack("<8f", struct.pack("<8I", *words))[1:4] == tuple(expected[1:4])


async def test_packed_signs_as_numbers_and_in_base64(run_api):
    async with run_api(pool, pooling_type="last") as api:
        bits = int("".join(str(int(value > 0)) for value in fake_vector(HI, LAST)), 2)
        for dtype, number in (("ubinary", bits), ("binary", bits - 128)):
            answer = await api.post("/v1/embeddings", input="x", embed_dtype=dtype)
            assert answer.json()["data"][0]["embedding"] == [number]
            answer = await api.post("/v1/embeddings", input="x", embed_dtype=dtype, encoding_format="base64")
            assert base64.b64decode(answer.json()["data"][0]["embedding"]) == bytes([number & 0xFF])


async def test_vectors_of_tokens(run_api):
    """POST /pooling, as in vLLM; /v1/embeddings has no field for them."""
    pooling = Pooling(type=POOLING_TYPE_ALL, normalize=True, dimensions=2)
    values = fake_vector(HI, pooling)
    async with run_api(pool, pooling_type="last") as api:
        body = {"input": ["x", "yé"], "task": "token_embed", "dimensions": 2, "model": "fake"}
        answer = (await api.post("/pooling", **body)).json()
        assert answer["id"] and answer["created"] and (answer["object"], answer["model"]) == ("list", "fake")
        first, second = answer["data"]
        assert first == {"index": 0, "object": "pooling", "data": [values[:2], values[2:4]][: len(HI)]}
        assert len(second["data"]) == len([BEGIN, *encode("yé")])
        assert answer["usage"]["prompt_tokens"] == len(HI) + len(second["data"])
        answer = (await api.post("/pooling", input="x", dimensions=2, encoding_format="base64")).json()
        assert unpack_f32(base64.b64decode(answer["data"][0]["data"])) == values
        for path, field in (("/v1/embeddings", {"task": "token_embed"}), ("/pooling", {"task": "embed"})):
            refused = await api.post(path, input="x", **field)
            assert refused.status_code == 400 and refused.json()["error"]["param"] == "task"


async def test_prompts_and_cuts_of_the_checkpoint(run_api, checkpoint, tmp_path):
    folder = shutil.copytree(checkpoint, tmp_path / "sentences")
    (folder / "config_sentence_transformers.json").write_text('{"prompts": {"query": "find "}}')
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 8}')
    async with run_api(pool, pooling_type="last", model_path=folder) as api:
        answer = await api.post("/v1/embeddings", input=["z", "z" * 7], prompt_name="query")
        whole, cut = answer.json()["data"]
        assert cut["truncated_tokens"] == 5 and "truncated_tokens" not in whole
        wrong = await api.post("/v1/embeddings", input="a", prompt_name="x")
        assert wrong.json()["error"]["param"] == "prompt_name" and "query" in wrong.text


WRONG = [
    ({}, "input"),
    ({"input": ""}, "input"),
    ({"input": ["a", ""]}, "input[1]"),
    ({"input": ["a", 5]}, "input[1]"),
    ({"input": []}, "input"),
    ({"input": ["a"] * 1025}, "input"),
    ({"input": [[7], [9999]]}, "input[1]"),
    ({"input": "a" * 300}, "input"),
    ({"input": "a", "dimensions": 9}, "dimensions"),
    ({"input": "a", "dimensions": 0}, "dimensions"),
    ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
    ({"input": "a", "embed_dtype": "float16"}, "embed_dtype"),
    ({"input": "a", "embed_dtype": "int8", "encoding_format": "base64"}, "embed_dtype"),
    ({"input": "a", "endianness": "big", "encoding_format": "base64"}, "endianness"),
    ({"input": "a", "priority": 5000}, "priority"),
    ({"input": "a", "cache_salt": "s" * 300}, "cache_salt"),
    ({"input": "a", "temperature": 1}, "temperature"),
]


async def test_what_is_refused_by_name(run_api):
    async with run_api(pool, pooling_type="last") as api:
        for body, param in WRONG:
            answer = await api.post("/v1/embeddings", model="fake", **body)
            error = answer.json()["error"]
            assert answer.status_code == 400 and error["param"] == param, (body, error)
        with pytest.raises(openai.NotFoundError):
            await api.openai.embeddings.create(model="other", input="hi")
        assert api.service.engine.requests.empty()


async def test_an_input_that_is_too_long_has_no_output_to_leave_room_for(run_api):
    async with run_api(pool, pooling_type="last") as api:
        for count, status in ((MAX_MODEL_LEN, 200), (MAX_MODEL_LEN + 1, 400)):
            answer = await api.post("/v1/embeddings", input=[7] * count)
            assert answer.status_code == status
        assert answer.json()["error"]["message"] == "input: 201 tokens exceed the context of 200"


async def test_a_model_that_does_not_embed(run_api):
    async with run_api() as api:
        with pytest.raises(openai.BadRequestError) as refused:
            await api.openai.embeddings.create(model="fake", input="hi")
        assert refused.value.param == "model" and refused.value.code == "unsupported_parameter"
        assert "--pooling-type" in refused.value.message
