"""The frontend's metrics beside its counters, and the lag of its event loop."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from frontend.parts import FrontendParts
from frontend.telemetry.counters import Counters
from pagewire.telemetry.figures import Histogram, Key, Metric, Reading, metrics_of
from pagewire.telemetry.pages import Answer, Page, merged_metrics, sockets_in
from pagewire.telemetry.watch import PORT, Watch

_LOOK_S = 0.25


READINGS: tuple[Reading[FrontendParts], ...] = (
    Reading(
        Metric("pagewire_frontend_serving", "gauge", "1: new requests are accepted."),
        lambda parts: float(parts.state.serves),
    ),
    Reading(
        Metric("pagewire_frontend_streams", "gauge", "Requests in flight."),
        lambda parts: len(parts.generator.registry),
    ),
    Reading(
        Metric("pagewire_frontend_streams_waiting", "gauge", "Of these, waiting for a core."),
        lambda parts: parts.engine.journal.num_waiting,
    ),
    Reading(
        Metric(
            "pagewire_frontend_prompt_bytes", "gauge", "Bytes of prompts that are kept to resume requests."
        ),
        lambda parts: parts.engine.journal.num_bytes,
    ),
    Reading(
        Metric(
            "pagewire_frontend_merge_delay_seconds",
            "gauge",
            "Time between the messages of a stream while the event loop lags; 0: it keeps up.",
        ),
        lambda parts: parts.generator.pacer.delay,
    ),
    Reading(
        Metric("pagewire_frontend_resumes_total", "counter", "Requests resent to a core."),
        lambda parts: parts.engine.journal.num_resent,
    ),
    Reading(
        Metric(
            "pagewire_frontend_handovers_total",
            "counter",
            "Requests that went from a core that computes prompts to one that decodes (--role).",
        ),
        lambda parts: parts.engine.journal.num_handed_over,
    ),
    Reading(
        Metric("pagewire_frontend_engines", "gauge", "Engine cores that accept requests."),
        lambda parts: sum(core.serves for core in parts.engine.cores),
    ),
    Reading(
        Metric("pagewire_frontend_calls", "gauge", "Calls that count against --max-concurrent-requests."),
        lambda parts: parts.limits.num_calls,
    ),
    Reading(
        Metric(
            "pagewire_frontend_tokenizing_bytes",
            "gauge",
            "Bytes of requests whose prompts are being tokenized.",
        ),
        lambda parts: parts.limits.num_bytes,
    ),
    Reading(
        Metric("pagewire_frontend_tokenizer_waiting", "gauge", "Jobs that wait for a tokenizer thread."),
        lambda parts: parts.prompts.jobs.turns.num_waiting,
    ),
    Reading(
        Metric(
            "pagewire_frontend_full_total",
            "counter",
            "Calls rejected by a limit: calls, streams, request_streams, controls, bytes or media.",
            ("what",),
        ),
        lambda parts: parts.limits.refused,
    ),
    Reading(
        Metric(
            "pagewire_frontend_protocol_errors_total", "counter", "Inconsistent messages from engine cores."
        ),
        lambda parts: parts.engine.protocol_errors,
    ),
    Reading(
        Metric(
            "pagewire_model_info",
            "gauge",
            "1; which model is served.",
            ("model_name", "dtype", "quantization", "max_model_len"),
        ),
        lambda parts: _model_info(parts),
    ),
)


def _model_info(parts: FrontendParts) -> Mapping[Key, float]:
    """Returns 1 by the model's name, dtype, quantization and context, once an engine core has said them."""
    if (facts := parts.engine.facts) is None:
        return {}
    model = facts.model
    return {(parts.model.name, model.dtype, model.quantization, str(model.max_model_len)): 1.0}


METRICS = (*metrics_of(Counters), *(each.metric for each in READINGS))
"""Every metric of a frontend, for docs/metrics.md."""


class FrontendWatch:
    """Serves a frontend's metrics and health over HTTP from start() to close()."""

    def __init__(self, parts: FrontendParts) -> None:
        self._watch = Watch(parts.config, "frontend")
        self._watch.board.add_counters(parts.counters)
        self._watch.board.add_readings(parts, READINGS)
        if parts.config.metrics_names == "vllm":
            self._watch.board.add_vllm_names(model_name=parts.model.name)
        self._state = parts.state
        self._socket = parts.config.http_socket
        self._lag_seconds = parts.counters.loop_lag_seconds
        self._default_port = PORT if parts.config.port else 0
        self._looking: asyncio.Task[None] | None = None

    @property
    def facts(self) -> dict[str, str]:
        """Facts for the ready line."""
        return self._watch.facts

    async def metrics(self, accept: str) -> Page:
        """Returns the metrics of all processes under the same supervisor but itself, or of this process
        alone. accept: the request's Accept header."""
        own = await asyncio.to_thread(self._watch.pages.metrics, accept)
        if not self._socket:
            return own
        others = [path for path in sockets_in(Path(self._socket).parent) if path != Path(self._socket)]
        return await merged_metrics(own, others, accept)

    def start(self) -> None:
        """Starts serving HTTP; call it on the event loop that is measured. Raises StartupError."""
        loop = asyncio.get_running_loop()

        def ask(answer: Answer) -> None:  # in another thread
            loop.call_soon_threadsafe(lambda: answer(self._state.serves))

        self._watch.pages.begin(ask)
        self._watch.open(self._default_port)
        self._looking = asyncio.create_task(watch_loop(self._lag_seconds), name="loop lag")

    def close(self) -> None:
        """Stops serving. Idempotent."""
        if self._looking is not None:
            self._looking.cancel()
        self._watch.close()


async def watch_loop(lag_seconds: Histogram) -> None:
    """Measures the event loop's lag until it is cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + _LOOK_S
        await asyncio.sleep(_LOOK_S)
        lag_seconds.observe(max(loop.time() - due, 0.0))
