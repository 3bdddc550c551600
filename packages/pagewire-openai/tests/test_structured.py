"""vLLM's fields for the form of an answer reach the engine as the gRPC field would."""

import json

import pytest

from tests.patience import soon

GRAMMARS = {"grammar_engine": "llguidance"}
ASK = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TAG = {"triggers": ["<f="], "structures": [{"begin": "<f=a>", "schema": {"type": "object"}, "end": "</f>"}]}
GBNF, LARK = 'root ::= "yes" | "no"', 'start: "a ::= b" | "no"'
FORMS = [
    ("json", SCHEMA, '"a"'),
    ("json", json.dumps(SCHEMA), '"a"'),
    ("regex", "[0-9]{4}", "[0-9]{4}"),
    ("choice", ["left", "right"], "left"),
    ("grammar", GBNF, "yes"),
    ("grammar", LARK, "a ::= b"),
]


@pytest.mark.parametrize(("name", "value", "contained"), FORMS)
async def test_both_generations_of_fields_make_the_same_grammar(run_api, name, value, contained):
    async with run_api(engine_options=GRAMMARS) as api:
        sent = []
        for fields in ({"structured_outputs": {name: value}}, {f"guided_{name}": value}):
            answer = await api.post("/v1/chat/completions", messages=ASK, **fields)
            assert answer.status_code == 200, answer.text
            sent.append((await soon(api.service.engine.requests.get())).grammar)
        answer = await api.post("/v1/completions", prompt="hi", structured_outputs={name: value})
        assert answer.status_code == 200, answer.text
        sent.append((await soon(api.service.engine.requests.get())).grammar)
        assert contained in sent[0] and len(set(sent)) == 1


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_the_other_forms(run_api, path):
    question = {"input": "hi"} if path == "/v1/responses" else {"messages": ASK}
    async with run_api(engine_options=GRAMMARS) as api:
        forms = (
            {"structured_outputs": {"json_object": True, "disable_any_whitespace": True}},
            {"structured_outputs": {"structural_tag": TAG}},
            {"structural_tag": json.dumps(TAG)},
        )
        for fields in forms:
            answer = await api.post(path, **question, **fields)
            assert answer.status_code == 200, answer.text
            assert (await soon(api.service.engine.requests.get())).grammar


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json": 3}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": {"type": "nonsense"}}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"choice": "yes"}}, "structured_outputs.choice"),
        ({"structured_outputs": {"grammar": "root ::= nothing"}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"xml": "a"}}, "structured_outputs.xml"),
        ({"structured_outputs": {"regex": "a", "json": SCHEMA}}, "structured_outputs.regex"),
        (
            {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": " "}},
            "structured_outputs.whitespace_pattern",
        ),
        ({"guided_regex": "("}, "guided_regex"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_choice": ["a"], "structured_outputs": {"regex": "a"}}, "guided_choice"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
        ({"guided_regex": "a", "guided_decoding_backend": "outlines"}, "guided_decoding_backend"),
        ({"structural_tag": {"triggers": []}}, "structural_tag"),
    ],
)
async def test_what_is_wrong_is_named(run_api, fields, param):
    async with run_api(engine_options=GRAMMARS) as api:
        answer = await api.post("/v1/chat/completions", messages=ASK, **fields)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
