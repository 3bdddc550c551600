"""Endpoints around the tokenizer, under the paths of vLLM."""

from array import array
from functools import partial
from typing import Any

from frontend.call.call import Call
from frontend.errors import InvalidRequest
from frontend.field_names import Names, renaming
from frontend.http.exchange import Exchange
from frontend.parts import FrontendParts
from frontend.tokenization import detokenized, tokenized
from pagewire.v1 import tokenizer_pb2
from pagewire_openai.requests import values
from pagewire_openai.requests.chat import CONVERSATION, read_conversation
from pagewire_openai.requests.fields import Field, Table, given, read_fields
from pagewire_openai.requests.messages import read_counted

Json = dict[str, Any]

TOKENIZE: Table = {
    "model": Field(values.text, "model"),
    "prompt": Field(values.anything, inner=values.text.schema),
    **CONVERSATION,
    "add_special_tokens": Field(values.boolean),
    "add_generation_prompt": Field(values.boolean),
    "continue_final_message": Field(values.boolean),
    "tool_choice": Field(values.nothing()),
    "return_token_strs": Field(values.boolean, "token_texts"),
}
_PATH = "prompts[0]"
_OF_CHAT = ("add_generation_prompt", "continue_final_message", "chat_template_kwargs", "tools")
DETOKENIZE: Table = {
    "model": Field(values.text, "model"),
    "tokens": Field(values.token_ids),
    "skip_special_tokens": Field(values.boolean, "skip_special_tokens"),
}


async def tokenize(parts: FrontendParts, body: Json, call: Call, exchange: Exchange) -> None:
    """POST /tokenize: `prompt` or `messages` to `tokens`, as in vLLM."""
    names, request = Names(), tokenizer_pb2.TokenizeRequest()
    read = partial(_read_tokenize, body, request, names)
    await parts.large_messages.run(read, exchange.body_size, call.caller)
    token_ids = await _read_ids(parts, request, names, call)
    answer: Json = {
        "count": len(token_ids),
        "max_model_len": parts.max_model_len,
        "tokens": token_ids.tolist(),
        "token_strs": None,
    }
    if request.token_texts:
        token_bytes = parts.model.tokenizer.token_bytes
        answer["token_strs"] = [token_bytes(token).decode(errors="replace") for token in token_ids]
    await exchange.respond(200, answer)


async def count_tokens(parts: FrontendParts, body: Json, call: Call, exchange: Exchange) -> None:
    """POST /v1/messages/count_tokens."""
    names = Names()
    template, reasons = parts.model.chat_template, parts.model.answers.reasons
    read = partial(read_counted, body, names, _PATH, template, reasons=reasons)
    counted = await parts.large_messages.run(read, exchange.body_size, call.caller)
    request = tokenizer_pb2.TokenizeRequest(model=counted.model, prompts=[counted.prompt])
    token_ids = await _read_ids(parts, request, names, call)
    await exchange.respond(200, {"input_tokens": len(token_ids)})


async def _read_ids(
    parts: FrontendParts, request: tokenizer_pb2.TokenizeRequest, names: Names, call: Call
) -> "array[int]":
    """Returns the token ids of a request's only prompt. Raises ServiceError with the client's names."""
    with renaming(names):
        async with tokenized(parts, request, call.caller) as (read,):
            return read.token_ids


def _read_tokenize(body: Json, request: tokenizer_pb2.TokenizeRequest, names: Names) -> None:
    """Reads the only prompt, and how to answer. Raises InvalidRequest."""
    read_fields(body, TOKENIZE, request, names)
    prompt = request.prompts.add()
    if (special := given(body, "add_special_tokens", None)) is not None:
        prompt.add_special_tokens = special
    has_messages = given(body, "messages", None) is not None
    if has_messages == (given(body, "prompt", None) is not None):
        raise InvalidRequest({"prompt": "give either prompt or messages"})
    if has_messages:
        read_conversation(body, prompt, names, _PATH)
        if (generation := given(body, "add_generation_prompt", None)) is not None:
            prompt.chat.add_generation_prompt = generation
        prompt.chat.continue_final_message = given(body, "continue_final_message", False)
        return
    if wrong := [name for name in _OF_CHAT if given(body, name, None) is not None]:
        raise InvalidRequest(dict.fromkeys(wrong, "needs messages"))
    names[_PATH] = "prompt"
    names[f"{_PATH}.text"] = "prompt"
    try:
        prompt.text = values.text(body["prompt"])
    except ValueError as error:
        raise InvalidRequest({"prompt": str(error)}) from None


def _read_detokenize(body: Json, request: tokenizer_pb2.DetokenizeRequest, names: Names) -> None:
    read_fields(body, DETOKENIZE, request, names)
    if not isinstance(body.get("tokens"), list):
        raise InvalidRequest({"tokens": "must be a list of token ids"})
    names["sequences"] = "tokens"
    names["sequences[0].ids"] = "tokens"
    request.sequences.add(ids=body["tokens"])


async def detokenize(parts: FrontendParts, body: Json, call: Call, exchange: Exchange) -> None:
    """POST /detokenize: `tokens` to `prompt`, as in vLLM."""
    names, request = Names(), tokenizer_pb2.DetokenizeRequest()
    read = partial(_read_detokenize, body, request, names)
    await parts.large_messages.run(read, exchange.body_size, call.caller)
    if not request.HasField("skip_special_tokens"):
        request.skip_special_tokens = False
    with renaming(names):
        (prompt,) = await detokenized(parts, request, call.caller)
    await exchange.respond(200, {"prompt": prompt})
