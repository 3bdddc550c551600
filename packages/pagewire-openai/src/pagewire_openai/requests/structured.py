"""Reads the form of an answer in vLLM's fields: `structured_outputs`, and the older `guided_json` etc."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from frontend.errors import InvalidRequest
from frontend.field_names import Names, renamed
from pagewire.v1 import generation_pb2
from pagewire_openai.requests import values
from pagewire_openai.requests.fields import Field, Table, given, object_schema, read_object

STRUCTURED_OUTPUTS = "structured_outputs"
_FORMS: Table = {
    "json": Field(values.document),
    "regex": Field(values.text),
    "choice": Field(values.text_list),
    "grammar": Field(values.text),
    "json_object": Field(values.boolean),
    "structural_tag": Field(values.document),
}
_WITHOUT_EFFECT: Table = {
    "disable_any_whitespace": Field(values.boolean),  # an answer has no optional whitespace anyway
    "disable_fallback": Field(values.boolean),  # there is one backend
    "disable_additional_properties": Field(values.nothing(False)),
    "whitespace_pattern": Field(values.refused("is not supported here: JSON has no optional whitespace")),
}
_OUTPUTS: Table = {**_FORMS, **_WITHOUT_EFFECT}
STRUCTURED: Table = {
    STRUCTURED_OUTPUTS: Field(values.json_object, inner=object_schema(_OUTPUTS)),
    **{f"guided_{name}": _FORMS[name] for name in ("json", "regex", "choice", "grammar")},
    "structural_tag": _FORMS["structural_tag"],
    "guided_decoding_backend": Field(values.nothing("auto", "guidance")),
    "guided_whitespace_pattern": _WITHOUT_EFFECT["whitespace_pattern"],
}
_RULE_OF_GBNF = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)

Put = Callable[[generation_pb2.StructuredOutput, Any], None]


def read_structured(body: Mapping[str, Any], request: generation_pb2.GenerateRequest, names: Names) -> None:
    """Reads the form that vLLM's fields ask for, if any. Raises InvalidRequest, also for two forms."""
    asked = {
        name: (name.removeprefix("guided_"), body[name])
        for name in STRUCTURED
        if name.removeprefix("guided_") in _FORMS and given(body, name, None) is not None
    }
    if (outputs := given(body, STRUCTURED_OUTPUTS, None)) is not None:
        fields = read_object(outputs, STRUCTURED_OUTPUTS, _OUTPUTS)
        inner = {f"{STRUCTURED_OUTPUTS}.{name}": (name, value) for name, value in fields.items()}
        asked |= {path: each for path, each in inner.items() if each[0] in _FORMS}
        if not asked:
            raise InvalidRequest({STRUCTURED_OUTPUTS: f"must have one of {', '.join(_FORMS)}"})
    chosen = {path: each for path, each in asked.items() if each != ("json_object", False)}
    if not chosen:
        return
    first, *others = chosen
    if request.HasField("structured_output"):
        others.append(renamed("structured_output", names))
    if others:
        raise InvalidRequest({first: f"cannot be combined with {others[0]}"})
    form, value = chosen[first]
    for path in ("", f".{form}", ".json_schema", ".choice.values", ".grammar.text"):
        names[f"structured_output{path}"] = first
    _PUT[form](request.structured_output, value)


def _put_grammar(form: generation_pb2.StructuredOutput, text: str) -> None:
    """vLLM takes GBNF and Lark in one field, and tells them apart by the sign of a rule."""
    syntax = generation_pb2.StructuredOutput.Grammar
    form.grammar.text = text
    form.grammar.syntax = syntax.SYNTAX_EBNF if _RULE_OF_GBNF.search(text) else syntax.SYNTAX_LARK


def _put_text(name: str) -> Put:
    def put(form: generation_pb2.StructuredOutput, value: Any) -> None:
        setattr(form, name, value if isinstance(value, str | bool) else json.dumps(value))

    return put


_PUT: Mapping[str, Put] = {
    "json": _put_text("json_schema"),
    "regex": _put_text("regex"),
    "choice": lambda form, choices: form.choice.values.extend(choices),
    "grammar": _put_grammar,
    "json_object": _put_text("json_object"),
    "structural_tag": _put_text("structural_tag"),
}
