"""Messages of tei.v1 as requests of ours."""

from collections.abc import Callable

from frontend.errors import InvalidRequest
from pagewire.v1 import pooling_pb2, prompt_pb2, tokenizer_pb2
from pagewire_gateways.protos import tei_pb2

NAMES = {
    "inputs[0]": "inputs",
    "inputs[0].text": "inputs",
    "prompts[0]": "inputs",
    "prompts[0].text": "inputs",
    "query.text": "query",
    "documents": "texts",
    "kind": "inputs",
    "sequences": "ids",
    "sequences[0]": "ids",
    "sequences[0].ids": "ids",
}
"""Paths of our fields -> the fields that set them."""
_OF_PAIRS = "query", "query.text", "documents", "documents[0]", "documents[0].text"
PAIR_NAMES = dict.fromkeys(_OF_PAIRS, "inputs")
STREAM_NAMES = {**dict.fromkeys(_OF_PAIRS, "text"), "query": "query", "query.text": "query"}
_SIDES = {
    tei_pb2.TRUNCATION_DIRECTION_RIGHT: prompt_pb2.TRUNCATION_SIDE_RIGHT,
    tei_pb2.TRUNCATION_DIRECTION_LEFT: prompt_pb2.TRUNCATION_SIDE_LEFT,
}


def read_embed(message: tei_pb2.EmbedRequest, max_length: int) -> pooling_pb2.EmbedRequest:
    """Returns the request for a vector. max_length: tokens of an input. Raises InvalidRequest."""
    request = _read_text(message, max_length)
    request.normalize = message.normalize if message.HasField("normalize") else True
    if message.HasField("dimensions"):
        request.dimensions = message.dimensions
    return request


def read_embed_all(message: tei_pb2.EmbedAllRequest, max_length: int) -> pooling_pb2.EmbedRequest:
    """Returns the request for vectors of tokens, as the model has them. max_length: tokens of an input.
    Raises InvalidRequest."""
    request = _read_text(message, max_length)
    request.kind, request.normalize = pooling_pb2.EMBEDDING_KIND_TOKENS, False
    return request


def read_embed_sparse(message: tei_pb2.EmbedSparseRequest, max_length: int) -> pooling_pb2.EmbedRequest:
    """Returns the request for weights of the vocabulary. max_length: tokens of an input. Raises
    InvalidRequest."""
    request = _read_text(message, max_length)
    request.kind = pooling_pb2.EMBEDDING_KIND_SPARSE
    return request


def _read_text(
    message: tei_pb2.EmbedRequest | tei_pb2.EmbedAllRequest | tei_pb2.EmbedSparseRequest, max_length: int
) -> pooling_pb2.EmbedRequest:
    request = pooling_pb2.EmbedRequest()
    if message.HasField("prompt_name"):
        request.prompt_name = message.prompt_name
    prompt = request.inputs.add(text=message.inputs)
    truncate(prompt, message.truncate, message.truncation_direction, max_length)
    return request


def read_predict(
    message: tei_pb2.PredictRequest | tei_pb2.PredictPairRequest, max_length: int
) -> tuple[pooling_pb2.ClassifyRequest, str | None]:
    """Returns the request for labels, and the first text of a pair, whose second one is the input; None: it
    is one text. max_length: tokens of an input. Raises InvalidRequest."""
    texts = [message.inputs] if isinstance(message, tei_pb2.PredictRequest) else list(message.inputs)
    if len(texts) not in (1, 2):
        raise InvalidRequest({"inputs": f"must be one text, or two, not {len(texts)}"})
    request = pooling_pb2.ClassifyRequest()
    prompt = request.inputs.add(text=texts[-1])
    truncate(prompt, message.truncate, message.truncation_direction, max_length)
    return request, texts[0] if len(texts) == 2 else None


def read_rerank(
    message: tei_pb2.RerankRequest | tei_pb2.RerankStreamRequest, max_length: int
) -> pooling_pb2.ScoreRequest:
    """Returns the request for scores. max_length: tokens of a text. Raises InvalidRequest."""
    request = pooling_pb2.ScoreRequest()
    request.query.text = message.query
    for text in message.texts if isinstance(message, tei_pb2.RerankRequest) else [message.text]:
        prompt = request.documents.add(text=text)
        truncate(prompt, message.truncate, message.truncation_direction, max_length)
    return request


def rerank_names(count: int) -> dict[str, str]:
    """Returns the fields that set the paths of so many documents."""
    return {f"documents[{index}].text": f"texts[{index}]" for index in range(count)}


def truncate(prompt: prompt_pb2.Prompt, wanted: bool, direction: int, max_length: int) -> None:
    """Sets how a prompt is shortened. Raises InvalidRequest."""
    side = _SIDES.get(direction)  # type: ignore[call-overload]  # any number may come
    if side is None:
        raise InvalidRequest({"truncation_direction": f"must be RIGHT or LEFT, not {direction}"})
    if wanted:
        prompt.truncate_to, prompt.truncation_side = max_length, side


def read_encode(
    message: tei_pb2.EncodeRequest, prompt: Callable[[str | None], str]
) -> tokenizer_pb2.TokenizeRequest:
    """Returns the request for tokens. prompt: returns that of a name. Raises InvalidRequest."""
    before = prompt(message.prompt_name if message.HasField("prompt_name") else None)
    request = tokenizer_pb2.TokenizeRequest(offsets=True)
    request.prompts.add(text=before + message.inputs, add_special_tokens=message.add_special_tokens)
    return request


def read_decode(message: tei_pb2.DecodeRequest) -> tokenizer_pb2.DetokenizeRequest:
    """Returns the request for a text."""
    request = tokenizer_pb2.DetokenizeRequest(skip_special_tokens=message.skip_special_tokens)
    request.sequences.add(ids=message.ids)
    return request
