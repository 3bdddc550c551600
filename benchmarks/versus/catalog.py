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


HELD_TO = {
    "": {"build": "build"},
    "avx2": {
        "build": "build-avx2",
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "PEER_ISA": "avx2",
    },
}
"""What peers can be held to: a build of llama.cpp's, and variables of torch, oneDNN and our own scripts."""

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


PEERS = {
    "pagewire": Peer("run_pagewire.py"),
    "pagewire-multiplexed": Peer("run_pagewire_multiplexed.py"),
    "pagewire-int8": Peer("run_pagewire.py", weights="int8"),
    "pagewire-int4": Peer("run_pagewire.py", weights="int4"),
    "vllm": Peer("run_vllm.py", "vllm", "vllm/bin/python", environment=VLLM),
    "openvino": Peer(
        "run_openvino.py", "openvino", "openvino/bin/python", model="models/{model}-openvino-fp16"
    ),
    "openvino-int8": Peer(
        "run_openvino.py", "openvino", "openvino/bin/python", "int8", "models/{model}-openvino-int8"
    ),
    "llama.cpp": _llama_cpp("bf16", "bf16"),
    "llama.cpp-q8": _llama_cpp("int8", "q8_0"),
    "llama.cpp-q4_0": _llama_cpp("int4", "q4_0"),
    "llama.cpp-q4_K_M": _llama_cpp("int4", "q4_k_m"),
    "transformers": Peer("run_transformers.py"),
    "transformers-float32": Peer("run_transformers.py", environment={"PEER_DTYPE": "float32"}),
}
OURS = ("pagewire", "pagewire-multiplexed", "pagewire-int8", "pagewire-int4")


def command(name: str, folder: Path, model: str) -> tuple[list[str], Path]:
    """What starts a peer, but for its settings, and what it reads. Raises Missing."""
    peer = PEERS[name]
    python = folder / peer.python if peer.python else Path(sys.executable)
    data = folder / peer.model.format(model=model)
    if not (folder / "models" / model).exists():
        raise Missing(f"{model} is not there: python -m benchmarks.models {folder / 'models'}")
    for needed in (python, data):
        if not needed.exists():
            how = INSTALL.format(folder=folder, what=peer.install)
            raise Missing(f"{name} is not installed ({needed} is missing): {how}")
    return [str(python), str(HERE / "peers" / peer.script)], data


def environment(name: str, folder: Path, threads: int, cache_gb: int, held_to: str = "") -> dict[str, str]:
    """Returns the environment of a peer's process. Our own service gets that of an ordinary shell.

    held_to: a key of HELD_TO. Raises Missing.
    """
    if name in OURS:
        return dict(os.environ)
    peer = PEERS[name]
    held = dict(HELD_TO[held_to])
    build = held.pop("build")
    if held_to and peer.environment is LLAMA_CPP and not (folder / "llama.cpp" / build).exists():
        how = INSTALL.format(folder=folder, what=f"llama.cpp-{held_to}")
        raise Missing(f"{name} is not built for {held_to}: {how}")
    common = {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    own = {
        key: value.format(folder=folder, cache_gb=cache_gb, build=build)
        for key, value in peer.environment.items()
    }
    without = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    preload = {"LD_PRELOAD": _preloaded(folder)} if name == "vllm" else {}
    return without | common | held | own | preload


def _preloaded(folder: Path) -> str:
    """Raises Missing: without these vLLM is a third slower, which would not be fair."""
    found = []
    for pattern in PRELOADED:
        root = Path("/") if pattern.startswith("/") else folder
        path = next(root.glob(pattern.lstrip("/")), None)
        if path is None:
            how = INSTALL.format(folder=folder, what="vllm")
            raise Missing(f"vllm lacks {pattern}, which it is faster with: {how}")
        found.append(str(path))
    return ":".join(found)
