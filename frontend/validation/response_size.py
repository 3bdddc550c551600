"""Checks whether a response with log-probabilities can be sent: a message holds at most 64 MiB.

A slow reader's stream is cut into messages of one sequence at least; a response in one message has all
sequences. Both are checked by their maximum size, before anything is computed.
"""

from frontend.errors import InvalidRequest
from frontend.validation.defaults import Resolved
from frontend.validation.rules import num_candidates
from pagewire.ipc.logprob_columns import MAX_OUTPUT_VALUES
from pagewire.v1 import generation_pb2


def check_answer_size(
    request: generation_pb2.GenerateRequest,
    resolved: Resolved,
    *,
    prompt_len: int,
    vocab_size: int,
    max_model_len: int,
    in_one_message: bool,
) -> None:
    """Raises InvalidRequest when log-probabilities may exceed a message.

    A token has its own and its candidates' log-probability; with bytes each counts twice. (Those of a prompt
    have a limit of their own: see frontend/engine/logprobs.py.)
    """
    output = request.output
    if not output.HasField("logprobs"):
        return
    most = min(resolved.stopping.max_tokens, max_model_len - prompt_len)
    each = (1 + num_candidates(output.logprobs, vocab_size)) * (2 if output.token_bytes else 1)
    sequences = resolved.num_returned if in_one_message else 1
    prompt = 0
    if output.HasField("prompt_logprobs"):
        positions = prompt_len - output.prompt_logprobs_start
        prompt = positions * num_candidates(output.prompt_logprobs, vocab_size)
    total = sequences * most * each + prompt
    if total <= MAX_OUTPUT_VALUES:
        return
    what = f"of {sequences} x {most} tokens" if in_one_message else f"of {most} tokens"
    problem = (
        f"{what} and the prompt may be {total} values in one message, more than {MAX_OUTPUT_VALUES}:"
        " set stopping.max_tokens, or ask for fewer candidates"
    )
    raise InvalidRequest({"output.logprobs": problem})
