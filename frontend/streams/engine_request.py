"""What a frontend sends to an engine core for a request, and how its stream delivers the answer. Pure."""

from frontend.auth.caller import Caller
from frontend.engine.logprobs import PromptScores
from frontend.prompts.prompt_encoding import TokenizedPrompt
from frontend.streams.identity import RequestIdentity
from frontend.streams.stream import DeliveryMode
from frontend.validation.defaults import Resolved
from pagewire.internal.v1 import engine_pb2
from pagewire.ipc.columns import pack_u32
from pagewire.v1 import generation_pb2

FINAL = generation_pb2.OutputOptions.MODE_FINAL


def delivery_of(output: generation_pb2.OutputOptions, whole: bool, resolved: Resolved) -> DeliveryMode:
    """Returns when messages are made. whole: one message, regardless of the mode."""
    return DeliveryMode(
        final_only=whole or output.mode == FINAL or resolved.is_choice,
        interval=output.stream_interval if output.HasField("stream_interval") else 1,
        continuous_usage=output.continuous_usage,
        timings=output.timings,
        num_returned=resolved.num_returned if resolved.is_choice else None,
    )


def add_request(
    request: generation_pb2.GenerateRequest,
    identity: RequestIdentity,
    prompt: TokenizedPrompt,
    resolved: Resolved,
    prompt_scores: PromptScores | None,
) -> engine_pb2.AddRequest:
    """Returns the message for the core, without tenant, deadline, trace, bad words and grammar."""
    wants_logprobs = resolved.is_choice or request.output.HasField("logprobs")
    message = engine_pb2.AddRequest(
        request_id=identity.engine_id,
        content_digest=identity.content,
        prompt_token_ids=pack_u32(prompt.token_ids),
        sampling=resolved.sampling,
        stopping=resolved.stopping,
        priority=request.priority,
        cache_salt=request.cache.salt,
        cache_bypass=request.cache.bypass,
        logprobs=request.output.logprobs if wants_logprobs else None,
    )
    if request.speculation.HasField("max_draft_tokens"):
        message.max_draft_tokens = request.speculation.max_draft_tokens
    if prompt_scores is not None and prompt_scores.missing is not None:
        message.prompt_logprobs.CopyFrom(request.output.prompt_logprobs)
        message.prompt_logprobs_start = prompt_scores.missing
    return message


def put_tenant(message: engine_pb2.AddRequest, tenant: str, caller: Caller) -> None:
    """Writes the tenant, and what the caller's token allows it."""
    message.tenant = tenant
    if caller.terms is not None:
        message.tenant_terms.weight = caller.terms.weight
        message.tenant_terms.max_requests = caller.terms.max_requests
        message.tenant_terms.max_tokens_per_minute = caller.terms.max_tokens_per_minute
        message.tenant_terms.max_sequences = caller.terms.max_sequences
