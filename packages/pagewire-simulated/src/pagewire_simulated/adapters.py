"""Adapters without a model: two files of which only the bytes and the rank matter.

    digest     blake2b with 32 bytes, of adapter_config.json and adapter_model.safetensors, each behind its
               length

A row's tokens and states are a function of its adapter's digest and start; see pagewire_simulated.tokens and
pagewire_simulated.states.
"""

import json
from concurrent.futures import Future
from hashlib import blake2b
from pathlib import Path

from kernels.ops.attention.ragged import Integers
from pagewire.internal.v1 import worker_pb2
from worker.step.rows import require

FILES = "adapter_config.json", "adapter_model.safetensors"


class SimulatedAdapters:
    """A worker.executor.executor.AdapterLoader. Reading two small files takes no thread."""

    def __init__(self) -> None:
        self._held: dict[bytes, worker_pb2.AdapterLoaded] = {}

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._held

    @property
    def loaded(self) -> list[worker_pb2.AdapterLoaded]:
        return list(self._held.values())

    def load(self, order: worker_pb2.LoadAdapter) -> "Future[worker_pb2.AdapterLoaded]":
        answer: Future[worker_pb2.AdapterLoaded] = Future()
        try:
            loaded = read_adapter(Path(order.source))
            if order.digest and loaded.digest != order.digest:
                raise ValueError("its files are another adapter's now")
            if loaded.bytes > order.max_bytes:
                raise ValueError(f"takes {loaded.bytes} bytes, more than {order.max_bytes} (--lora-memory)")
            self._held[loaded.digest] = loaded
        except (OSError, ValueError) as error:
            problem = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            loaded = worker_pb2.AdapterLoaded(problem=problem)
        numbered = worker_pb2.AdapterLoaded(number=order.number)
        numbered.MergeFrom(loaded)
        answer.set_result(numbered)
        return answer

    def drop(self, digest: bytes) -> None:
        self._held.pop(digest, None)


def digest_of(config: bytes, weights: bytes) -> bytes:
    """Returns the digest of an adapter with these files."""
    digest = blake2b(digest_size=32)
    for part in (config, weights):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()


def read_adapter(folder: Path) -> worker_pb2.AdapterLoaded:
    """Returns what a folder holds. Raises OSError, ValueError."""
    config, weights = [(folder / name).read_bytes() for name in FILES]
    fields = json.loads(config)
    if not isinstance(fields, dict) or not isinstance(rank := fields.get("r"), int) or rank < 1:
        raise ValueError(f"{FILES[0]}: r must be a whole number of at least 1")
    return worker_pb2.AdapterLoaded(
        digest=digest_of(config, weights),
        rank=rank,
        bytes=len(weights),
        invocation_token_ids=fields.get("alora_invocation_tokens") or (),
        modules=sorted(fields.get("target_modules") or ()),
        base=fields.get("base_model_name_or_path") or "",
    )


class AdapterBound:
    """Refuses steps whose rows have more adapters than `most`; 0: any number. A RowFeature."""

    def __init__(self) -> None:
        self.most = 0
        self._digests: dict[int, bytes] = {}  # by row

    def add_row(self, row: int, new: worker_pb2.NewRow, prompt_ids: list[int], output_ids: list[int]) -> None:
        """Begins a row."""
        if new.HasField("adapter"):
            self._digests[row] = new.adapter.digest

    def fork_row(self, row: int, source_row: int, sequence_index: int) -> None:
        """Begins a row with the adapter of its source."""
        if source_row in self._digests:
            self._digests[row] = self._digests[source_row]

    def remove_row(self, row: int) -> None:
        """Ends a row."""
        self._digests.pop(row, None)

    def check(self, rows: Integers) -> None:
        """Raises PlanError for rows [R] that a step cannot have."""
        if self.most and self._digests:
            found = {self._digests[row] for row in rows.tolist() if row in self._digests}
            require(len(found) <= self.most, f"{len(found)} adapters in a step, more than {self.most}")
