"""The content of recordings."""

import dataclasses
import zlib
from array import array
from pathlib import Path

import pytest

from engine_core.recording.file import open_recording
from engine_core.recording.recorder import COPIED, RecordedScheduler
from engine_core.request import Request
from pagewire.internal.v1.recording_pb2 import RecordedCall
from pagewire.ipc.columns import unpack_u32
from pagewire_replay.reader import RecordingReader, facts_of
from pagewire_replay.replay import Replay
from tests.engine_core.fake_beams import beam_search
from tests.engine_core.fakes import FakeWorker, Ledger, add_item, add_request, make, run

PROMPT = [701 + 7 * i % 291 for i in range(23)]


def record(path: Path, *, with_tokens: bool = False) -> tuple[list[RecordedCall], Ledger]:
    """Two requests with a common prefix, run to their ends."""
    recording = open_recording(path)
    settings = {"num_blocks": 64, "block_size": 4, "max_num_seqs": 8, "max_num_batched_tokens": 64}
    scheduler = RecordedScheduler(recording, with_tokens=with_tokens, **settings)
    worker, ledger = FakeWorker(64, 4), Ledger()
    for handle in (1, 2):
        scheduler.add(
            make(add_request(handle, PROMPT, n=2, max_tokens=9, tenant="acme", salt="a secret salt"))
        )
        run(scheduler, worker, ledger)
    recording.close()
    return list(RecordingReader(path)), ledger


def contents(path: Path) -> bytes:
    """The uncompressed bytes of all chunks."""
    data, rest = b"", path.read_bytes()[8:]
    while rest:
        length = int.from_bytes(rest[:4], "little")
        data, rest = data + zlib.decompress(rest[8 : 8 + length]), rest[8 + length :]
    return data


def holds(data: bytes, tokens: list[int]) -> bool:
    """Whether three of these tokens stand in a row, as a column or as protobuf varints."""
    for i in range(len(tokens) - 2):
        some = tokens[i : i + 3]
        varints = b"".join(bytes([token & 127 | 128, token >> 7]) for token in some)
        if array("I", some).tobytes() in data or varints in data:
            return True
    return False


def test_no_tokens_and_no_texts_by_default(tmp_path: Path):
    _, ledger = record(tmp_path / "without")
    _, _ = record(tmp_path / "with", with_tokens=True)
    without, with_tokens = contents(tmp_path / "without"), contents(tmp_path / "with")
    for tokens in (PROMPT, *ledger.tokens.values()):
        assert not holds(without, tokens)
        assert holds(with_tokens, tokens)
    for data in (without, with_tokens):
        assert b"secret" not in data and b"request-1" not in data and b"acme" in data


def test_equal_blocks_are_recognizable_but_not_across_recordings(tmp_path: Path):
    """Their hashes have a key that is not recorded."""

    def hashes(path: Path) -> list[bytes]:
        return [call.event.columns["hashes"] for call in record(path)[0] if call.event.name == "add"]

    first, second = hashes(tmp_path / "a"), hashes(tmp_path / "b")
    assert len(first[0]) == 8 * (len(PROMPT) // 4) and first[0] == first[1]
    assert first[0] != second[0]


def test_with_tokens_everything_is_there(tmp_path: Path):
    calls, ledger = record(tmp_path / "r", with_tokens=True)
    ends = [call.event for call in calls if call.event.name == "ended"]
    tokens = {(end.number, facts_of(end)["index"]): unpack_u32(end.columns["token_ids"]) for end in ends}
    assert tokens == ledger.tokens
    assert Replay(RecordingReader(tmp_path / "r")).run().difference is None


def test_all_that_scheduling_depends_on_is_recorded():
    """A new field of Request belongs to one of these sets: does scheduling depend on it?"""
    recorded = {
        *COPIED,
        "prompt",
        "eos_token_ids",
        "stop_token_ids",
        "cache_salt",
        "key",  # where it is a suspect
        "prompt_logprobs",  # of it, where it begins
        "beam_search",  # of it, how many, how many results and offers
        "parameters",  # of them, n, min_tokens, pooling, media, and whether there is a grammar
        "num_vector_values",
        "content_hashes",  # with the tokens, in hashes of blocks
    }
    names = {"frontend", "handle", "request_id", "trace_id", "group"}
    state = {"sequences", "forking", "num_live", "num_running", "num_preemptions", "num_made", "scheduled"}
    state |= {"num_paid", "row_error"}  # of its tenant's quota; from the worker, for the error
    state.add("history")  # for operators: no decision reads it
    state.add("holder")  # empty before it is scheduled; a core that records copies no blocks
    state.add("owner")  # for another call of it; its abort_at is deadline_at until set_deadline()
    assert {field.name for field in dataclasses.fields(Request)} == recorded | names | state


@pytest.mark.parametrize("num_blocks", [64, 14])
def test_what_beams_choose_is_recorded_but_no_token(tmp_path: Path, num_blocks: int):
    """Two searches with one prompt, of which one is preempted where the pool is small; then a request that
    goes on with a result, whose blocks it finds."""
    recording = open_recording(tmp_path / "r")
    settings = {"num_blocks": num_blocks, "block_size": 4, "max_num_seqs": 8, "max_num_batched_tokens": 64}
    scheduler = RecordedScheduler(recording, **settings)
    worker, ledger = FakeWorker(num_blocks, 4), Ledger()
    for handle in (1, 2):
        scheduler.add(make(add_request(handle, PROMPT[:9], n=2, max_tokens=9, beams=beam_search(3))))
    run(scheduler, worker, ledger)
    result = ledger.tokens[1, 0]
    scheduler.add(make(add_request(3, PROMPT[:9] + result, max_tokens=3)))
    run(scheduler, worker, ledger)
    recording.close()
    assert bool(scheduler.num_preemptions) == (num_blocks == 14)
    outcome = Replay(RecordingReader(tmp_path / "r")).run()
    assert outcome.difference is None and outcome.num_plans == scheduler.step
    assert outcome.figures.num_cached_tokens >= 8
    assert not any(holds(contents(tmp_path / "r"), tokens) for tokens in ledger.tokens.values())


@pytest.mark.parametrize("with_tokens", [False, True])
def test_images_are_recorded_without_their_bytes(tmp_path: Path, with_tokens: bool):
    """What is encoded and forgotten, and where chunks end for it, is replayed."""
    recording = open_recording(tmp_path / "r")
    settings = {"num_blocks": 20, "block_size": 4, "max_num_seqs": 8, "max_num_batched_tokens": 64}
    encoder = {"encoder_cache_tokens": 9, "max_num_encoder_tokens": 7}
    scheduler = RecordedScheduler(recording, with_tokens=with_tokens, **settings, **encoder)
    worker, ledger = FakeWorker(20, 4), Ledger()
    worker.encoder_capacity, worker.encoder_budget = 9, 7
    messages = [add_request(handle, PROMPT, max_tokens=9) for handle in (1, 2, 3)]
    for message in messages:
        add_item(message, range(6), b"a")
        add_item(message, range(8, 13), bytes([message.handle]))
        add_item(message, range(15, 21), b"a")
        scheduler.add(make(message))
    run(scheduler, worker, ledger)
    recording.close()
    assert sum(len(plan.forgotten_media) for plan in worker.plans) > 2
    outcome = Replay(RecordingReader(tmp_path / "r")).run()
    assert outcome.difference is None and outcome.num_plans == scheduler.step
    data = contents(tmp_path / "r")
    for item in messages[0].media:
        assert item.digest not in data and item.digest.hex().encode() not in data


def test_a_steady_batch_takes_few_bytes(tmp_path: Path):
    recording = open_recording(tmp_path / "r")
    settings = {"num_blocks": 600, "block_size": 16, "max_num_seqs": 256, "max_num_batched_tokens": 4096}
    scheduler = RecordedScheduler(recording, **settings)
    worker, ledger = FakeWorker(600, 16), Ledger()
    for handle in range(256):
        scheduler.add(make(add_request(handle, 3, max_tokens=13, ignore_eos=True)))
    run(scheduler, worker, ledger, steps=1)
    recording._flush()
    run(scheduler, worker, ledger, steps=10)
    before = recording._chunk.ByteSize()
    assert before < 10 * 60


@pytest.mark.parametrize("with_tokens", [False, True])
def test_a_sequence_that_ends_by_nan_ends_again(tmp_path: Path, with_tokens: bool):
    recording = open_recording(tmp_path / "r")
    settings = {"num_blocks": 64, "block_size": 4, "max_num_seqs": 8, "max_num_batched_tokens": 64}
    scheduler = RecordedScheduler(recording, with_tokens=with_tokens, **settings)
    worker, ledger = FakeWorker(64, 4), Ledger()
    scheduler.add(make(add_request(1, PROMPT, n=2, max_tokens=20, ignore_eos=True)))
    scheduler.add(make(add_request(2, PROMPT[:12], max_tokens=20, ignore_eos=True)))
    run(scheduler, worker, ledger, steps=4)
    plan = scheduler.schedule(0.0)
    worker.submit(plan)
    result = worker.collect()
    broken = result._replace(token_ids=[(1 << 32) - 1, *result.token_ids[1:]])
    (failed,) = scheduler.update(broken)
    assert failed.handle == 1
    run(scheduler, worker, ledger)
    recording.close()
    outcome = Replay(RecordingReader(tmp_path / "r")).run()
    assert outcome.difference is None and outcome.num_plans == scheduler.step
