"""The peers: what runs them, what they read, how to install them. All but our own service are optional."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
INSTALL = "BENCH_DIR={folder} benchmarks/versus/install.sh {what}"
PRELOADED = ("/usr/lib/*/libtcmalloc_minimal.so.4", "vllm/lib/libiomp5.so")
"""What vLLM asks for on a CPU: an allocator, and a runtime for its threads."""


class Missing(Exception):
    """A peer is not installed, or its model is not made. One line, with the command that does it."""


@dataclass(frozen=True)
class Peer:
    """Paths are below the folder of the peers; {model} is M1, M2, ..."""

    script: str
    install: str = ""
    """What install.sh makes it with."""
    python: str = ""
    """Of its environment; empty: this one."""
    weights: str = "bf16"
    model: str = "models/{model}"
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Hold:
    """What holds peers to an instruction set; paths are below the folder of the peers."""

    build: str
    """Of llama.cpp."""
    folder: str = ""
    """Of environments whose libraries are answered by ANSWERS when they ask about the CPU: held/hold.py."""
    environment: Mapping[str, str] = field(default_factory=dict)


HELD_TO = {
    "": Hold("build"),
    "avx2": Hold(
        "build-avx2",
        "held-avx2",
        {
            "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW,-AVX512DQ,-AVX512CD",
            "TORCHINDUCTOR_CPP_MARCH": "x86-64-v3",
            "TORCHINDUCTOR_CACHE_DIR": "{folder}/held-avx2/cache/inductor",
            "VLLM_CACHE_ROOT": "{folder}/held-avx2/cache/vllm",
        },
    ),
}
"""The C library copies by AVX-512 unless told not to, and what vLLM compiles must not be another set's."""

ANSWERS = "libanswer_cpuid.so"
THIS_PYTHON = "pagewire/bin/python"
"""Of the copy of this environment that can be held."""

LLAMA_CPP = {
    "LLAMA_CPP_LIB_PATH": "{folder}/llama.cpp/{build}/bin",
    "LD_LIBRARY_PATH": "{folder}/llama.cpp/{build}/bin",
}
VLLM = {
    "VLLM_CPU_KVCACHE_SPACE": "{cache_gb}",
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
    "VLLM_NO_USAGE_STATS": "1",
}


def _llama_cpp(weights: str, file: str) -> Peer:
    model = f"models/{{model}}-{file}.gguf"
    return Peer("run_llama_cpp.py", "llama.cpp", "llama.cpp/bin/python", weights, model, LLAMA_CPP)


def _vllm(dtype: str) -> Peer:
    return Peer("run_vllm.py", "vllm", "vllm/bin/python", environment=VLLM | {"PEER_DTYPE": dtype})


def _openvino(weights: str, file: str) -> Peer:
    model = f"models/{{model}}-openvino-{file}"
    return Peer("run_openvino.py", "openvino", "openvino/bin/python", weights, model)


def _transformers(dtype: str) -> Peer:
    return Peer("run_transformers.py", environment={"PEER_DTYPE": dtype})


PEERS = {
    "pagewire": Peer("run_pagewire.py"),
    "pagewire-multiplexed": Peer("run_pagewire_multiplexed.py"),
    "pagewire-int8": Peer("run_pagewire.py", weights="int8"),
    "pagewire-int4": Peer("run_pagewire.py", weights="int4"),
    "vllm": _vllm("bfloat16"),
    "vllm-float32": _vllm("float32"),
    "openvino": _openvino("bf16", "fp16"),
    "openvino-int8": _openvino("int8", "int8"),
    "llama.cpp": _llama_cpp("bf16", "bf16"),
    "llama.cpp-q8": _llama_cpp("int8", "q8_0"),
    "llama.cpp-q4_0": _llama_cpp("int4", "q4_0"),
    "llama.cpp-q4_K_M": _llama_cpp("int4", "q4_k_m"),
    "transformers": _transformers("bfloat16"),
    "transformers-float32": _transformers("float32"),
}
OURS = ("pagewire", "pagewire-multiplexed", "pagewire-int8", "pagewire-int4")


def command(name: str, folder: Path, model: str, held_to: str = "") -> tuple[list[str], Path]:
    """What starts a peer, but for its settings, and what it reads. Raises Missing."""
    peer = PEERS[name]
    python = folder / peer.python if peer.python else Path(sys.executable)
    data = folder / peer.model.format(model=model)
    if not (folder / "models" / model).exists():
        raise Missing(f"{model} is not there: python -m benchmarks.versus.models {folder / 'models'}")
    for needed in (python, data):
        if not needed.exists():
            how = INSTALL.format(folder=folder, what=peer.install)
            raise Missing(f"{name} is not installed ({needed} is missing): {how}")
    if held_to:
        python = _held(name, folder, held_to)
    return [str(python), str(HERE / "peers" / peer.script)], data


def environment(name: str, folder: Path, threads: int, cache_gb: int, held_to: str = "") -> dict[str, str]:
    """Returns the environment of a peer's process. Our own service gets that of an ordinary shell.

    held_to: a key of HELD_TO. Raises Missing.
    """
    peer, hold = PEERS[name], HELD_TO[held_to]
    around = dict(os.environ)
    if name not in OURS:
        around.pop("PYTHONPATH", None)
        around |= {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    for key, value in (*hold.environment.items(), *peer.environment.items()):
        around[key] = value.format(folder=folder, cache_gb=cache_gb, build=hold.build)
    preloaded = _preloaded(folder) if peer.install == "vllm" else []
    preloaded += [str(folder / hold.folder / ANSWERS)] if held_to else []
    return around | ({"LD_PRELOAD": ":".join(preloaded)} if preloaded else {})


def _held(name: str, folder: Path, held_to: str) -> Path:
    """Returns the Python of a peer that is held to an instruction set. Raises Missing."""
    peer, hold = PEERS[name], HELD_TO[held_to]
    python = folder / hold.folder / (peer.python or THIS_PYTHON)
    needed = {python: f"held-{held_to}", folder / hold.folder / ANSWERS: f"held-{held_to}"}
    if peer.environment is LLAMA_CPP:
        needed[folder / "llama.cpp" / hold.build] = f"llama.cpp-{held_to}"
    for path, what in needed.items():
        if not path.exists():
            how = INSTALL.format(folder=folder, what=what)
            raise Missing(f"{name} is not made for {held_to} ({path} is missing): {how}")
    return python


def _preloaded(folder: Path) -> list[str]:
    """Raises Missing: without these vLLM is a third slower, which would not be fair."""
    found = []
    for pattern in PRELOADED:
        root = Path("/") if pattern.startswith("/") else folder
        path = next(root.glob(pattern.lstrip("/")), None)
        if path is None:
            how = INSTALL.format(folder=folder, what="vllm")
            raise Missing(f"vllm lacks {pattern}, which it is faster with: {how}")
        found.append(str(path))
    return found
