"""Messages of the Open Inference Protocol: tensors with names become a GenerateRequest, its output tensors.

Names and types are those of Triton's backends for language models (TensorRT-LLM's ensemble and vLLM).
"""

import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from frontend.errors import InvalidRequest, ServiceError, Unsupported
from frontend.validation.json_objects import read_object
from frontend.validation.rules import identifier_problem
from pagewire.inference import open_inference_pb2 as oip
from pagewire.v1 import generation_pb2

Request = generation_pb2.GenerateRequest
TEXT, INTEGER, NUMBER, BOOLEAN = "BYTES", "an integer", "a number", "BOOL"
EMPTY_FINAL = "triton_enable_empty_final_response"
FINAL = "triton_final_response"
MAX_DIMENSIONS = 8
MAX_ELEMENTS = 1 << 20
"""Of a tensor. The product of many sizes is a number of many digits, and elements are many objects."""
_FORMATS = {
    "BOOL": ("?", BOOLEAN, "bool_contents"),
    "INT8": ("b", INTEGER, "int_contents"),
    "INT16": ("h", INTEGER, "int_contents"),
    "INT32": ("i", INTEGER, "int_contents"),
    "INT64": ("q", INTEGER, "int64_contents"),
    "UINT8": ("B", INTEGER, "uint_contents"),
    "UINT16": ("H", INTEGER, "uint_contents"),
    "UINT32": ("I", INTEGER, "uint_contents"),
    "UINT64": ("Q", INTEGER, "uint64_contents"),
    "FP32": ("f", NUMBER, "fp32_contents"),
    "FP64": ("d", NUMBER, "fp64_contents"),
    "BYTES": ("", TEXT, "bytes_contents"),
}
"""Element type -> its code in struct, what it holds, and its field of InferTensorContents."""
_LENGTH = struct.Struct("<I")
_FINISH_WORDS = {
    generation_pb2.FINISH_REASON_MAX_TOKENS: "length",
    generation_pb2.FINISH_REASON_CONTEXT_LENGTH: "length",
    generation_pb2.FINISH_REASON_TIME_LIMIT: "length",
    generation_pb2.FINISH_REASON_ABORTED: "abort",
}


@dataclass(frozen=True, slots=True)
class InputTensor:
    """What a tensor of a request sets.

    datatype: as metadata names it; others that hold the same are taken, too.
    path:     of the field of GenerateRequest; empty: it is read elsewhere.
    is_list:  any number of elements.
    """

    datatype: str
    path: str = ""
    is_list: bool = False


INPUTS: Mapping[str, InputTensor] = {
    "text_input": InputTensor("BYTES", "prompt.text"),
    "stream": InputTensor("BOOL"),
    "max_tokens": InputTensor("INT32", "stopping.max_tokens"),
    "min_tokens": InputTensor("INT32", "stopping.min_tokens"),
    "stop_words": InputTensor("BYTES", "stopping.stop", is_list=True),
    "bad_words": InputTensor("BYTES", "sampling.bad_words", is_list=True),
    "end_id": InputTensor("INT32", "stopping.stop_token_ids", is_list=True),
    "pad_id": InputTensor("INT32"),
    "temperature": InputTensor("FP32", "sampling.temperature"),
    "top_k": InputTensor("INT32", "sampling.top_k"),
    "top_p": InputTensor("FP32", "sampling.top_p"),
    "min_p": InputTensor("FP32", "sampling.min_p"),
    "repetition_penalty": InputTensor("FP32", "sampling.repetition_penalty"),
    "presence_penalty": InputTensor("FP32", "sampling.presence_penalty"),
    "frequency_penalty": InputTensor("FP32", "sampling.frequency_penalty"),
    "random_seed": InputTensor("UINT64", "sampling.seed"),
    "return_log_probs": InputTensor("BOOL"),
    "exclude_input_in_output": InputTensor("BOOL"),
    "sampling_parameters": InputTensor("BYTES"),
}
"""Tensors of a request. All but text_input may also be parameters of the request."""
_ALIASES = {"stop": "stop_words", "seed": "random_seed", "min_length": "min_tokens"}
OUTPUTS = {
    "text_output": "BYTES",
    "finish_reason": "BYTES",
    "num_output_tokens": "UINT32",
    "cum_log_probs": "FP32",
    "output_log_probs": "FP32",
}
"""Tensors of an answer."""
_SCORES = ("cum_log_probs", "output_log_probs")


@dataclass(slots=True)
class Asked:
    """A request, read.

    outputs:     names of the tensors to return.
    empty_final: an answer without tensors follows the last one.
    """

    request: Request
    outputs: list[str]
    stream: bool = False
    empty_final: bool = False


def read_infer_request(message: oip.ModelInferRequest) -> Asked:
    """Reads a request. Raises InvalidRequest and Unsupported, with the names of tensors and parameters."""
    if problem := identifier_problem(message.id):
        raise InvalidRequest({"id": problem})
    outputs = [output.name for output in message.outputs] or ["text_output"]
    if len(set(outputs)) < len(outputs):
        raise InvalidRequest({"outputs": "must have different names"})
    for output in message.outputs:
        if output.name not in OUTPUTS:
            raise Unsupported({"outputs": f"must be among {', '.join(OUTPUTS)}"})
        if output.parameters:
            raise Unsupported({f"outputs.{output.name}": "has parameters, which are not served"})
    asked = Asked(Request(model=message.model_name), outputs)
    for name, values in _tensors(message):
        _put(asked, name, values)
    for name in sorted(message.parameters):
        value = message.parameters[name]
        if (choice := value.WhichOneof("parameter_choice")) is not None:
            _put_parameter(asked, name, getattr(value, choice))
    if not asked.request.prompt.HasField("text"):
        raise InvalidRequest({"text_input": "is required"})
    if any(name in outputs for name in _SCORES):
        asked.request.output.logprobs.SetInParent()
    asked.request.output.mode = (
        generation_pb2.OutputOptions.MODE_DELTA if asked.stream else generation_pb2.OutputOptions.MODE_FINAL
    )
    return asked


def _tensors(message: oip.ModelInferRequest) -> Iterator[tuple[str, list[Any]]]:
    """Yields the elements of each tensor. Raises InvalidRequest, Unsupported."""
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise InvalidRequest({"raw_input_contents": "must have an entry for each tensor"})
    seen: set[str] = set()
    for place, tensor in enumerate(message.inputs):
        name = tensor.name if tensor.name.isidentifier() and len(tensor.name) <= 64 else f"inputs[{place}]"
        if tensor.name in seen:
            raise InvalidRequest({name: "is there twice"})
        seen.add(tensor.name)
        if tensor.parameters:
            raise Unsupported({name: "has parameters, which are not served (no shared memory)"})
        if tensor.datatype not in _FORMATS:
            raise Unsupported({name: f"must have a datatype among {', '.join(_FORMATS)}"})
        code, kind, field = _FORMATS[tensor.datatype]
        count = _num_elements(tensor, name)
        values: Sequence[Any] = getattr(tensor.contents, field)
        if raw and kind == TEXT:
            values = _unpack_texts(raw[place], name, count)
        elif raw:
            layout = struct.Struct(f"<{count}{code}")
            if layout.size != len(raw[place]):
                raise InvalidRequest({name: f"must have {layout.size} bytes, as its shape says"})
            values = layout.unpack(raw[place])
        if len(values) != count:
            raise InvalidRequest({name: f"must have {count} elements, as its shape says"})
        yield name, [_text(value, name) for value in values] if kind == TEXT else list(values)


def _num_elements(tensor: oip.ModelInferRequest.InferInputTensor, name: str) -> int:
    """Returns the number of elements by the shape. Raises InvalidRequest."""
    if len(tensor.shape) > MAX_DIMENSIONS:
        raise InvalidRequest({name: f"must have at most {MAX_DIMENSIONS} dimensions"})
    count = math.prod(tensor.shape)
    if any(size < 0 for size in tensor.shape) or count > MAX_ELEMENTS:
        raise InvalidRequest({name: f"must have a shape of 0 to {MAX_ELEMENTS} elements"})
    return count


def _unpack_texts(data: bytes, name: str, count: int) -> list[bytes]:
    """Returns the elements, no more than one above `count`. Raises InvalidRequest."""
    texts: list[bytes] = []
    start = 0
    while start < len(data) and len(texts) <= count:
        if start + 4 > len(data):
            raise InvalidRequest({name: "ends within the length of an element"})
        (length,) = _LENGTH.unpack_from(data, start)
        start += 4 + length
        if start > len(data):
            raise InvalidRequest({name: "ends within an element"})
        texts.append(data[start - length : start])
    return texts


def _text(value: bytes, name: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise InvalidRequest({name: "is not UTF-8"}) from None


def _put_parameter(asked: Asked, name: str, value: Any) -> None:
    """Sets what a parameter, or a name of sampling_parameters, says."""
    if name == EMPTY_FINAL:
        asked.empty_final = bool(value)
    elif name == "priority" and isinstance(value, int):
        _set(asked.request, "priority", value, name)
    elif name in ("text_input", "sampling_parameters"):
        raise InvalidRequest({name: "must be a tensor"})
    else:
        _put(asked, name, value if isinstance(value, list) else [value])


def _put(asked: Asked, name: str, values: list[Any]) -> None:
    """Sets what a tensor says. Raises InvalidRequest, Unsupported."""
    tensor = INPUTS.get(_ALIASES.get(name, name))
    if tensor is None:
        raise Unsupported({name[:64]: "is not served here"})
    kind = _FORMATS[tensor.datatype][1]
    if not all(_holds(kind, value) for value in values):
        raise InvalidRequest({name: f"must be {tensor.datatype}"})
    if not tensor.is_list and len(values) != 1:
        raise InvalidRequest({name: f"must have one element, not {len(values)}"})
    if tensor.path:
        _set(asked.request, tensor.path, values if tensor.is_list else values[0], name)
        return
    (value, *_), output = values, asked.request.output
    match name:
        case "stream":
            asked.stream = value
        case "return_log_probs" if value:
            asked.outputs += [each for each in _SCORES if each not in asked.outputs]
        case "exclude_input_in_output":
            output.echo = not value
        case "sampling_parameters":
            for inner, content in read_object(value, name).items():
                if content is not None:
                    _put_parameter(asked, inner, content)


def _holds(kind: str, value: Any) -> bool:
    if kind == BOOLEAN or isinstance(value, bool):
        return kind == BOOLEAN and isinstance(value, bool)
    return isinstance(value, {TEXT: str, INTEGER: int, NUMBER: int | float}[kind])


def _set(request: Request, path: str, value: Any, name: str) -> None:
    *parents, last = path.split(".")
    target: Any = request
    for parent in parents:
        target = getattr(target, parent)
    try:
        if isinstance(value, list):
            getattr(target, last).extend(value)
        else:
            setattr(target, last, value)
    except (ValueError, UnicodeEncodeError):
        raise InvalidRequest({name: "is out of range"}) from None


_NAMES = {tensor.path: name for name, tensor in INPUTS.items() if tensor.path} | {
    "prompt": "text_input",
    "output.logprobs": "return_log_probs",
    "request_id": "id",
    "model": "model_name",
}


def translated(error: ServiceError) -> ServiceError:
    """Returns the error with the tensors' names for the fields."""
    if error.violations:
        error.violations = {_name(path): text for path, text in error.violations.items()}
        error.message = "; ".join(f"{name}: {text}" for name, text in error.violations.items())
    return error


def translated_text(message: str) -> str:
    """Returns an error's text with the tensors' names for the fields."""
    path, colon, rest = message.partition(": ")
    return f"{_name(path)}{colon}{rest}"


def _name(path: str) -> str:
    stem = path
    while stem:
        if stem in _NAMES:
            return _NAMES[stem] + path[len(stem) :]
        stem = stem[: max(stem.rfind("."), stem.rfind("["), 0)]
    return path


class TensorWriter:
    """Turns the messages of one request into answers."""

    def __init__(
        self, message: oip.ModelInferRequest, outputs: Sequence[str], model: str, version: str
    ) -> None:
        self._id = message.id
        self._outputs = outputs
        self._model = model
        self._version = version
        self._likelihood = 0.0

    def answer(self, response: generation_pb2.GenerateResponse) -> oip.ModelInferResponse:
        """Returns the answer for a message."""
        answer = self.empty()
        for output in response.sequences:
            self._likelihood += sum(output.logprobs.logprobs)
            for name in self._outputs:
                values = _WRITERS[name](output, self._likelihood)
                answer.outputs.add(name=name, datatype=OUTPUTS[name], shape=[len(values)])
                answer.raw_output_contents.append(_pack(OUTPUTS[name], values))
        return answer

    def empty(self) -> oip.ModelInferResponse:
        """Returns an answer without tensors."""
        return oip.ModelInferResponse(model_name=self._model, model_version=self._version, id=self._id)


Write = Callable[[generation_pb2.SequenceOutput, float], Sequence[Any]]
_WRITERS: Mapping[str, Write] = {
    "text_output": lambda output, _: [output.text.encode()],
    "finish_reason": lambda output, _: [_finish_word(output).encode()],
    "num_output_tokens": lambda output, _: [output.token_count],
    "cum_log_probs": lambda _, likelihood: [likelihood],
    "output_log_probs": lambda output, _: list(output.logprobs.logprobs),
}


def _finish_word(output: generation_pb2.SequenceOutput) -> str:
    return _FINISH_WORDS.get(output.finish.reason, "stop") if output.HasField("finish") else ""


def _pack(datatype: str, values: Sequence[Any]) -> bytes:
    if datatype == "BYTES":
        return b"".join(_LENGTH.pack(len(value)) + value for value in values)
    return struct.pack(f"<{len(values)}{_FORMATS[datatype][0]}", *values)
