"""The peers: what runs them, what they read, how to install them. All but our own service are optional."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import distributions
from pathlib import Path

from benchmarks.versus.peers.harness import Settings
from pagewire import __version__

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
    serve: str = ""
    """Of a server, its command; of ours, the arguments of what the script starts."""
    package: str = ""
    """Whose version a server has."""
    adapters: int = 0
    """LoRA adapters that its requests take turns to have."""


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


SERVER = "run_server"
"""Asks a peer's server over HTTP, from this environment."""
SERVE = (
    "{model} --port=0 --log-level=warning --dtype=bfloat16 --max-model-len={max_model_len}"
    " --max-num-seqs={max_num_seqs} --kv-cache-memory=4"  # as vLLM's on a CPU
)
LLAMA_SERVER = (
    "{folder}/llama.cpp/{build}/bin/llama-server --model {model} --port {port} --threads {threads}"
    " --parallel {max_num_seqs} --ctx-size {all_tokens} --batch-size 2048 --cache-ram 0"
)
VLLM_SERVER = (
    "{python} -m vllm.entrypoints.openai.api_server --model {model} --host 127.0.0.1 --port {port}"
    " --dtype bfloat16 --max-model-len {max_model_len} --max-num-seqs {max_num_seqs}"
    " --max-num-batched-tokens {max_model_len} --enable-prefix-caching --disable-log-stats"
)


ADAPTER_RANK = 16
NUM_ADAPTERS = 1, 32


def _adapted(peer: Peer, name: str) -> dict[str, Peer]:
    """A peer with adapters: NAME-lora32 has another one in each request of W2."""
    return {f"{name}-lora{count}": replace(peer, adapters=count) for count in NUM_ADAPTERS}


def _llama_cpp(weights: str, file: str, script: str = "run_llama_cpp", serve: str = "") -> Peer:
    model = f"models/{{model}}-{file}.gguf"
    python, package = "llama.cpp/bin/python", "llama_cpp_python"
    return Peer(script, "llama.cpp", python, weights, model, LLAMA_CPP, serve, package)


def _vllm(dtype: str, script: str = "run_vllm", serve: str = "") -> Peer:
    around = VLLM | {"PEER_DTYPE": dtype}
    return Peer(script, "vllm", "vllm/bin/python", environment=around, serve=serve, package="vllm-cpu")


def _openvino(weights: str, file: str) -> Peer:
    model = f"models/{{model}}-openvino-{file}"
    return Peer("run_openvino", "openvino", "openvino/bin/python", weights, model)


def _ours(weights: str = "bf16", script: str = "run_pagewire", **environment: str) -> Peer:
    quantized = "" if weights == "bf16" else f" --quantization={weights}"
    command = "{python} -m pagewire serve --openai-port={port} " if script == SERVER else ""
    return Peer(script, weights=weights, environment=environment, serve=command + SERVE + quantized)


OURS = {
    "pagewire": _ours(),
    "pagewire-multiplexed": _ours(PEER_MULTIPLEXED="1"),
    "pagewire-int8": _ours("int8"),
    "pagewire-int4": _ours("int4"),
    "pagewire-http": _ours(script=SERVER),
    "pagewire-http-int8": _ours("int8", SERVER),
    "pagewire-http-int4": _ours("int4", SERVER),
    **_adapted(_ours(), "pagewire"),
    **_adapted(_ours(script=SERVER), "pagewire-http"),
    "pagewire-worker": Peer("run_worker", serve="{model} --dtype=bfloat16 --threads={threads}"),
}
PEERS = OURS | {
    "vllm": _vllm("bfloat16"),
    "vllm-float32": _vllm("float32"),
    "vllm-server": _vllm("bfloat16", SERVER, VLLM_SERVER),
    **_adapted(_vllm("bfloat16", SERVER, VLLM_SERVER), "vllm-server"),
    "openvino": _openvino("bf16", "fp16"),
    "openvino-int8": _openvino("int8", "int8"),
    "llama.cpp": _llama_cpp("bf16", "bf16"),
    "llama.cpp-q8": _llama_cpp("int8", "q8_0"),
    "llama.cpp-q4_0": _llama_cpp("int4", "q4_0"),
    "llama.cpp-q4_K_M": _llama_cpp("int4", "q4_k_m"),
    "llama-server": _llama_cpp("bf16", "bf16", SERVER, LLAMA_SERVER),
    "llama-server-q8": _llama_cpp("int8", "q8_0", SERVER, LLAMA_SERVER),
    "llama-server-q4_0": _llama_cpp("int4", "q4_0", SERVER, LLAMA_SERVER),
}
SERVERS = [name for name, peer in PEERS.items() if peer.script == SERVER]
"""Peers that are asked over HTTP, ours too."""
WORKER = "pagewire-worker"
"""The worker of our service without the service."""


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
    if peer.python and name not in SERVERS:
        return [str(python), str(HERE / "peers" / f"{peer.script}.py")], data
    python = Path(sys.executable) if name in SERVERS else python
    return [str(python), "-m", f"benchmarks.versus.peers.{peer.script}"], data


def served(name: str, folder: Path, settings: Settings, flags: Sequence[str], held_to: str = "") -> Settings:
    """Returns the settings with what serves the model. flags: for our own service. Raises Missing."""
    peer, hold = PEERS[name], HELD_TO[held_to]
    python = _held(name, folder, held_to) if held_to else folder / peer.python
    facts = asdict(settings) | {"folder": folder, "build": hold.build, "port": "{port}"}
    facts["python"] = python if held_to or peer.python else sys.executable
    facts["all_tokens"] = settings.max_model_len * settings.max_num_seqs
    words = [word.format(**facts) for word in peer.serve.split()]
    if peer.adapters:
        found = {path.name: path for path in adapter_folders(folder, settings.model, peer.adapters)}
        settings = replace(settings, adapters=[*found])
        words += _adapter_flags(name, [f"{each}={path}" for each, path in found.items()])
    if name in OURS:
        words += [*flags, *([f"--cpu-kernels={held_to}"] if held_to else [])]
    if name not in SERVERS:
        return replace(settings, serve=words)
    if not Path(words[0]).exists():
        how = INSTALL.format(folder=folder, what="-".join(filter(None, (peer.install, held_to))))
        raise Missing(f"{name} is not installed ({words[0]} is missing): {how}")
    around = environment(name, folder, settings.threads, settings.cache_gb, held_to)
    changes = [f"--unset={key}" for key in os.environ if key not in around]
    changes += [f"{key}={value}" for key, value in around.items() if os.environ.get(key) != value]
    site = f"{peer.python.removesuffix('bin/python')}lib/python*/site-packages"
    found = distributions(name=peer.package, path=[*map(str, folder.glob(site))])
    versions = {each.name: each.version for each in found} if peer.package else {"pagewire": __version__}
    return replace(settings, serve=["env", *changes, *words], versions=versions)


def adapter_folders(folder: Path, model: str, count: int) -> list[Path]:
    """Returns the folders of a model's adapters."""
    parent = folder / "adapters" / Path(model).name
    return [parent / f"adapter-{number}" for number in range(count)]


def _adapter_flags(name: str, adapters: Sequence[str]) -> list[str]:
    """Returns the flags of a server that has adapters, each NAME=FOLDER."""
    if name in OURS:
        return [f"--lora={each}" for each in adapters]
    bounds = {"max-loras": len(adapters), "max-lora-rank": ADAPTER_RANK}
    return [
        "--enable-lora",
        *(f"--{key}={bound}" for key, bound in bounds.items()),
        "--lora-modules",
        *adapters,
    ]


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
