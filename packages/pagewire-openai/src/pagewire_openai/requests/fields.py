"""Reads an OpenAI request, field by field, into a GenerateRequest.

A table has a reader and the path of the protobuf field for each name. The protobuf field is then checked by
frontend.validation like any other; `Names` turns the paths of what it finds back into the names that the
client used. A field in no table is refused by name: nothing that a client sets is silently ignored.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from frontend.errors import InvalidRequest, Unsupported
from frontend.field_names import Names
from pagewire.v1 import generation_pb2
from pagewire_openai.requests import values
from pagewire_openai.requests.values import Json, Reader

UNKNOWN = "is not supported here"


@dataclass(frozen=True, slots=True)
class Field:
    """read: checks and converts the value. path: of the protobuf field; empty: it is read elsewhere, or needs
    no field. inner: the JSON schema of a value that is read elsewhere; None: the reader's."""

    read: Reader[Any]
    path: str = ""
    inner: Json | None = None


Table = Mapping[str, Field]


def object_schema(table: Table, *required: str) -> Json:
    """Returns the JSON schema of an object that a table reads, where null is an absent field. Fields that are
    refused whatever their value are left out."""
    schemas = {name: field.inner or field.read.schema for name, field in table.items()}
    properties = {name: _nullable(schema) for name, schema in schemas.items() if schema != values.NEVER}
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**schema, "required": list(required)} if required else schema


def list_of(*items: Json) -> Json:
    """Returns the JSON schema of a list whose items fit one of several schemas."""
    return {"type": "array", "items": one_of(*items)}


def one_of(*schemas: Json) -> Json:
    """Returns the JSON schema of what fits one of several."""
    return schemas[0] if len(schemas) == 1 else {"anyOf": list(schemas)}


def _nullable(schema: Json) -> Json:
    kinds = schema.get("type")
    if kinds is None:
        return one_of(schema, {"type": "null"}) if schema else {}
    return {**schema, "type": [kinds, "null"] if isinstance(kinds, str) else [*kinds, "null"]}


def read_fields(body: Mapping[str, Any], table: Table, request: Message, names: Names) -> None:
    """Fills a request from a body's fields; null is an absent field, whatever its name. Raises
    InvalidRequest, Unsupported."""
    unknown = [name for name, value in body.items() if value is not None and name not in table]
    if unknown:
        raise Unsupported({clipped(name): UNKNOWN for name in unknown[:8]})
    problems: dict[str, str] = {}
    for name, value in body.items():
        if value is None:
            continue
        field = table[name]
        try:
            content = field.read(value)
            if field.path:
                names[field.path] = name
                _put(request, field.path, content)
        except ValueError as error:
            problems[name] = str(error)
    if problems:
        raise InvalidRequest(problems)


def clipped(name: str) -> str:
    """Returns a name from a client for an error's text: printable and short."""
    return ascii(name[:64])[1:-1]


def given(body: Mapping[str, Any], name: str, default: Any) -> Any:
    """Returns a field's value, or the default when it is absent or null."""
    value = body.get(name)
    return default if value is None else value


def read_object(value: Any, path: str, table: Table, required: Iterable[str] = ()) -> dict[str, Any]:
    """Returns the read fields of an object inside a body. path: its name. Raises InvalidRequest."""
    if not isinstance(value, dict):
        raise InvalidRequest({path: "must be an object"})
    result = {}
    for name, content in value.items():
        if content is None:
            continue
        where = f"{path}.{clipped(name)}"
        if name not in table:
            raise Unsupported({where: UNKNOWN})
        try:
            result[name] = table[name].read(content)
        except ValueError as error:
            raise InvalidRequest({where: str(error)}) from None
    for name in required:
        if name not in result:
            raise InvalidRequest({f"{path}.{name}": "is required"})
    return result


def read_texts(content: Any, path: str, part: Table, kinds: Iterable[str], refusal: str) -> list[str]:
    """Returns the texts of a message: as read_parts(), of parts that have a text."""
    return [text for _, text, _ in read_parts(content, path, part, dict.fromkeys(kinds, "text"), refusal)]


def read_parts(
    content: Any, path: str, part: Table, kinds: Mapping[str, str], refusal: str
) -> Iterator[tuple[str, Any, str]]:
    """Yields the parts of a message, a string or a list of them: the field that counts, its value, and the
    part's path. part: its fields. kinds: the types of parts that are read, and the field of each; other types
    get the refusal. Raises InvalidRequest, Unsupported."""
    if isinstance(content, str):
        try:
            yield "text", values.text(content), path
        except ValueError as error:  # half a character
            raise InvalidRequest({path: str(error)}) from None
        return
    if not isinstance(content, list):
        raise InvalidRequest({path: "must be a string or a list of parts"})
    for place, each in enumerate(content):
        where = f"{path}[{place}]"
        kind = each.get("type") if isinstance(each, dict) else None
        if not isinstance(kind, str) or kind not in kinds:
            said = f"type {clipped(kind)} {refusal}" if isinstance(kind, str) else "must have a type"
            raise Unsupported({where: said})
        field = kinds[kind]
        if others := ({*kinds.values()} - {field}) & each.keys():
            raise InvalidRequest(
                {f"{where}.{min(others)}": f"is not a field of a part of type {clipped(kind)}"}
            )
        yield field, read_object(each, where, part, (field,))[field], where


def ask_for_logprobs(
    request: generation_pb2.GenerateRequest, top: int | None, names: Names, *, name: str, top_name: str
) -> None:
    """Asks for log-probabilities of the output. top: candidates. name, top_name: the client's fields."""
    names["output.logprobs"] = name
    names["output.logprobs.top_n"] = top_name
    request.output.logprobs.SetInParent()
    request.output.token_bytes = request.output.token_ids = True
    if top:
        request.output.logprobs.top_n = top


def _put(request: Message, path: str, value: Any) -> None:
    """Sets a field. Raises ValueError when it cannot hold the value."""
    *parents, last = path.split(".")
    message: Any = request
    for parent in parents:
        message = getattr(message, parent)
    if isinstance(value, list):
        getattr(message, last).extend(value)
    elif isinstance(value, dict):
        getattr(message, last).update(value)
    else:
        setattr(message, last, value)


STREAM_OPTIONS: Table = {
    "include_usage": Field(values.boolean),
    "continuous_usage_stats": Field(values.boolean),
    "include_obfuscation": Field(values.nothing(False)),
}
SAMPLING: Table = {
    "model": Field(values.text, "model"),
    "temperature": Field(values.number, "sampling.temperature"),
    "top_p": Field(values.number, "sampling.top_p"),
    "n": Field(values.count, "sampling.n"),
    "seed": Field(values.seed, "sampling.seed"),
    "stop": Field(values.texts, "stopping.stop"),
    "presence_penalty": Field(values.number, "sampling.presence_penalty"),
    "frequency_penalty": Field(values.number, "sampling.frequency_penalty"),
    "logit_bias": Field(values.logit_bias, "sampling.logit_bias"),
    "stream": Field(values.boolean),
    "stream_options": Field(values.json_object, inner=object_schema(STREAM_OPTIONS)),
    "user": Field(values.anything),
    "metadata": Field(values.anything),
    "safety_identifier": Field(values.anything),
    "store": Field(values.nothing(False)),
    "service_tier": Field(values.nothing("auto", "default")),
    "prompt_cache_key": Field(values.text, "routing.session_id"),
}
"""Fields of the OpenAI API that chat and completions share."""
EXTENSIONS: Table = {
    "top_k": Field(values.top_k, "sampling.top_k"),
    "min_p": Field(values.number, "sampling.min_p"),
    "repetition_penalty": Field(values.number, "sampling.repetition_penalty"),
    "allowed_token_ids": Field(values.token_ids, "sampling.allowed_token_ids"),
    "bad_words": Field(values.texts, "sampling.bad_words"),
    "min_tokens": Field(values.count, "stopping.min_tokens"),
    "stop_regex": Field(values.texts, "stopping.stop_regex"),
    "stop_token_ids": Field(values.token_ids, "stopping.stop_token_ids"),
    "ignore_eos": Field(values.boolean, "stopping.ignore_eos"),
    "include_stop_str_in_output": Field(values.boolean, "stopping.include_stop"),
    "skip_special_tokens": Field(values.boolean, "output.skip_special_tokens"),
    "add_special_tokens": Field(values.boolean, "prompt.add_special_tokens"),
    "truncate_prompt_tokens": Field(values.count, "prompt.truncate_to"),
    "priority": Field(values.int32, "priority"),
    "cache_salt": Field(values.text, "cache.salt"),
    "best_of": Field(values.nothing(1)),
    "use_beam_search": Field(values.nothing(False)),
    "length_penalty": Field(values.nothing(1)),
    "early_stopping": Field(values.nothing(False)),
    "typical_p": Field(values.nothing(1)),
    "spaces_between_special_tokens": Field(values.nothing(True)),
    "return_token_ids": Field(values.nothing(False)),
    "return_tokens_as_token_ids": Field(values.nothing(False)),
    "cache_prompt": Field(values.nothing(True)),
}
"""Fields that vLLM's and SGLang's servers have besides, under their names."""
RESPONSE_STREAM_OPTIONS: Table = {"include_obfuscation": Field(values.nothing(False))}
