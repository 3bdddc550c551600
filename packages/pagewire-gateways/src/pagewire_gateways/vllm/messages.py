"""Messages of vllm.grpc.engine.VllmEngine, turned into ours and back."""

from collections.abc import Iterator
from typing import Any

from smg_grpc_proto import vllm_engine_pb2
from smg_grpc_proto.generated import common_pb2

from frontend.errors import InvalidRequest, Unsupported
from frontend.streams.stream import Stream
from pagewire.limits import MAX_MEDIA
from pagewire.v1 import generation_pb2, prompt_pb2

NAMES = {
    "inputs[0].token_ids.ids": "tokenized.input_ids",
    "inputs[0].token_ids": "tokenized.input_ids",
    "inputs[0]": "tokenized.input_ids",
    "prompt.token_ids.ids": "tokenized.input_ids",
    "prompt.token_ids": "tokenized.input_ids",
    "prompt.text": "text",
    "prompt.truncate_to": "sampling_params.truncate_prompt_tokens",
    "prompt": "input",
    "output.logprobs": "sampling_params.logprobs",
    "output.prompt_logprobs": "sampling_params.prompt_logprobs",
    "routing.data_parallel_rank": "data_parallel_rank",
    "prompt.media": "media_refs.items",
    **{f"prompt.media[{place}].uri": f"media_refs.items[{place}].url" for place in range(MAX_MEDIA)},
    "structured_output": "sampling_params",
    "sampling": "sampling_params",
    "stopping": "sampling_params",
}
"""Paths of our fields -> those of this wire."""
_NOT_HERE = (
    "kv_transfer_params",
    "kv_transfer_params_json",
    "mm_inputs",
    "extra_mm_inputs",
)
_FINISH_REASONS = {
    generation_pb2.FINISH_REASON_EOS: "stop",
    generation_pb2.FINISH_REASON_STOP: "stop",
    generation_pb2.FINISH_REASON_ABORTED: "abort",
}
"""Any other reason is a length."""


def read_request(request: Any) -> generation_pb2.GenerateRequest:
    """Returns the request in our words. Raises InvalidRequest, Unsupported with this wire's names."""
    given = {field.name for field, _ in request.ListFields()}
    if wrong := [name for name in _NOT_HERE if name in given]:
        raise Unsupported({name: "is not implemented yet" for name in wrong})
    asked = generation_pb2.GenerateRequest(request_id=request.request_id)
    if request.HasField("tokenized"):
        asked.prompt.token_ids.ids.extend(request.tokenized.input_ids)
    elif request.HasField("text"):
        asked.prompt.text = request.text
    else:
        raise InvalidRequest({"input": "is required"})
    if "media_refs" in given:
        _read_media(request, asked.prompt)
    if request.HasField("data_parallel_rank"):
        asked.routing.data_parallel_rank = _unsigned("data_parallel_rank", request.data_parallel_rank)
    asked.output.text = False
    asked.output.token_ids = True
    params = request.sampling_params
    _read_sampling(params, asked)
    _read_stopping(params, asked)
    _read_constraint(params, asked.structured_output)
    for name in ("logprobs", "prompt_logprobs"):
        if params.HasField(name):
            _read_logprobs(f"sampling_params.{name}", getattr(params, name), getattr(asked.output, name))
    if asked.output.HasField("prompt_logprobs"):
        asked.output.prompt_token_ids = True
    if params.HasField("truncate_prompt_tokens") and params.truncate_prompt_tokens != -1:
        asked.prompt.truncate_to = _unsigned(
            "sampling_params.truncate_prompt_tokens", params.truncate_prompt_tokens
        )
    return asked


def _read_media(request: Any, prompt: prompt_pb2.Prompt) -> None:
    """Adds images by URI, for the placeholders of token ids. Raises InvalidRequest and Unsupported."""
    if not request.HasField("tokenized"):
        raise InvalidRequest({"media_refs": "is of prompts that are tokenized"})
    for place, item in enumerate(request.media_refs.items):
        if item.modality not in (common_pb2.MODALITY_UNSPECIFIED, common_pb2.IMAGE):
            raise Unsupported({f"media_refs.items[{place}].modality": "is not served: only images are"})
        prompt.media.add(uri=item.url)


def _unsigned(path: str, value: int) -> int:
    if value < 0:
        raise InvalidRequest({path: f"must be at least 0, not {value}"})
    return value


def _read_sampling(params: Any, asked: generation_pb2.GenerateRequest) -> None:
    """0 stands for the neutral value where it is none itself: the wire cannot tell it from an absent one."""
    sampling = asked.sampling
    sampling.temperature = params.temperature if params.HasField("temperature") else 1.0
    sampling.top_p = params.top_p or 1.0
    sampling.top_k = params.top_k if params.top_k < 1 << 31 else 0  # -1 of a gateway, unsigned
    sampling.min_p = params.min_p
    sampling.typical_p = 1.0
    sampling.frequency_penalty = params.frequency_penalty
    sampling.presence_penalty = params.presence_penalty
    sampling.repetition_penalty = params.repetition_penalty or 1.0
    sampling.n = params.n or 1
    if params.HasField("seed"):
        sampling.seed = params.seed & ((1 << 64) - 1)
    for token, bias in params.logit_bias.items():
        sampling.logit_bias[_unsigned("sampling_params.logit_bias", token)] = bias


def _read_stopping(params: Any, asked: generation_pb2.GenerateRequest) -> None:
    stopping = asked.stopping
    if params.HasField("max_tokens"):
        stopping.max_tokens = params.max_tokens
    stopping.min_tokens = params.min_tokens
    stopping.stop.extend(params.stop)
    stopping.stop_token_ids.extend(params.stop_token_ids)
    stopping.ignore_eos = params.ignore_eos
    stopping.include_stop = params.include_stop_str_in_output
    asked.output.skip_special_tokens = params.skip_special_tokens


def _read_constraint(params: Any, structured: generation_pb2.StructuredOutput) -> None:
    match params.WhichOneof("constraint"):
        case "json_schema" | "regex" | "structural_tag" | "json_object" as name:
            setattr(structured, name, getattr(params, name))
        case "grammar":
            structured.grammar.text = params.grammar
            structured.grammar.syntax = generation_pb2.StructuredOutput.Grammar.SYNTAX_EBNF
        case "choice":
            structured.choice.values.extend(params.choice.choices)


def _read_logprobs(path: str, count: int, options: generation_pb2.LogprobOptions) -> None:
    options.SetInParent()
    if count == -1:
        options.all = True
    elif _unsigned(path, count):
        options.top_n = count


class AnswerWriter:
    """Turns a stream's messages into this wire's: what has arrived, and a complete message at each end."""

    def __init__(self, stream: Stream, *, chunks: bool) -> None:
        """chunks: also send what arrives before the end."""
        self._stream = stream
        self._chunks = chunks
        self._tokens: dict[int, list[int]] = {}
        self._prompt: Any = None
        """Log-probabilities of the prompt until they have been sent; None: they were not requested."""

    def responses(self, message: generation_pb2.GenerateResponse) -> Iterator[Any]:
        """Yields the messages for one of ours."""
        if len(message.prompt.logprobs.logprobs):
            self._prompt = _input_logprobs(message.prompt)
        usage = self._stream.usage()
        for output in message.sequences:
            tokens = self._tokens.setdefault(output.index, [])
            tokens.extend(output.token_ids)
            shared = {
                "index": output.index,
                "prompt_tokens": usage.prompt_tokens,
                "cached_tokens": usage.cached_prompt_tokens,
                "completion_tokens": len(tokens),
            }
            scores = _output_logprobs(output) if len(output.logprobs.logprobs) else None
            if self._chunks and output.token_ids:
                yield vllm_engine_pb2.GenerateResponse(
                    chunk=vllm_engine_pb2.GenerateStreamChunk(
                        token_ids=output.token_ids,
                        output_logprobs=scores,
                        input_logprobs=self._take_prompt(),
                        **shared,
                    )
                )
            if output.HasField("finish"):
                complete = vllm_engine_pb2.GenerateComplete(
                    output_ids=tokens,
                    finish_reason=_FINISH_REASONS.get(output.finish.reason, "length"),
                    output_logprobs=None if self._chunks else scores,
                    input_logprobs=self._take_prompt(),
                    **shared,
                )
                _put_matched(output.finish, complete)
                yield vllm_engine_pb2.GenerateResponse(complete=complete)

    def _take_prompt(self) -> Any:
        prompt, self._prompt = self._prompt, None
        return prompt


def _put_matched(finish: generation_pb2.Finish, complete: Any) -> None:
    if finish.reason != generation_pb2.FINISH_REASON_STOP:
        return  # the end-of-sequence token counts as no match
    if finish.HasField("token_id"):
        complete.matched_token_id = finish.token_id
    elif finish.HasField("stop"):
        complete.matched_stop_str = finish.stop


def _output_logprobs(output: generation_pb2.SequenceOutput) -> Any:
    return vllm_engine_pb2.OutputLogProbs(
        token_logprobs=output.logprobs.logprobs,
        token_ids=output.token_ids,
        top_logprobs=_candidates(output.logprobs),
    )


def _input_logprobs(prompt: generation_pb2.PromptInfo) -> Any:
    scores = [
        vllm_engine_pb2.InputTokenLogProb(value=value if place else None)
        for place, value in enumerate(prompt.logprobs.logprobs)
    ]
    return vllm_engine_pb2.InputLogProbs(
        token_logprobs=scores, token_ids=prompt.token_ids, top_logprobs=_candidates(prompt.logprobs)
    )


def _candidates(logprobs: generation_pb2.TokenLogprobs) -> Iterator[Any]:
    start = 0
    for count in logprobs.candidate_counts:
        end = start + count
        yield vllm_engine_pb2.TopLogProbs(
            values=logprobs.candidate_logprobs[start:end], token_ids=logprobs.candidate_token_ids[start:end]
        )
        start = end
