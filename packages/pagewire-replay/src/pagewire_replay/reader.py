"""Reads recordings, which engine_core/recording/ writes; recording.proto specifies the file."""

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from engine_core.kv_cache.host_swap import SwapCosts
from engine_core.queue.token_counters import Weights
from engine_core.recording.file import FORMAT, HEADER, MAGIC
from engine_core.recording.plans import FIELDS, Columns
from engine_core.recording.recorder import HASH_BYTES
from engine_core.scheduler.planning.step_batch import first_numbers
from pagewire.errors import PagewireError
from pagewire.internal.v1.recording_pb2 import (
    RecordedCall,
    RecordedChunk,
    RecordedEvent,
    RecordedPlan,
    RecordingStart,
)
from pagewire.ipc.columns import unpack_u32

MAX_CHUNK_BYTES = 1 << 30
_CLASSES: dict[str, Any] = {"swap_costs": SwapCosts, "weights": Weights}


class BadRecording(PagewireError):
    """A file is not a recording, or cannot be replayed."""


class RecordingReader:
    """The calls of a recording; can be iterated over repeatedly."""

    def __init__(self, path: Path) -> None:
        """Raises BadRecording if the file cannot be read at all."""
        self.path = path
        self.incomplete = ""
        """After an iteration: why the recording is cut off; empty: it is complete."""
        try:
            with path.open("rb") as file:
                if file.read(len(MAGIC)) != MAGIC:
                    raise BadRecording(f"{path} is not a recording")
        except OSError as error:
            raise BadRecording(f"cannot read {path}: {error.strerror}") from error

    def __iter__(self) -> Iterator[RecordedCall]:
        """Yields calls, as far as they can be read."""
        self.incomplete = ""
        with self.path.open("rb") as file:
            file.seek(len(MAGIC))
            while header := file.read(HEADER.size):
                offset = file.tell() - len(header)
                if len(header) < HEADER.size:
                    self.incomplete = f"it ends within the chunk at byte {offset}"
                    return
                length, checksum = HEADER.unpack(header)
                payload = file.read(length) if length <= MAX_CHUNK_BYTES else b""
                if len(payload) < length <= MAX_CHUNK_BYTES:
                    self.incomplete = f"it ends within the chunk at byte {offset}"
                    return
                chunk = _read_chunk(payload) if zlib.crc32(payload) == checksum else None
                if chunk is None:
                    self.incomplete = f"the chunk at byte {offset} is damaged"
                    return
                yield from chunk.calls


def _read_chunk(payload: bytes) -> RecordedChunk | None:
    """Returns None if the bytes are not those of a chunk."""
    unpacker = zlib.decompressobj()
    try:
        return RecordedChunk.FromString(unpacker.decompress(payload, MAX_CHUNK_BYTES))
    except (zlib.error, DecodeError):
        return None


def read_start(recording: RecordingReader) -> RecordingStart:
    """Returns the first call of a recording. Raises BadRecording."""
    first = next(iter(recording), RecordedCall())
    if not first.HasField("start"):
        raise BadRecording(f"{recording.path} holds no call: {recording.incomplete or 'it is empty'}")
    if first.start.format != FORMAT:
        raise BadRecording(
            f"{recording.path} has format {first.start.format}, this is for format {FORMAT}:"
            f" it was written by pagewire {first.start.version}"
        )
    return first.start


def facts_of(event: RecordedEvent) -> dict[str, Any]:
    """Returns the facts of an event by name."""
    return json.loads(event.facts) if event.facts else {}


def read_settings(text: str) -> dict[str, Any]:
    """Returns the keyword arguments of the recorded Scheduler, from RecordingStart.settings."""
    settings: dict[str, Any] = json.loads(text)
    return {name: _CLASSES[name](**value) if name in _CLASSES else value for name, value in settings.items()}


def read_hashes(column: bytes, first: int = 0) -> dict[int, bytes]:
    """Returns the hashes of a column by block. first: the block of the first one."""
    size = HASH_BYTES
    return {first + i // size: column[i : i + size] for i in range(0, len(column), size)}


class PlanReader:
    """Reads what a PlanWriter has written, plan after plan."""

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._ends: list[int] = []

    def read(self, record: RecordedPlan) -> Columns:
        """Returns the columns of a plan, equal to those of columns_of().

        `starts` is empty where the file has only its sum and the sum does not match.
        """
        columns: Columns = {"step": [record.step]}
        if not record.step:
            return columns
        written = {each.field: unpack_u32(each.values) for each in record.columns}
        columns |= {name: written.get(field, []) for name, field in FIELDS.items()}
        if goes_on := record.HasField("starts_sum"):
            columns["rows"], columns["starts"] = self._rows, self._ends
        rows = self._rows = columns["rows"]
        counts = columns["counts"] = columns["counts"] or [1] * len(rows)
        samples = columns["sample_rows"] = written.get(FIELDS["sample_rows"], rows)
        columns["sample_sources"] = columns["sample_sources"] or first_numbers(len(samples))
        self._ends = [start + count for start, count in zip(columns["starts"], counts, strict=True)]
        if goes_on and sum(columns["starts"]) != record.starts_sum:
            columns["starts"] = []
        return columns
