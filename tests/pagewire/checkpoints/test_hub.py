"""Names of the hub: what they mean, a cached model without network, and errors that say what to do."""

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants, errors

from pagewire.checkpoints.paths import HubName, hub_adapters, hub_cache, hub_name, with_local_model
from pagewire.config import EngineConfig, ServeConfig
from pagewire.errors import StartupError

NAME = "some-org/Some-Model-1B"


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (NAME, HubName(NAME)),
        (f"{NAME}@v1.0", HubName(NAME, "v1.0")),
        ("demo", None),
        ("/srv/models/some", None),
        ("./some/model", None),
        ("a/b/c", None),
        ("org/model x", None),
    ],
)
def test_names(model: str, name: HubName | None):
    assert hub_name(model) == name


def test_a_path_that_exists_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "org" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert hub_name("org/model") is None
    config = ServeConfig(model="org/model")
    assert with_local_model(config) is config


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, without network."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def test_a_cached_model_needs_no_network(offline: Path):
    repository = offline / "models--some-org--Some-Model-1B"
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    config = with_local_model(ServeConfig(model=NAME))
    assert Path(config.model) == snapshot and config.served_model_name == (NAME,)
    assert with_local_model(ServeConfig(model=NAME, served_model_name=("mine",))).served_model_name == (
        "mine",
    )
    assert Path(with_local_model(EngineConfig(model=NAME)).model) == snapshot


@pytest.mark.parametrize("model", [NAME, f"{NAME}@main"])
def test_revision_and_folder_of_the_download(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked: list[dict[str, Any]] = []

    def snapshot(repo: str, **options: Any) -> str:
        asked.append({"repo": repo, **options})
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    config = with_local_model(ServeConfig(model=model, revision="main", download_dir=str(tmp_path / "hub")))
    assert (config.model, config.served_model_name) == (str(tmp_path), (NAME,))
    assert [asked[0][name] for name in ("repo", "revision", "cache_dir")] == [NAME, "main", tmp_path / "hub"]
    with_local_model(ServeConfig(model=NAME))
    assert asked[1]["cache_dir"] is None and asked[1]["revision"] is None


ADAPTER = "some-org/Some-Adapter"


def test_adapters_by_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Folders stay as they are; of a repository only the two files of an adapter are downloaded."""
    asked: list[tuple[str, object, object]] = []

    def snapshot(repo: str, *, allow_patterns: list[str], revision: str | None, **options: Any) -> str:
        asked.append((repo, revision, allow_patterns))
        (tmp_path / repo).mkdir(parents=True, exist_ok=True)
        (tmp_path / repo / "adapter_config.json").touch()
        return str(tmp_path / repo)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    lora = (f"a={ADAPTER}@v2", f"b={tmp_path}", f"c={ADAPTER}", "d=./some/folder")
    assert hub_adapters(lora) and not hub_adapters(lora[1:2])
    config = with_local_model(ServeConfig(model="demo", lora=lora))
    folder = tmp_path / ADAPTER
    assert config.lora == (f"a={folder}", lora[1], f"c={folder}", lora[3])
    files = ["adapter_config.json", "adapter_model.safetensors"]
    assert asked == [(ADAPTER, "v2", files), (ADAPTER, None, files)]
    (folder / "adapter_config.json").unlink()
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(folder))
    with pytest.raises(StartupError, match="has no adapter_config.json"):
        with_local_model(ServeConfig(model="demo", lora=lora))


def test_the_cache_is_where_the_hub_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path.resolve()
    assert hub_cache("") == home / ".cache/huggingface/hub"
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "xdg"))
    assert hub_cache("") == home / "xdg/huggingface/hub"
    monkeypatch.setenv("HF_HOME", "~/hf")
    assert hub_cache("") == home / "hf/hub"
    monkeypatch.setenv("HF_HUB_CACHE", str(home / "cache"))
    assert hub_cache("") == home / "cache" and hub_cache("~/own") == home / "own"


def test_an_adapter_that_is_not_there_says_what_to_do(offline: Path):
    with pytest.raises(StartupError) as failed:
        with_local_model(ServeConfig(model="demo", lora=(f"a={ADAPTER}",)))
    assert failed.value.what == f"cannot load the adapter {ADAPTER!r}"
    assert "not in the local cache" in failed.value.why and "HF_HUB_OFFLINE" in failed.value.todo


def test_a_tokenizer_of_another_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked: list[tuple[str, list[str]]] = []

    def snapshot(repo: str, *, allow_patterns: list[str], **options: Any) -> str:
        asked.append((repo, allow_patterns))
        return str(tmp_path / repo)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    config = with_local_model(ServeConfig(model=NAME, tokenizer="other/tokenizer@v1"))
    assert (config.model, config.tokenizer) == (str(tmp_path / NAME), str(tmp_path / "other/tokenizer"))
    (other, few), (name, all_patterns) = asked
    assert (other, name) == ("other/tokenizer", NAME) and "*.safetensors" not in few
    assert "*.safetensors" in all_patterns
    config = with_local_model(ServeConfig(model="demo", tokenizer="other/tokenizer"))
    assert (config.model, config.served_model_name) == ("demo", ())


@pytest.mark.parametrize(
    ("model", "why"),
    [(f"{NAME}@v1", "MODEL says 'v1', and --revision 'v2'"), ("demo", "'demo' is not a name on the Hugging")],
)
def test_a_revision_that_means_nothing(model: str, why: str):
    with pytest.raises(StartupError) as failed:
        with_local_model(ServeConfig(model=model, revision="v2"))
    assert failed.value.why.startswith(why)


def test_a_model_that_is_not_there_says_what_to_do(offline: Path):
    with pytest.raises(StartupError) as failed:
        with_local_model(ServeConfig(model=NAME))
    assert "not in the local cache" in failed.value.why and "HF_HUB_OFFLINE" in failed.value.todo


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (errors.GatedRepoError, "grants access"),
        (errors.RepositoryNotFoundError, "no such model"),
        (errors.RevisionNotFoundError, "no revision"),
        (errors.HfHubHTTPError, "as the hub said"),
    ],
)
def test_refusals_of_the_hub(monkeypatch: pytest.MonkeyPatch, error: Any, why: str):
    def refuse(*_: Any, **__: Any) -> str:
        raise _made(error)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(StartupError) as failed:
        with_local_model(ServeConfig(model=NAME))
    assert why in failed.value.why


def _made(kind: Any) -> Exception:
    """An error of the hub, whose constructors want a response."""
    made: Exception = kind.__new__(kind)
    made.args = ("as the hub said\nand more",)
    return made
