"""Answers of the Open Inference Protocol: the messages of one request as tensors."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from frontend.validation.rules import MAX_ID_BYTES
from pagewire.v1 import generation_pb2
from pagewire_gateways.open_inference.tensors import pack
from pagewire_gateways.protos import open_inference_pb2 as oip

FINAL = "triton_final_response"
"""A parameter of each answer of a stream: whether it is the last."""
_FINISH_WORDS = {
    generation_pb2.FINISH_REASON_MAX_TOKENS: "length",
    generation_pb2.FINISH_REASON_CONTEXT_LENGTH: "length",
    generation_pb2.FINISH_REASON_TIME_LIMIT: "length",
    generation_pb2.FINISH_REASON_ABORTED: "abort",
}
OUTPUTS = {
    "text_output": "BYTES",
    "finish_reason": "BYTES",
    "num_output_tokens": "UINT32",
    "cum_log_probs": "FP32",
    "output_log_probs": "FP32",
}
"""Tensors of an answer."""


class TensorWriter:
    """Turns the messages of one request into answers."""

    def __init__(
        self, message: oip.ModelInferRequest, outputs: Sequence[str], model: str, version: str
    ) -> None:
        self._id = message.id[:MAX_ID_BYTES]  # a longer one is refused
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
                answer.raw_output_contents.append(pack(OUTPUTS[name], values))
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
