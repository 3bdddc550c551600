"""Requests of the Open Inference Protocol: tensors with names become a GenerateRequest.

Names and types are those of Triton's backends for language models (TensorRT-LLM's ensemble and vLLM).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from frontend.errors import InvalidRequest, Unsupported
from frontend.validation.json_objects import read_object
from frontend.validation.rules import identifier_problem
from pagewire.v1 import generation_pb2
from pagewire_gateways.open_inference.responses import OUTPUTS
from pagewire_gateways.open_inference.tensors import holds, read_tensors
from pagewire_gateways.protos import open_inference_pb2 as oip

Request = generation_pb2.GenerateRequest
MAX_PARAMETERS = 64
"""Of a request; far fewer have a meaning."""
MAX_OBJECT_CHARACTERS = 1 << 16
"""Of sampling_parameters, which are parsed at once."""
EMPTY_FINAL = "triton_enable_empty_final_response"


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
NAMES = {tensor.path: name for name, tensor in INPUTS.items() if tensor.path} | {
    "prompt": "text_input",
    "output.logprobs": "return_log_probs",
    "request_id": "id",
    "model": "model_name",
}
"""Paths of our fields -> the tensors, parameters and fields that set them."""
_ALIASES = {"stop": "stop_words", "seed": "random_seed", "min_length": "min_tokens"}
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
    if len(message.parameters) > MAX_PARAMETERS:
        raise InvalidRequest({"parameters": f"must be at most {MAX_PARAMETERS}"})
    asked = Asked(Request(model=message.model_name), outputs)
    for name, values in read_tensors(message):
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
    if not all(holds(tensor.datatype, value) for value in values):
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
            if len(value) > MAX_OBJECT_CHARACTERS:
                raise InvalidRequest({name: f"must be at most {MAX_OBJECT_CHARACTERS} characters"})
            for inner, content in read_object(value, name).items():
                if content is not None:
                    _put_parameter(asked, inner, content)


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
