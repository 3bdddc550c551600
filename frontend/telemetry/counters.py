"""The frontend's counters."""

from collections import Counter
from dataclasses import dataclass

from pagewire.telemetry.figures import (
    MOST_NAMES,
    OTHERS,
    REQUEST_SECONDS,
    TOKEN_SECONDS,
    TOKENS,
    Histogram,
    Key,
    counter,
    counters,
    histogram,
    histograms,
)

Rpc = tuple[str, str, str]
"""Values of the labels grpc_type, grpc_service and grpc_method."""
_RPC = ("grpc_type", "grpc_service", "grpc_method")


@dataclass(slots=True)
class Counters:
    """Counts since the start. A new metric is one line here and one row in docs/metrics.md."""

    started: Counter[Rpc] = counters("grpc_server_started_total", "Calls that have begun.", *_RPC)
    handled: Counter[tuple[str, str, str, str]] = counters(
        "grpc_server_handled_total", "Calls that have ended, by status.", *_RPC, "grpc_code"
    )
    handling: dict[Key, Histogram] = histograms(
        "grpc_server_handling_seconds", "From the first to the last of a call.", *_RPC
    )
    abandoned: int = counter(
        "pagewire_frontend_calls_abandoned_total",
        "Calls that ended before their request was received: reset by the client, or too slow.",
    )
    http_requests: Counter[tuple[str, str]] = counters(
        "pagewire_frontend_http_requests_total",
        "Requests to the OpenAI API that are over, by path and status; 499: the client went away.",
        "path",
        "status",
    )
    outcomes: Counter[str] = counters(
        "pagewire_frontend_requests_total",
        "Requests to generate that are over: finished, refused (before their first message), failed,"
        " cancelled (the client went away).",
        "outcome",
    )
    refusals: Counter[str] = counters(
        "pagewire_frontend_refusals_total", "Requests that were refused, by ErrorInfo.reason.", "reason"
    )
    failures: Counter[str] = counters(
        "pagewire_frontend_failures_total", "Streams that broke off, by ErrorInfo.reason.", "reason"
    )
    finishes: Counter[str] = counters(
        "pagewire_frontend_sequences_finished_total", "Sequences that have ended, by FinishReason.", "reason"
    )
    prompt_tokens: int = counter("pagewire_frontend_prompt_tokens_total", "Tokens of prompts.")
    cached_tokens: int = counter(
        "pagewire_frontend_cached_prompt_tokens_total", "Of these: found in the prefix cache."
    )
    generated_tokens: int = counter(
        "pagewire_frontend_generated_tokens_total", "Tokens that were sent to clients, counted by message."
    )
    adapter_requests: Counter[str] = counters(
        "pagewire_frontend_adapter_requests_total",
        "Requests with an adapter that are over, unless they were refused; 20 adapters, and all others.",
        "adapter",
    )
    adapter_tokens: Counter[tuple[str, str]] = counters(
        "pagewire_frontend_adapter_tokens_total",
        "Tokens of these requests: of prompts, and generated.",
        *("adapter", "kind"),
    )
    messages: int = counter(
        "pagewire_frontend_messages_total",
        "Messages that these were sent in.",
    )
    continuations: int = counter(
        "pagewire_frontend_continuations_total", "Requests that continue a stream of another frontend."
    )
    request_seconds: Histogram = histogram(
        "pagewire_frontend_request_seconds", "From arrival to the last token.", REQUEST_SECONDS
    )
    first_token_seconds: Histogram = histogram(
        "pagewire_frontend_time_to_first_token_seconds", "From arrival to the first token.", REQUEST_SECONDS
    )
    inter_token_seconds: Histogram = histogram(
        "pagewire_frontend_inter_token_seconds",
        "Between two tokens of a sequence; those of one message share its time.",
        TOKEN_SECONDS,
    )
    preprocess_seconds: Histogram = histogram(
        "pagewire_frontend_preprocess_seconds", "Validating and tokenizing.", REQUEST_SECONDS
    )
    queue_seconds: Histogram = histogram(
        "pagewire_frontend_queue_seconds", "From sending to the first scheduling.", REQUEST_SECONDS
    )
    prefill_seconds: Histogram = histogram(
        "pagewire_frontend_prefill_seconds", "From the first scheduling to the first token.", REQUEST_SECONDS
    )
    decode_seconds: Histogram = histogram(
        "pagewire_frontend_decode_seconds",
        "From the first token to the last one, without pauses by preemption.",
        REQUEST_SECONDS,
    )
    wait_seconds: dict[Key, Histogram] = histograms(
        "pagewire_frontend_wait_seconds",
        "What requests waited for: causes of Timings.waits, and preempted. Only requests that waited for it.",
        "cause",
    )
    request_prompt_tokens: Histogram = histogram(
        "pagewire_frontend_request_prompt_tokens", "Of a request.", TOKENS
    )
    request_generated_tokens: Histogram = histogram(
        "pagewire_frontend_request_generated_tokens", "Of a request, all sequences together.", TOKENS
    )
    loop_lag_seconds: Histogram = histogram(
        "pagewire_frontend_loop_lag_seconds",
        "How much later than planned the event loop comes around, looked at four times a second.",
        TOKEN_SECONDS,
    )

    def count_adapter(self, name: str, prompt_tokens: int, generated_tokens: int) -> None:
        """Counts a request with an adapter. A further name than MOST_NAMES has the slot of the one with the
        fewest requests, whose counts go to OTHERS: these only grow."""
        requests, tokens = self.adapter_requests, self.adapter_tokens
        if name not in requests and len(requests.keys() - {OTHERS}) >= MOST_NAMES:
            least = min(requests.keys() - {OTHERS}, key=lambda each: (requests[each], each))
            requests[OTHERS] += requests.pop(least)
            for kind in ("prompt", "generated"):
                tokens[OTHERS, kind] += tokens.pop((least, kind))
        requests[name] += 1
        tokens[name, "prompt"] += prompt_tokens
        tokens[name, "generated"] += generated_tokens
