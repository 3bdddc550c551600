"""Forms of outputs in Python's words: schemas of models and dataclasses, and objects of outputs."""

import dataclasses
import enum
import json
from typing import Any, Literal

import pydantic
import pytest

from pagewire import SamplingParams
from pagewire.v1.generation_pb2 import StructuredOutput
from pagewire_client.params import generate_request, output_parser
from pagewire_client.results import FinishReason, Generation, Output
from pagewire_client.schemas import parser_of, schema_text


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Item:
    name: str
    price: float
    color: Color = Color.RED


@dataclasses.dataclass
class Invoice:
    number: int
    items: list[Item]
    paid: bool | None
    kind: Literal["a", "b"]
    notes: dict[str, str] = dataclasses.field(default_factory=dict)
    extra: Any = None


class Address(pydantic.BaseModel):
    street: str


class Person(pydantic.BaseModel):
    name: str
    address: Address


def form(**options: Any) -> StructuredOutput:
    return generate_request("hi", None, options, "").structured_output


def test_a_dataclass_has_a_schema_and_its_objects_come_back():
    schema = json.loads(schema_text(Invoice))
    assert schema["required"] == ["number", "items", "paid", "kind"]
    assert schema["properties"]["paid"] == {"anyOf": [{"type": "boolean"}, {"type": "null"}]}
    assert schema["properties"]["items"]["items"]["properties"]["color"] == {"enum": ["red", "blue"]}
    assert schema["additionalProperties"] is False
    text = '{"number":3,"items":[{"name":"x","price":1,"color":"blue"}],"paid":null,"kind":"b"}'
    invoice = parser_of(Invoice)(text)
    assert invoice == Invoice(3, [Item("x", 1.0, Color.BLUE)], None, "b")
    assert isinstance(invoice.items[0].price, float)


def test_a_pydantic_model_has_a_schema_without_other_keys_and_its_objects_come_back():
    schema = json.loads(schema_text(Person))
    assert schema["additionalProperties"] is False
    assert schema["$defs"]["Address"]["additionalProperties"] is False
    parsed = parser_of(Person)('{"name":"Ada","address":{"street":"x"}}')
    assert parsed == Person(name="Ada", address=Address(street="x"))


def test_a_mapping_and_a_text_are_schemas_of_their_own():
    assert schema_text({"type": "integer"}) == '{"type": "integer"}'
    assert schema_text("not even JSON") == "not even JSON"  # the server judges
    assert parser_of({"type": "integer"})("7") == 7


@pytest.mark.parametrize("schema", [3, int, [1], object()])
def test_what_is_no_schema_is_a_type_error(schema: Any):
    with pytest.raises(TypeError, match="a schema is"):
        schema_text(schema)


def test_a_field_without_a_schema_is_named():
    @dataclasses.dataclass
    class Odd:
        when: set[int]

    with pytest.raises(TypeError, match=r"Odd\.when"):
        schema_text(Odd)


def test_each_form_becomes_its_message():
    lark = StructuredOutput.Grammar.SYNTAX_LARK
    assert form(schema={"type": "null"}) == StructuredOutput(json_schema='{"type": "null"}')
    assert form(json_object=True) == StructuredOutput(json_object=True)
    assert form(regex="a+") == StructuredOutput(regex="a+")
    assert form(choice=["a", "b"]).choice.values == ["a", "b"]
    assert form(choice=[]).WhichOneof("format") == "choice"  # the service refuses it: it is not free text
    assert form(grammar="root ::= x").grammar.syntax == StructuredOutput.Grammar.SYNTAX_EBNF
    assert form(lark="start: x").grammar == StructuredOutput.Grammar(text="start: x", syntax=lark)
    assert form(structural_tag={"triggers": []}).structural_tag == '{"triggers": []}'
    assert not generate_request("hi", None, {}, "").HasField("structured_output")


def test_an_output_has_one_form():
    with pytest.raises(ValueError, match="regex and choice"):
        form(regex="a", choice=["b"])


def answer(text: str, reason: FinishReason, **options: Any) -> Generation:
    output = Output(0, text, finish_reason=reason)
    return Generation(outputs=[output], parser=output_parser(None, options))


def test_parsed_is_an_object_of_a_complete_output():
    assert answer('{"street":"x"}', FinishReason.EOS, schema=Address).parsed == Address(street="x")
    assert answer('{"a":1}', FinishReason.EOS, json_object=True).parsed == {"a": 1}
    assert output_parser(SamplingParams(schema=Address), {}) is not None
    with pytest.raises(ValueError, match="max_tokens"):
        _ = answer('{"a":', FinishReason.MAX_TOKENS, json_object=True).parsed
    with pytest.raises(ValueError, match="neither a schema"):
        _ = answer("a", FinishReason.EOS, regex="a").parsed


@dataclasses.dataclass
class Node:
    children: "list[Node]"


def test_a_dataclass_that_refers_to_itself_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="Node refers to itself; a pydantic model may"):
        schema_text(Node)
