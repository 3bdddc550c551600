"""Adapters without a model: two files of which only the bytes and the rank matter.

    digest     blake2b with 32 bytes, of adapter_config.json and adapter_model.safetensors, each behind its
               length

A row's tokens are a function of its adapter's digest and start; see pagewire_simulated.tokens.
"""

import json
from concurrent.futures import Future
from hashlib import blake2b
from pathlib import Path

from pagewire.internal.v1 import worker_pb2

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


def read_adapter(folder: Path) -> worker_pb2.AdapterLoaded:
    """Returns what a folder holds. Raises OSError, ValueError."""
    config, weights = [(folder / name).read_bytes() for name in FILES]
    digest = blake2b(digest_size=32)
    for part in (config, weights):
        digest.update(len(part).to_bytes(8, "little") + part)
    fields = json.loads(config)
    if not isinstance(fields, dict) or not isinstance(rank := fields.get("r"), int) or rank < 1:
        raise ValueError(f"{FILES[0]}: r must be a whole number of at least 1")
    return worker_pb2.AdapterLoaded(
        digest=digest.digest(),
        rank=rank,
        bytes=len(weights),
        invocation_token_ids=fields.get("alora_invocation_tokens") or (),
        modules=sorted(fields.get("target_modules") or ()),
        base=fields.get("base_model_name_or_path") or "",
    )
