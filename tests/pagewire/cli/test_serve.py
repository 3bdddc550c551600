"""`pagewire serve` refuses what cannot work before it downloads or starts anything."""

import pytest

from pagewire.cli import serve
from pagewire.config import ServeConfig
from pagewire.errors import StartupError


@pytest.mark.parametrize("name", ["tensor_parallel_size", "pipeline_parallel_size"])
def test_several_ranks_are_refused_before_a_download(name: str, monkeypatch: pytest.MonkeyPatch):
    def download(config: ServeConfig) -> ServeConfig:
        raise AssertionError("a download came first")

    monkeypatch.setattr(serve, "with_local_model", download)
    monkeypatch.setattr(serve.process_log, "setup", lambda *arguments: None)
    with pytest.raises(StartupError) as caught:
        serve.run(ServeConfig(model="no-such-organisation/no-such-model", **{name: 2}))
    assert caught.value.why == f"--{name.replace('_', '-')} is 2, and a model runs in one worker"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"frontends": 0}, "frontends elsewhere need an address"),
        ({"frontends": 0, "listen": "ipc:///x", "openai_port": 0}, "are served by frontends"),
        ({"listen": "ipc:///x", "data_parallel_size": 2}, "--data-parallel-size is larger"),
    ],
)
def test_engine_cores_that_no_frontend_could_reach(
    flags: dict[str, object], words: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(serve.process_log, "setup", lambda *arguments: None)
    with pytest.raises(StartupError) as caught:
        serve.run(ServeConfig(**flags))
    assert words in caught.value.why
