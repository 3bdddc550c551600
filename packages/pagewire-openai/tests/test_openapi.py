"""The OpenAPI document says what the port takes: it is made of the tables, and judged by what they do."""

import json

import pytest
from jsonschema import Draft202012Validator

from frontend.http.port import make_app
from pagewire_openai.extension import SERVED, OpenAiApi

CHAT = "/v1/chat/completions"
ASK = [{"role": "user", "content": "hi"}]
TAKEN = [
    (CHAT, {"messages": ASK, "temperature": 0.5, "stop": "x", "stream": False, "seed": None}),
    (CHAT, {"messages": ASK, "stop": ["x", "y"], "logit_bias": {"5": 1.5}, "top_k": -1}),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}], "n": 1}),
    (CHAT, {"messages": ASK, "response_format": {"type": "text"}, "stream_options": None}),
    ("/v1/completions", {"prompt": "hi", "logprobs": 1}),
    ("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 2}),
    ("/v1/completions", {"prompt": ["a", [4, 5]]}),
    ("/v1/responses", {"input": "hi", "text": {"format": {"type": "text"}}}),
    ("/v1/responses", {"input": ASK, "reasoning": {}, "truncation": "disabled"}),
    ("/v1/messages", {"max_tokens": 5, "messages": ASK, "system": [{"type": "text", "text": "x"}]}),
    ("/v1/messages/count_tokens", {"messages": ASK}),
    ("/tokenize", {"prompt": "hi", "return_token_strs": True}),
    ("/tokenize", {"messages": ASK}),
    ("/detokenize", {"tokens": [65, 66]}),
]
REFUSED = [
    (CHAT, {}),
    (CHAT, {"messages": "hi"}),
    (CHAT, {"messages": [{"content": "hi"}]}),
    (CHAT, {"messages": ASK, "temperature": "warm"}),
    (CHAT, {"messages": ASK, "stream": 1}),
    (CHAT, {"messages": ASK, "max_tokens": 2.5}),
    (CHAT, {"messages": ASK, "max_tokens": -1}),
    (CHAT, {"messages": ASK, "store": True}),
    (CHAT, {"messages": ASK, "unheard_of": 1}),
    (CHAT, {"messages": ASK, "stream_options": {"unheard_of": 1}}),
    (CHAT, {"messages": ASK, "tools": [{"type": "function", "function": {"name": 5}}]}),
    (CHAT, {"messages": ASK, "tool_choice": "maybe"}),
    (CHAT, {"messages": ASK, "structured_outputs": {"xml": "a"}}),
    ("/v1/completions", {"prompt": 5}),
    ("/v1/completions", {"prompt": "x", "suffix": "y"}),
    ("/v1/responses", {"input": 5}),
    ("/v1/responses", {"input": "x", "previous_response_id": "resp_1"}),
    ("/v1/responses", {"input": "x", "text": {"verbosity": "low"}}),
    ("/v1/embeddings", {"input": {}}),
    ("/tokenize", {"prompt": 5}),
    ("/tokenize", {"messages": ASK, "tool_choice": "none"}),
    ("/detokenize", {"tokens": "x"}),
    ("/v1/messages/count_tokens", {"messages": ASK, "max_tokens": 5}),
    ("/v1/messages", {"messages": ASK}),
    ("/v1/messages", {"max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "image"}]}]}),
    ("/v1/messages", {"max_tokens": 5, "messages": ASK, "thinking": {"budget_tokens": "x"}}),
]


@pytest.fixture
def document_of():
    async def get(api):
        answer = await api.http.get("/openapi.json")
        assert answer.status_code == 200
        return answer.json()

    return get


def judge(document, path):
    """The validator of a path's requests."""
    content = document["paths"][path]["post"]["requestBody"]["content"]
    return Draft202012Validator({**document, **content["application/json"]["schema"]})


async def test_it_has_the_form_of_openapi(run_api, document_of):
    async with run_api() as api:
        document = await document_of(api)
    assert document["openapi"].startswith("3.1.") and set(document["info"]) >= {"title", "version"}
    operations = [each for path in document["paths"].values() for each in path.values()]
    names = [each["operationId"] for each in operations]
    assert len(names) == len(set(names)) and all(each["responses"] for each in operations)
    for schema in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    text = json.dumps(document)
    for name in document["components"]["schemas"]:
        assert f'"#/components/schemas/{name}"' in text
    assert text.count('"$ref"') == len(SERVED) + 3 + sum("requestBody" in each for each in operations)


async def test_it_has_every_path_of_the_port(run_api, document_of):
    async with run_api() as api:
        document = await document_of(api)
        frontend = api.service.frontend
        app = make_app(frontend.parts, frontend.watch.metrics, OpenAiApi(frontend.parts, None).routes())
    served = {
        (method.lower(), route.path.replace(":path", ""))
        for route in app.routes
        for method in route.methods - {"HEAD"}
    }
    told = {(method, path) for path, methods in document["paths"].items() for method in methods}
    assert served - {("post", "/ping")} == told
    assert document["paths"]["/v1/models/{name}"]["get"]["parameters"][0]["name"] == "name"


async def test_what_is_taken_fits_and_what_is_refused_does_not(run_api, document_of):
    async with run_api() as api:
        document = await document_of(api)
        for path, body in TAKEN:
            answer = await api.post(path, **body)
            assert answer.status_code == 200, (path, body, answer.text)
            judge(document, path).validate(body)
        for path, body in REFUSED:
            answer = await api.post(path, **body)
            assert answer.status_code == 400, (path, body, answer.text)
            assert not judge(document, path).is_valid(body), (path, body)
