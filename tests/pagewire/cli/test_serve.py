"""`pagewire serve` refuses what cannot work before it downloads or starts anything."""

import json
import shlex
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from frontend.auth.tokens import read_tokens
from pagewire.checkpoints.paths import checkpoint_folder
from pagewire.cli import processes, serve
from pagewire.config import FrontendConfig, ServeConfig
from pagewire.errors import StartupError
from pagewire.flags import KEYS, UsageError
from tests.checkpoints import make_checkpoint
from tests.gguf_files import write_gguf


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ({"nnodes": 2, "tensor_parallel_size": 2}, "there is no --master-addr"),
        (
            {"pipeline_parallel_size": 3, "nnodes": 2, "master_addr": "127.0.0.1"},
            "does not divide the 3 ranks of --tensor-parallel-size 1 and --pipeline-parallel-size 3",
        ),
        ({"speculate": "3"}, "--speculate: 3 is not a method; there are lookup, grammar"),
        ({"num_blocks": 9, "kv_cache_memory": 1.0}, "--num-blocks and --kv-cache-memory both size"),
        ({"hang_timeout": 0.1}, "--hang-timeout is 0.1"),
        ({"record_tokens": True}, "--record-tokens without --record"),
        ({"tool_format": "gemma"}, "--tool-format is one of auto, none, "),
        ({"reasoning_format": "deepseek"}, "--reasoning-format is one of auto, none, "),
        ({"chat_template": "/no/such/file"}, "--chat-template: there is no file /no/such/file"),
        ({"auth_file": "/no/such/file"}, "--auth-file: there is no file /no/such/file"),
        ({"quantization": "int4", "device": "cuda"}, "int4, of CPUs, has two levels of scales"),
        ({"quantization": "int8", "device": "simulated"}, "the device is simulated"),
        ({"fast_matmul": True, "device": "cpu"}, "the device is cpu"),
        ({"tokenizer": "/no/such"}, "--tokenizer: /no/such is not a folder"),
        ({"hf_overrides": "{"}, "it is not readable JSON"),
        ({"hf_overrides": '{"quantization_config": {}}'}, "quantization_config says how the weights are"),
        ({"override_generation_config": "[]"}, "it is not a JSON object"),
        ({"tls_client_ca": "/no/such/file"}, "--tls-client-ca: there is no file /no/such/file"),
    ],
    ids=str,
)
def test_what_no_model_could_mend_is_refused_before_a_download(
    flags: dict[str, object], why: str, monkeypatch: pytest.MonkeyPatch
):
    def download(config: ServeConfig) -> ServeConfig:
        raise AssertionError("a download came first")

    monkeypatch.setattr(serve, "with_local_model", download)
    monkeypatch.setattr(serve.logs, "setup", lambda *arguments: None)
    with pytest.raises(StartupError) as caught:
        serve.run(ServeConfig(model="no-such-organisation/no-such-model", **flags))
    assert why in caught.value.why


@pytest.fixture
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would start says so."""

    def start(*arguments: object) -> None:
        raise ChildProcessError

    monkeypatch.setattr(serve.logs, "setup", lambda *arguments: None)
    monkeypatch.setattr("pagewire.supervisor.supervisor.Supervisor", start)


STAGES, RANKS = "--pipeline-parallel-size", "--tensor-parallel-size"


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ({"pipeline_parallel_size": 99}, rf"{STAGES} 99, and the model has \d+ layers"),
        ({"tensor_parallel_size": 64}, rf"{RANKS} 64: LlamaForCausalLM with \d+ attention heads cannot be"),
        ({"tensor_parallel_size": 3}, f"{RANKS} 3: 3 ranks are not a power of two"),
        ({"pipeline_parallel_size": 99, "device": "simulated"}, f"{STAGES} 99"),
        ({"pipeline_parallel_size": 2, "hf_overrides": '{"num_hidden_layers": 1}'}, f"{STAGES} 2"),
    ],
)
def test_a_model_that_so_many_ranks_do_not_compute_is_refused_before_anything_starts(
    flags: dict[str, Any], why: str, nothing_starts: None
):
    with pytest.raises(StartupError, match=why) as refused:
        serve.run(ServeConfig(**flags))
    assert refused.value.what == "cannot split the model" and "\n" not in refused.value.why


def test_so_is_a_gguf_file(tmp_path: Path, nothing_starts: None):
    folder, file = make_checkpoint("llama", tmp_path / "model"), tmp_path / "model.gguf"
    write_gguf(folder, file)
    with pytest.raises(StartupError, match=rf"{STAGES} 99, and the model has \d layers"):
        serve.run(ServeConfig(model=str(file), pipeline_parallel_size=99))


def test_so_is_a_model_of_the_hub_before_its_weights_are_downloaded(
    monkeypatch: pytest.MonkeyPatch, nothing_starts: None
):
    folder = checkpoint_folder("demo")
    asked: list[list[str]] = []

    def snapshot(repo: str, **options: Any) -> str:
        asked.append(options["allow_patterns"])
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    with pytest.raises(StartupError, match=f"{STAGES} 99"):
        serve.run(ServeConfig(model="some-org/some-model", pipeline_parallel_size=99))
    assert asked == [["*.json"]]


@pytest.mark.parametrize(
    ("model", "flags"),
    [
        ("demo", {"tensor_parallel_size": 2}),
        ("demo", {"pipeline_parallel_size": 2}),
        ("demo", {"pipeline_parallel_size": 99, "model_impl": "transformers"}),
        ("unknown", {"pipeline_parallel_size": 99}),
    ],
)
def test_what_fits_or_cannot_be_judged_is_left_to_the_worker(
    model: str, flags: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_starts: None
):
    (tmp_path / "unknown").mkdir()
    (tmp_path / "unknown" / "config.json").write_text('{"architectures": ["NoSuchModel"]}')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ChildProcessError):
        serve.run(ServeConfig(model=model, **flags))


def test_a_file_that_is_written_need_not_exist(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(serve.logs, "setup", lambda *arguments: None)
    monkeypatch.setattr(serve, "with_local_model", lambda config: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        serve.run(ServeConfig(model="no-such-organisation/no-such-model", record="/no/such/file"))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"frontends": 0}, "frontends elsewhere need an address"),
        ({"frontends": 0, "listen": "ipc:///x", "openai_port": 0}, "are served by frontends"),
        ({"frontends": 0, "listen": "ipc:///x", "api_key": ("k",)}, "are checked by frontends"),
        ({"frontends": 0, "listen": "ipc:///x", "auth_file": "t"}, "are checked by frontends"),
        ({"listen": "ipc:///x", "data_parallel_size": 2}, "--data-parallel-size is larger"),
        ({"share_prefixes": True}, "--share-prefixes with one engine core"),
        ({"share_prefixes": True, "no_prefix_cache": True}, "--share-prefixes with --no-prefix-cache"),
        ({"share_prefixes": True, "record": "file"}, "--share-prefixes with --record"),
        ({"share_prefixes": True, "tensor_parallel_size": 2}, "with --tensor-parallel-size"),
        ({"share_prefixes": True, "device": "cuda"}, "--share-prefixes with --device cuda"),
        ({"prefill_engines": 1}, "--prefill-engines with one engine core"),
        ({"prefill_engines": 2, "data_parallel_size": 2}, "none of 2 would decode"),
        ({"prefill_engines": 1, "data_parallel_size": 2, "role": "decode"}, "and --role decode"),
    ],
)
def test_engine_cores_that_could_not_do_what_they_are_for(
    flags: dict[str, object], words: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(serve.logs, "setup", lambda *arguments: None)
    with pytest.raises(StartupError) as caught:
        serve.run(ServeConfig(**flags))
    assert words in caught.value.why


def started_with(monkeypatch: pytest.MonkeyPatch, **flags: object) -> tuple[ServeConfig, str]:
    """The configuration that the supervisor gets, and its token file."""
    seen: list[tuple[ServeConfig, str]] = []

    class FakeSupervisor:
        def __init__(self, config: ServeConfig, on_ready: object) -> None:
            seen.append((config, Path(config.auth_file).read_text()))

        def run(self) -> int:
            return 0

    monkeypatch.setattr(serve.logs, "setup", lambda *arguments: None)
    monkeypatch.setattr("pagewire.supervisor.supervisor.Supervisor", FakeSupervisor)
    assert serve.run(ServeConfig(**flags)) == 0
    return seen[0]


def test_api_keys_are_tokens_of_one_tenant(monkeypatch: pytest.MonkeyPatch):
    keys = ("sk-0123456789abcdef", "sk-fedcba9876543210")
    config, text = started_with(monkeypatch, api_key=(*keys, keys[0]))
    table = read_tokens(text)
    assert [table.find(key, 0.0).tenant for key in keys] == ["default", "default"] and len(table) == 2
    assert not any(key in text for key in keys) and config.api_key == ()
    assert not Path(config.auth_file).exists(), "it ends with the service"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"api_key": ("sk-0123456789abcdef",), "auth_file": "x"}, "cannot be combined with --auth-file"),
        ({"api_key": ("short",)}, "at least 16 characters"),
        ({"api_key": ("sk-0123456789abcdef",), "gateway": 0}, "--gateway cannot be combined with --api-key"),
    ],
)
def test_keys_that_are_refused(flags: dict[str, object], words: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(serve.logs, "setup", lambda *arguments: None)
    with pytest.raises(UsageError, match=words):
        serve.run(ServeConfig(**flags))


@pytest.mark.parametrize("name", KEYS)
def test_a_frontend_does_not_ignore_the_variable_of_the_key(name: str, monkeypatch: pytest.MonkeyPatch):
    """Its service would be open to every caller, and believed to be closed."""
    monkeypatch.setattr(processes.logs, "setup", lambda *arguments: None)
    monkeypatch.setenv(name, "sk-0123456789abcdef")
    with pytest.raises(UsageError, match=f"{name} protects pagewire serve alone"):
        processes.run_frontend(FrontendConfig())


def test_the_ready_message_says_what_memory_the_cache_takes(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(serve.process, "is_child", lambda: False)
    monkeypatch.setattr(serve.logs, "writes_json", lambda: False)
    serve._announce(ServeConfig(), {"address": "h:1", "num_blocks": 1024, "kv_cache_bytes": 3 << 29})
    said = capfd.readouterr().err
    assert "1.50 GiB of KV cache for 16,384 tokens" in said and "--kv-cache-memory GIB" in said


@pytest.mark.parametrize(
    ("flags", "facts", "curl"),
    [
        ({}, {}, None),
        ({}, {"openai": "http://127.0.0.1:8000/v1"}, ["curl", "http://127.0.0.1:8000/v1/completions"]),
        (
            {"tls_cert": "c", "auth_file": "t"},
            {"openai": "https://h:8000/v1"},
            ["curl", "--cacert", "ca.pem", "--oauth2-bearer", "$TOKEN", "https://h:8000/v1/completions"],
        ),
    ],
)
def test_the_ready_message_has_curl_lines_where_http_is_served(
    flags: dict[str, str],
    facts: dict[str, str],
    curl: list[str] | None,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
):
    monkeypatch.setattr(serve.process, "is_child", lambda: False)
    monkeypatch.setattr(serve.logs, "writes_json", lambda: False)
    serve._announce(ServeConfig(**flags), {"address": "127.0.0.1:50051", **facts})
    said = capfd.readouterr().err
    assert said.rstrip().endswith("Ctrl-C") and ("curl" in said) == (curl is not None)
    if curl is not None:
        commands = said[said.index("curl:") + 5 : said.index("stop it:")].replace("\\\n", " ")
        first, second = map(shlex.split, commands.strip().splitlines())
        assert first[: len(curl)] == curl
        assert second[len(curl) - 1] == curl[-1].replace("/completions", "/chat/completions")
        for words in (first, second):
            assert json.loads(words[words.index("-d") + 1])
