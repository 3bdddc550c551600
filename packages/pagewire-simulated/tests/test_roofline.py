"""The formula against numbers worked out by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagewire.errors import StartupError
from pagewire_simulated.profiles import CPU, H200, INSTANT, Profile, find_profile
from pagewire_simulated.roofline import Roofline, _kv_use
from pagewire_simulated.weights import count_weights
from worker.families.registry import read_model_config

LLAMA_3_8B = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
}
LAYER = 218_103_808  # weights of one layer's matrices
HEAD = 525_336_576
KV = 131_072  # bytes of one token in all layers
OVERHEAD = 32 * 12.5e-6


@pytest.fixture
def make(tmp_path: Path) -> Any:
    """make(profile, value_bytes, **changes): a roofline of Llama-3-8B."""

    def make_roofline(profile: Profile = H200, value_bytes: int = 2, **changes: Any) -> Roofline:
        (tmp_path / "config.json").write_text(json.dumps(LLAMA_3_8B | changes))
        config = read_model_config(tmp_path)
        return Roofline(config, count_weights(config), value_bytes, profile)

    return make_roofline


def seconds(roofline: Roofline, rows: list[tuple[int, int]], num_sampled: int) -> float:
    """rows: (start, count) of each."""
    starts, counts = np.array(rows, np.int64).T
    return roofline.seconds(starts, counts, num_sampled)


def test_one_row_reads_all_weights_once(make: Any):
    """3.44 ms without launches: 15.0 GB of weights and 134 MB of KV at 4.4 TB/s."""
    expected = (2 * (32 * LAYER + HEAD) + 1024 * KV) / 4.4e12
    assert expected == pytest.approx(3.442e-3, rel=1e-3)
    assert seconds(make(), [(1023, 1)], 1) == pytest.approx(expected + OVERHEAD, rel=1e-12)


def test_many_rows_are_limited_by_arithmetic_and_by_their_kv(make: Any):
    """256 rows at 1,024 tokens: 4.86 ms of products and 7.81 ms of reading KV, one after the other."""
    expected = 2 * 256 * (32 * LAYER + HEAD) / 790e12 + 256 * 1024 * KV / 4.4e12
    assert expected == pytest.approx(12.67e-3, rel=1e-3)
    assert seconds(make(), [(1023, 1)] * 256, 256) == pytest.approx(expected + OVERHEAD, rel=1e-12)


def test_prefill(make: Any):
    """1,024 tokens: the head only for the last; a token at position p looks at p + 1 positions."""
    linear = (2 * 1024 * 32 * LAYER + 2 * HEAD) / 790e12
    attention = 4 * 32 * 128 * 32 * (1024 * 1025 // 2) / 790e12
    assert seconds(make(), [(0, 1024)], 1) == pytest.approx(linear + attention + OVERHEAD, rel=1e-12)


def test_chunks_look_at_as_much_as_the_whole(make: Any):
    """Attention of two chunks is that of one prefill; without samples the head is not read."""
    whole = seconds(make(), [(0, 2000)], 0)
    parts = seconds(make(), [(0, 1500)], 0) + seconds(make(), [(1500, 500)], 0)
    assert parts == pytest.approx(whole + OVERHEAD, rel=1e-12)
    tiny = seconds(make(), [(0, 1)], 0)
    assert tiny == pytest.approx((2 * 32 * LAYER + KV) / 4.4e12 + OVERHEAD, rel=1e-12)


def test_windows(make: Any):
    """Half of the layers see 100 tokens: a row at 1,023 reads 100 there; a chunk reads 99 more than
    it computes, and its tokens look at 100 positions each."""
    layers = {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True}
    roofline = make(**layers, sliding_window=100, max_window_layers=16)
    kv = KV // 2 * (1024 + 100)
    expected = (2 * (32 * LAYER + HEAD) + kv) / 4.4e12 + OVERHEAD
    assert seconds(roofline, [(1023, 1)], 1) == pytest.approx(expected, rel=1e-12)
    pairs = 16 * (50 * 50 + 50 * 51 // 2) + 16 * sum(min(p + 1, 100) for p in range(50, 100))
    assert roofline._attention(np.array([50]), np.array([50])) == pytest.approx(
        max(32 * 100 * (KV // 32) / 4.4e12, pairs * 4 * 32 * 128 / 790e12), rel=1e-12
    )
    pairs = 16 * (200 * 1000 + 200 * 201 // 2) + 16 * 200 * 100
    assert roofline._attention(np.array([1000]), np.array([200])) == pytest.approx(
        max(16 * (1200 + 299) * (KV // 32) / 4.4e12, pairs * 4 * 32 * 128 / 790e12), rel=1e-12
    )


@pytest.mark.parametrize("chunk", [1, 7, 100])
def test_chunks_of_attention(chunk: int):
    """What rows read and attend to, position by position."""
    rows = [(0, 1), (0, 23), (6, 1), (7, 8), (100, 300)]
    starts, counts = (np.array(side) for side in zip(*rows, strict=True))
    read, pairs = _kv_use(starts, counts, chunk, chunked=True)
    assert read == sum(start + count - start // chunk * chunk for start, count in rows)
    assert pairs == sum(p % chunk + 1 for start, count in rows for p in range(start, start + count))


def test_wide_numbers_move_twice_and_multiply_at_half_the_rate(make: Any):
    narrow, wide = make(), make(value_bytes=4)
    for rows, sampled in (([(7, 1)], 1), ([(0, 3000)], 1)):
        ours = seconds(wide, rows, sampled) - OVERHEAD
        assert ours == pytest.approx(2 * (seconds(narrow, rows, sampled) - OVERHEAD), rel=1e-12)


def test_other_machines(make: Any):
    weights = 2 * (32 * LAYER + HEAD)
    expected = (weights + KV) / 50e9 + 32 * 18e-6
    assert seconds(make(CPU), [(0, 1)], 1) == pytest.approx(expected, rel=1e-12)
    assert seconds(make(INSTANT), [(0, 4000)] * 9, 9) == 0


def test_profiles_by_name():
    assert find_profile("h200") is H200
    with pytest.raises(StartupError) as raised:
        find_profile("h2000")
    assert "'h2000'" in raised.value.why
    assert raised.value.todo == "use --profile h200, cpu, instant"
