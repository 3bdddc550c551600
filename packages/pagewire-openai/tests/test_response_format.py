"""`response_format` becomes the request's structured output, and its errors keep OpenAI's names."""

import openai
import pytest

from tests.patience import soon

GRAMMARS = {"grammar_engine": "llguidance"}
ASK = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("form", "field"),
    [
        ({"type": "json_object"}, "json_object"),
        (
            {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}},
            "json_schema",
        ),
    ],
)
async def test_a_form_reaches_the_engine(run_api, form, field):
    async with run_api(engine_options=GRAMMARS) as api:
        await api.openai.chat.completions.create(model="fake", messages=ASK, response_format=form)
        sent = await soon(api.service.engine.requests.get())
        assert sent.grammar and ('"a"' in sent.grammar) == (field == "json_schema")


async def test_a_schema_that_is_none_is_named(run_api):
    async with run_api(engine_options=GRAMMARS) as api:
        form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "nonsense"}}}
        with pytest.raises(openai.BadRequestError) as refused:
            await api.openai.chat.completions.create(model="fake", messages=ASK, response_format=form)
        assert refused.value.param.startswith("response_format"), refused.value.body
