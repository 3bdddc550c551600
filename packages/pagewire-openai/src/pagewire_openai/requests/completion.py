"""Reads the body of POST /v1/completions."""

from collections.abc import Mapping
from typing import Any

from frontend.errors import InvalidRequest
from frontend.field_names import Names
from pagewire.v1 import generation_pb2, prompt_pb2
from pagewire_openai.requests import prompt_embeds, values
from pagewire_openai.requests.fields import (
    EXTENSIONS,
    SAMPLING,
    Field,
    Table,
    ask_for_logprobs,
    given,
    list_of,
    one_of,
    read_fields,
)
from pagewire_openai.requests.structured import STRUCTURED, read_structured

DEFAULT_MAX_TOKENS = 16
"""The API's own default."""
MAX_PROMPTS = 128
"""Prompts of one request, which are generated at the same time."""

PROMPTS = one_of(
    values.text.schema, values.token_ids.schema, list_of(values.text.schema, values.token_ids.schema)
)
"""JSON schema of what read_prompts() reads."""
COMPLETION: Table = {
    **SAMPLING,
    **EXTENSIONS,
    **STRUCTURED,
    "prompt": Field(values.anything, inner=PROMPTS),
    prompt_embeds.FIELD: Field(values.anything, inner=prompt_embeds.SCHEMA),
    "max_tokens": Field(values.count, "stopping.max_tokens"),
    "logprobs": Field(values.count),
    "echo": Field(values.boolean, "output.echo"),
    "best_of": Field(values.count, "sampling.best_of"),
    "suffix": Field(values.nothing("")),
}


def read_completion(
    body: Mapping[str, Any], names: Names, max_bytes: int
) -> list[generation_pb2.GenerateRequest]:
    """Returns one request per prompt. max_bytes: of all of them. Raises InvalidRequest, Unsupported with
    OpenAI's names."""
    request = generation_pb2.GenerateRequest()
    read_fields(body, COMPLETION, request, names)
    read_structured(body, request, names)
    if not request.stopping.HasField("max_tokens"):
        request.stopping.max_tokens = DEFAULT_MAX_TOKENS
    if given(body, "stream", False) and request.sampling.HasField("best_of"):
        if request.sampling.best_of != (request.sampling.n or 1):
            raise InvalidRequest({"best_of": "must be equal to n in a stream, which sends all outputs"})
        request.sampling.ClearField("best_of")
    top = given(body, "logprobs", None)
    if top is not None:
        _request_logprobs(request, top, names)
    if body.get(prompt_embeds.FIELD) is not None:
        prompts = prompt_embeds.read_prompt_embeds(body, MAX_PROMPTS)
        for path in ("prompt.embeddings", "prompt.embeddings.data"):
            names[path] = prompt_embeds.FIELD
    else:
        prompts = read_prompts(body)
    names["prompt"] = "prompt"
    for kind in ("prompt.text", "prompt.token_ids.ids", "prompt.token_ids"):
        names[kind] = "prompt"
    size = len(prompts) * request.ByteSize() + sum(prompt.ByteSize() for prompt in prompts)
    if size > max_bytes:
        problem = f"{len(prompts)} prompts, each with the other fields, are {size} bytes, above {max_bytes}"
        raise InvalidRequest({"prompt": problem})
    requests = []
    for prompt in prompts:
        requests.append(generation_pb2.GenerateRequest())
        requests[-1].CopyFrom(request)
        requests[-1].prompt.MergeFrom(prompt)
    return requests


def read_prompts(
    body: Mapping[str, Any], name: str = "prompt", most: int = MAX_PROMPTS
) -> list[prompt_pb2.Prompt]:
    """Returns the prompts in a field: a string, a list of token ids, or a list of up to `most` of either.
    Raises InvalidRequest."""
    content = body.get(name)
    if isinstance(content, str) or _is_ids(content):
        content = [content]
    if not isinstance(content, list) or not 1 <= len(content) <= most:
        problem = f"must be a string, a list of token ids, or a list of 1 to {most} of these"
        raise InvalidRequest({name: problem})
    prompts = []
    for place, each in enumerate(content):
        try:
            if isinstance(each, list):
                ids = prompt_pb2.TokenIds(ids=values.token_ids(each))
                prompts.append(prompt_pb2.Prompt(token_ids=ids))
            else:
                prompts.append(prompt_pb2.Prompt(text=values.text(each)))
        except ValueError as error:
            where = f"{name}[{place}]" if len(content) > 1 else name
            raise InvalidRequest({where: str(error)}) from None
    return prompts


def _is_ids(content: Any) -> bool:
    return isinstance(content, list) and bool(content) and isinstance(content[0], int)


def _request_logprobs(request: generation_pb2.GenerateRequest, top: int, names: Names) -> None:
    """With `echo` the prompt's log-probabilities come before the output's."""
    names["output.prompt_logprobs"] = "logprobs"
    names["output.prompt_logprobs.top_n"] = "logprobs"
    ask_for_logprobs(request, top, names, name="logprobs", top_name="logprobs")
    output = request.output
    if output.echo:
        output.prompt_logprobs.CopyFrom(output.logprobs)
        output.prompt_token_ids = True
