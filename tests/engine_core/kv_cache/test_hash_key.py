"""What hashes of blocks are keyed by."""

from pathlib import Path
from typing import Any

import pytest

from engine_core.kv_cache.hash_key import hash_secret, read_key
from engine_core.kv_cache.prefix_cache import PrefixCache
from engine_core.scheduler.scheduler import Scheduler
from engine_core.startup import check_config, initialize_message
from pagewire.config import EngineConfig
from pagewire.errors import StartupError
from pagewire.internal.v1.engine_pb2 import ModelFacts
from pagewire.internal.v1.worker_pb2 import Initialize, KeptCache, Ready
from tests.engine_core.fakes import add_request, make

FACTS = {"architecture": "LlamaForCausalLM", "vocab_size": 512, "dtype": "bfloat16", "arithmetic": "avx2"}


def ready_of(kept_secret: bytes = b"", **facts: Any) -> Ready:
    return Ready(model=ModelFacts(**FACTS | facts), kept_cache=KeptCache(secret=kept_secret))


def key_file(path: Path, content: str = "k" * 64, mode: int = 0o600) -> str:
    path.write_text(f"{content}\n")
    path.chmod(mode)
    return str(path)


def first_hash(secret: bytes) -> bytes:
    scheduler = Scheduler(num_blocks=4, block_size=4, max_num_seqs=4, max_num_batched_tokens=10)
    cache: PrefixCache = scheduler.prefix_cache
    cache.secret = secret
    sequence = make(add_request(1, 9)).sequences[0]
    cache.find(sequence)
    return sequence.hashes[1]


def test_without_a_key_each_start_of_a_worker_has_its_own() -> None:
    one, other = (initialize_message(EngineConfig(model="demo")) for _ in range(2))
    assert first_hash(hash_secret(one, ready_of())) != first_hash(hash_secret(other, ready_of()))


def test_an_adopted_worker_keeps_its_own() -> None:
    assert hash_secret(Initialize(cache_secret=b"new"), ready_of(kept_secret=b"old")) == b"old"


def test_services_with_one_key_have_the_same_hashes(tmp_path: Path) -> None:
    path = key_file(tmp_path / "key")
    one, other = (initialize_message(EngineConfig(model="demo", prefix_cache_key=path)) for _ in range(2))
    assert one.cache_secret != other.cache_secret
    adopted = ready_of(kept_secret=b"of the other start")
    assert first_hash(hash_secret(one, ready_of())) == first_hash(hash_secret(other, adopted))
    third = Initialize(cache_key=read_key(key_file(tmp_path / "other", "l" * 64)), block_size=one.block_size)
    assert first_hash(hash_secret(one, ready_of())) != first_hash(hash_secret(third, ready_of()))


@pytest.mark.parametrize(
    "facts",
    [
        {"architecture": "Qwen3ForCausalLM"},
        {"vocab_size": 513},
        {"weight_bytes": 1},
        {"dtype": "float32"},
        {"quantization": "int8"},
        {"kv_cache_dtype": "fp8_e4m3"},
        {"arithmetic": "avx512"},
        {"implementation": "transformers 5"},
    ],
    ids=lambda facts: next(iter(facts)),
)
def test_other_keys_and_values_have_other_hashes(facts: dict[str, Any]) -> None:
    initialize = Initialize(cache_key=b"k" * 32, block_size=16)
    assert hash_secret(initialize, ready_of()) != hash_secret(initialize, ready_of(**facts))


@pytest.mark.parametrize("given", [{"block_size": 8}, {"config_overrides": '{"rope_theta": 5}'}], ids=str)
def test_other_flags_have_other_hashes(given: dict[str, Any]) -> None:
    one = Initialize(cache_key=b"k" * 32, block_size=16)
    other = Initialize(cache_key=b"k" * 32, **{"block_size": 16} | given)
    assert hash_secret(one, ready_of()) != hash_secret(other, ready_of())


def test_other_weights_have_other_hashes() -> None:
    initialize, one, other = Initialize(cache_key=b"k" * 32), ready_of(), ready_of()
    other.weights_digest = b"d" * 32
    assert hash_secret(initialize, one) != hash_secret(initialize, other)


def test_a_key_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    short, exposed = key_file(tmp_path / "short", "k" * 31), key_file(tmp_path / "exposed", mode=0o640)
    for path, why in (
        (short, "has 31 bytes, fewer than 32"),
        (exposed, "others may read"),
        (str(tmp_path / "none"), "No such file"),
        (str(tmp_path), "Is a directory"),
    ):
        with pytest.raises(StartupError, match="--prefix-cache-key") as refused:
            initialize_message(EngineConfig(model="demo", prefix_cache_key=path))
        assert why in refused.value.why, path


def test_a_key_without_a_cache_is_refused(tmp_path: Path) -> None:
    config = EngineConfig(model="demo", prefix_cache_key=key_file(tmp_path / "key"), no_prefix_cache=True)
    with pytest.raises(StartupError, match="--prefix-cache-key names blocks"):
        check_config(config)
