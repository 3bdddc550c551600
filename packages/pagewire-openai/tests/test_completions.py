"""/v1/completions, /tokenize, /detokenize and /v1/models."""

import json
import struct
from base64 import b64decode, b64encode

import openai
import pytest

from pagewire.v1 import generation_pb2
from pagewire_openai.responses.logprobs import CompletionLogprobs, Scored
from tests.frontend.fakes import Output, encode, say


async def test_a_completion_has_the_default_length_of_the_api(run_api):
    async with run_api() as api:
        answer = await api.openai.completions.create(model="fake", prompt="hi")
        assert answer.object == "text_completion" and answer.choices[0].text == "hello"
        sent = api.service.engine.requests.get_nowait()
        assert sent.stopping.max_tokens == 16


@pytest.mark.parametrize("stream", [False, True])
async def test_several_prompts_and_sequences(run_api, stream):
    def script(request):
        text = "a" if len(request.prompt_token_ids) == 4 * 2 else "b"
        return say(encode(text))(request)

    async with run_api(script) as api:
        answer = await api.openai.completions.create(
            model="fake",
            prompt=["x", "xyz"],
            stream=stream,
            **({"stream_options": {"include_usage": True}} if stream else {}),
        )
        texts, usage = {}, None
        for part in [each async for each in answer] if stream else [answer]:
            usage = part.usage or usage
            for choice in part.choices:
                texts[choice.index] = texts.get(choice.index, "") + choice.text
        assert texts == {0: "a", 1: "b"}
        assert (usage.prompt_tokens, usage.completion_tokens) == (2 + 4, 2)


async def test_token_ids_as_prompts(run_api):
    async with run_api() as api:
        for prompt in ([7, 8, 9], [[7, 8, 9]]):
            await api.openai.completions.create(model="fake", prompt=prompt)
            sent = api.service.engine.requests.get_nowait()
            assert len(sent.prompt_token_ids) == 4 * 3


async def test_logprobs_with_echo_begin_with_the_prompt(run_api):
    async with run_api() as api:
        answer = await api.openai.completions.create(model="fake", prompt="hi", logprobs=2, echo=True)
        choice = answer.choices[0]
        assert choice.text == "hihello"
        lists = choice.logprobs
        assert lists.token_logprobs[0] is None and None not in lists.token_logprobs[1:]
        assert lists.top_logprobs[0] is None and len(lists.top_logprobs[-1]) >= 2
        size = {len(each) for each in (lists.tokens, lists.token_logprobs, lists.text_offset)}
        assert len(size) == 1
        offsets = lists.text_offset
        assert offsets[0] == 0 and offsets == sorted(offsets)


async def test_the_prompt_alone_is_scored(run_api):
    """As lm-evaluation-harness asks for it."""
    async with run_api(say(encode("h"))) as api:
        answer = await api.openai.completions.create(
            model="fake", prompt="hi", logprobs=1, echo=True, max_tokens=0
        )
        sent = api.service.engine.requests.get_nowait()
    assert (sent.prompt_only, sent.stopping.max_tokens, sent.HasField("logprobs")) == (True, 1, False)
    (choice,) = answer.choices
    assert (choice.text, choice.finish_reason) == ("hi", "length")
    assert len(choice.logprobs.tokens) == answer.usage.prompt_tokens
    assert answer.usage.completion_tokens == 0


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": [["x"]]}, "prompt"),
        ({"prompt": [512]}, "prompt"),
        ({"prompt": ["x"] * 129}, "prompt"),
        ({"prompt": "x", "suffix": "y"}, "suffix"),
        ({"prompt": "x", "logprobs": 21}, "logprobs"),
        ({"prompt": "x", "best_of": 2, "stream": True}, "best_of"),
        ({"prompt": "x", "n": 3, "best_of": 2}, "best_of"),
    ],
)
async def test_a_field_that_is_wrong_is_named(run_api, fields, param):
    async with run_api() as api:
        with pytest.raises(openai.BadRequestError) as refused:
            await api.openai.completions.create(model="fake", **fields)
        assert refused.value.param.startswith(param), refused.value.body


async def test_models(run_api):
    async with run_api() as api:
        (card,) = (await api.openai.models.list()).data
        assert card.id == "fake" and card.max_model_len == 200
        assert (await api.openai.models.retrieve("fake")).id == "fake"
        with pytest.raises(openai.NotFoundError):
            await api.openai.models.retrieve("other")


async def test_every_served_name_is_a_model(run_api):
    async with run_api(served_model_name=("one", "two")) as api:
        assert [card.id for card in (await api.openai.models.list()).data] == ["one", "two"]
        assert (await api.openai.models.retrieve("two")).id == "two"
        assert (await api.openai.completions.create(model="two", prompt="x")).model == "one"


async def test_tokenize_and_detokenize(run_api):
    async with run_api() as api:
        answer = (await api.post("/tokenize", prompt="hi", return_token_strs=True)).json()
        assert answer["count"] == len(answer["tokens"]) and answer["max_model_len"] == 200
        assert answer["token_strs"][-1] == "hi"
        back = (await api.post("/detokenize", tokens=answer["tokens"])).json()
        assert back["prompt"].endswith("hi")
        chat = (await api.post("/tokenize", messages=[{"role": "user", "content": "hi"}])).json()
        assert chat["tokens"][-1] == 4, "the assistant's header"
        assert (await api.post("/detokenize", tokens=[512])).json()["error"]["param"] == "tokens"
        assert (await api.post("/tokenize", prompt="x", messages=[])).status_code == 400
        again = await api.post("/tokenize", prompt=None, messages=[{"role": "user", "content": "hi"}])
        assert again.json() == chat
        refused = (await api.post("/tokenize", prompt="x", add_generation_prompt=True)).json()["error"]
        assert refused["param"] == "add_generation_prompt"
        missing, wrong = await api.http.get("/v1/nothing"), await api.http.get("/v1/completions")
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")


async def test_many_prompts_do_not_multiply_a_body(run_api):
    async with run_api(max_request_bytes=1 << 14) as api:
        body = {"prompt": ["hi"] * 128, "allowed_token_ids": list(range(500))}
        error = (await api.post("/v1/completions", **body)).json()["error"]
        assert error["param"] == "prompt" and "above 16384" in error["message"], error
        body["prompt"] = ["hi"] * 2
        assert (await api.post("/v1/completions", **body)).status_code == 200


def test_candidates_that_are_parts_of_code_points_do_not_collide() -> None:
    candidates = [(b"\xe4", -1.0), (b"\xb8", -2.0), (b"\xf0", -3.0)]
    lists = CompletionLogprobs().put(iter([Scored(b"\xe4", -1.0, candidates)]))
    assert lists["top_logprobs"] == [{"bytes:\\xe4": -1.0, "bytes:\\xb8": -2.0, "bytes:\\xf0": -3.0}]
    assert lists["tokens"] == ["bytes:\\xe4"]


def test_offsets_point_into_the_text() -> None:
    """Past tokens that it leaves out, the space of SentencePiece's first word, and parts of code points."""
    tokens = [b"<s>", b" Hi", "你".encode()[:2], "你".encode()[2:], b"<s>", b" x"]
    scored = iter([Scored(token, -1.0, []) for token in tokens])
    lists = CompletionLogprobs({b"<s>"}).put(scored, "Hi你 x")
    assert lists["text_offset"] == [0, 0, 2, 2, 3, 3]
    more = CompletionLogprobs().put(iter([Scored(b" a", -1.0, []), Scored(b"b", -1.0, [])]), " ab")
    assert more["text_offset"] == [0, 2]


async def test_best_of_that_chooses_nothing_can_be_streamed(run_api):
    def script(request):
        end = generation_pb2.FINISH_REASON_MAX_TOKENS
        yield [Output(encode("a"), end, index=index) for index in range(request.sampling.n)]

    async with run_api(script) as api:
        for fields in ({"best_of": 1}, {"n": 2, "best_of": 2}):
            answer = await api.post("/v1/completions", prompt="hi", stream=True, **fields)
            assert answer.status_code == 200 and answer.text.endswith("data: [DONE]\n\n")
            sent = api.service.engine.requests.get_nowait()
            assert sent.sampling.n == fields.get("n", 1)
        answer = await api.post("/v1/completions", prompt="hi", stream=True, n=2, best_of=3)
        assert answer.status_code == 400 and "equal to n" in answer.json()["error"]["message"]


def tensor_file(dtype: str = "F32", shape: object = (3, 2), data: bytes = bytes(24), **more: object) -> str:
    """A safetensors file in base64."""
    tensor = {"dtype": dtype, "shape": shape, "data_offsets": [0, len(data)]}
    header = json.dumps({"x": tensor, "__metadata__": {"a": "b"}} | more).encode()
    return b64encode(len(header).to_bytes(8, "little") + header + data).decode()


async def test_prompts_of_embeddings(run_api):
    """With vLLM's name of the field."""
    values = struct.pack("<6f", *range(6))
    async with run_api(engine_options={"input_embedding_size": 2}) as api:
        padded = tensor_file(data=values, __metadata__={"a": 36 * "b"})
        assert b64decode(padded)[:2] == b"\x80\0"  # a length that begins as pickles do
        for files in (tensor_file(data=values), [padded]):
            answer = await api.openai.completions.create(
                model="fake", prompt=None, extra_body={"prompt_embeds": files}
            )
            assert (answer.choices[0].text, answer.usage.prompt_tokens) == ("hello", 3)
            sent = api.service.engine.requests.get_nowait()
            assert (sent.embeddings.dtype, sent.embeddings.values) == ("float32", values)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("!", "base64"),
        (7, "must be a string"),
        ([], "list of 1 to 128"),
        (b64encode(b"PK\x03\x04abcdefgh").decode(), "is a pickle"),
        (b64encode(b"\x80\x02abcdefgh").decode(), "is a pickle"),
        (b64encode(bytes(8)).decode(), "no safetensors file"),
        (b64encode(b"\xff" * 9).decode(), "no safetensors file"),
        (b64encode((9).to_bytes(8, "little") + b"[" * 9).decode(), "no safetensors file"),
        (b64encode((9).to_bytes(8, "little") + b"{" * 9).decode(), "one tensor"),
        (tensor_file(y={}), "one tensor"),
        (tensor_file(dtype="I64"), "one tensor"),
        (tensor_file(shape="ab"), "one tensor"),
        (tensor_file(shape=[-1, 2]), "one tensor"),
        (tensor_file(x={"dtype": "F32", "shape": [3, 2], "data_offsets": [0, 8]}), "other bytes"),
        (tensor_file(shape=[3, 3]), "shape"),
        (tensor_file(data=bytes(8)), "24 bytes of data"),
        (tensor_file(data=b"\xff" * 24), "finite"),
    ],
)
async def test_embeddings_that_are_refused(run_api, content, problem):
    async with run_api(engine_options={"input_embedding_size": 2}) as api:
        with pytest.raises(openai.BadRequestError, match=problem) as refused:
            await api.openai.completions.create(
                model="fake", prompt=None, extra_body={"prompt_embeds": content}
            )
        assert refused.value.param == "prompt_embeds"
        with pytest.raises(openai.BadRequestError, match="cannot be combined with prompt"):
            await api.openai.completions.create(
                model="fake", prompt="a", extra_body={"prompt_embeds": tensor_file()}
            )
