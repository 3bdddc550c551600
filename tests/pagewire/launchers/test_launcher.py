"""What a launcher adds to the flags of a service, and what is refused before anything starts."""

from pathlib import Path

import pytest

from pagewire.cli import extras
from pagewire.config import RanksConfig, ServeConfig
from pagewire.errors import StartupError
from pagewire.ipc.curve import CLIENT_FILE, make_keys, read_client_key, read_engine_key
from pagewire.launchers import ray_probe
from pagewire.launchers.launcher import prepared


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_probe, "find_host", lambda address: {"auto": "10.0.0.7"}[address])


def test_without_a_launcher_nothing_changes():
    config = ServeConfig()
    with prepared(config) as same:
        assert same is config


def test_the_address_and_keys_of_a_group():
    """The keys fit together, are the user's alone, and end with the service."""
    with prepared(ServeConfig(launcher="ray", nnodes=2)) as config:
        assert config.master_addr == "10.0.0.7"
        engine, file = read_engine_key(config.curve_key), Path(config.curve_key)
        client = read_client_key(str(file.with_name(CLIENT_FILE)))
        assert client.engine == engine.public and engine.clients == (client.public,)
        assert file.stat().st_mode & 0o077 == file.parent.stat().st_mode & 0o077 == 0
    assert not file.parent.exists()


def test_what_users_name_stays(tmp_path: Path):
    """Their clients still come in."""
    engine_file, client_file = make_keys(tmp_path)
    flags = {"launcher": "ray", "nnodes": 2, "master_addr": "10.0.0.8", "curve_key": str(engine_file)}
    with prepared(ServeConfig(**flags)) as config:  # type: ignore[arg-type]
        assert config.master_addr == "10.0.0.8"
        engine, own = read_engine_key(config.curve_key), read_client_key(str(client_file))
        assert own.engine == engine.public and engine.clients[0] == own.public and len(engine.clients) == 2


def test_one_host_needs_no_launcher():
    with (
        pytest.raises(StartupError, match="--launcher is ray, and --nnodes is 1"),
        prepared(ServeConfig(launcher="ray")),
    ):
        """Not reached."""


def test_a_launcher_that_is_not_installed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(extras.importlib.util, "find_spec", lambda name: None if name == "ray" else name)
    extras.require_launcher(RanksConfig())
    with pytest.raises(StartupError, match="ray is not installed") as caught:
        extras.require_launcher(RanksConfig(launcher="ray"))
    assert "ray" in caught.value.todo
