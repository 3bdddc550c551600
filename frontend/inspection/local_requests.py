"""What this frontend knows of its own requests, beyond what the engine cores do."""

import time
from collections.abc import Collection

from frontend.engine.client import EngineClient
from frontend.streams.request_registry import RegisteredRequest, RequestRegistry
from pagewire.v1 import inspection_pb2 as pb

_MEASURED_HERE = (pb.REQUEST_PHASE_PREFILL, pb.REQUEST_PHASE_DECODE, pb.REQUEST_PHASE_FINISHING)


class LocalRequests:
    """The requests of this frontend; their ids are the engine's."""

    def __init__(self, registry: RequestRegistry, engine: EngineClient) -> None:
        self._registry = registry
        self._engine = engine

    def refine(self, info: pb.RequestInfo) -> None:
        """Adds to what a core says of a request what only this frontend measures, if it is one of its own."""
        entry = self._registry.find(info.request_id)
        if entry is None or entry.timings is None or entry.stream is None:
            return
        if entry.stream.ended:
            info.phase = pb.REQUEST_PHASE_FINISHING
            info.waits_for = pb.WAIT_CAUSE_UNSPECIFIED
        if info.phase in _MEASURED_HERE:
            info.timings.CopyFrom(entry.timings.timings(time.monotonic_ns()))

    def without_core(self, tenant: str | None, known: Collection[str]) -> list[pb.RequestInfo]:
        """Returns the requests that no core has, in order of arrival: before, after and between cores.

        tenant: of this one; None: of all. known: ids that a core has named.
        """
        return [
            self._describe(name, entry, phase)
            for name, entry in self._registry.items()
            if name not in known
            and (tenant is None or entry.tenant == tenant)
            and (phase := self._phase(entry)) is not None
        ]

    def find(self, engine_id: str) -> pb.RequestInfo | None:
        """Returns a request that no core has."""
        entry = self._registry.find(engine_id)
        if entry is None or entry.members or (phase := self._phase(entry)) is None:
            return None
        return self._describe(engine_id, entry, phase)

    def _phase(self, entry: RegisteredRequest) -> pb.RequestPhase | None:
        """Returns where a request is; None: with a core."""
        if entry.stream is None or entry.ticket is None:
            return pb.REQUEST_PHASE_ARRIVING
        if entry.stream.ended:
            return pb.REQUEST_PHASE_FINISHING
        return pb.REQUEST_PHASE_WITHOUT_ENGINE if self._engine.waits(entry.ticket) else None

    def _describe(self, engine_id: str, entry: RegisteredRequest, phase: pb.RequestPhase) -> pb.RequestInfo:
        info = pb.RequestInfo(
            request_id=engine_id,
            tenant=entry.tenant,
            priority=entry.priority,
            phase=phase,
            frontend=self._engine.identity.hex(),
        )
        if phase == pb.REQUEST_PHASE_WITHOUT_ENGINE:
            info.waits_for = pb.WAIT_CAUSE_ENGINE
        if entry.timings is not None:
            info.timings.CopyFrom(entry.timings.timings(time.monotonic_ns()))
            info.age.CopyFrom(info.timings.total)
        if entry.stream is not None:
            usage = entry.stream.usage()
            info.prompt_tokens, info.cached_prompt_tokens = usage.prompt_tokens, usage.cached_prompt_tokens
            info.output_tokens = usage.completion_tokens
            info.sequences = entry.stream.num_open
        return info
