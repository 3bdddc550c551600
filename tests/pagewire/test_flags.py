"""Flags, environment and files become configurations; unknown names are errors."""

import dataclasses
import os
import re
from pathlib import Path
from types import ModuleType

import pytest

from pagewire import command_config, config, flags
from pagewire.command_config import GenerateConfig
from pagewire.config import EngineConfig, FrontendConfig, ServeConfig, WorkerConfig
from pagewire.flags import UsageError
from pagewire.flags.flag import did_you_mean

ROOMS = ("frontend", "engine_core", "worker", "pagewire", "packages")


def parse(*arguments: str, config=ServeConfig, environment=None):
    return flags.parse(config, arguments, command="test", environment=environment or {})


def refusal(*arguments: str, config=ServeConfig, environment=None) -> UsageError:
    with pytest.raises(UsageError) as caught:
        parse(*arguments, config=config, environment=environment)
    return caught.value


def test_nothing_given_means_defaults():
    assert parse() == ServeConfig()


def test_every_spelling_of_a_value():
    config = parse("folder", "--port=7", "--max-num-seqs", "3", "--dtype", "float32", "--shutdown-grace", "2")
    assert (config.model, config.port, config.max_num_seqs, config.dtype) == ("folder", 7, 3, "float32")
    assert config.shutdown_grace == 2.0 and isinstance(config.shutdown_grace, float)
    assert parse("--model", "folder").model == "folder"


def test_booleans_switch_both_ways():
    assert parse("--no-reflection").reflection is False
    assert parse("--no-reflection", "--reflection").reflection is True
    assert parse("--no-prefix-cache").no_prefix_cache is True
    assert parse("--no-prefix-cache", "--prefix-cache").no_prefix_cache is False


def test_a_flag_may_be_repeated():
    assert parse("hi", "--stop", "a", "--stop", "b", config=GenerateConfig).stop == ("a", "b")


def test_pairs_in_every_spelling(tmp_path: Path):
    file = tmp_path / "config.yaml"
    file.write_text("tenant-weight:\n  a: 2\n  b=c: 0.5\n")
    weights = ("a=2", "b=c=0.5")
    assert parse("--tenant-weight", "a=2", "--tenant-weight=b=c=0.5").tenant_weight == weights
    assert parse("--config", str(file)).tenant_weight == weights
    assert parse(environment={"PAGEWIRE_TENANT_WEIGHT": "=3"}).tenant_weight == ("=3",)
    config = parse("--config", str(file))
    assert parse(*flags.to_arguments(config, EngineConfig), config=EngineConfig).tenant_weight == weights


def test_precedence_is_flag_environment_file_default(tmp_path: Path):
    file = tmp_path / "config.yaml"
    file.write_text("port: 1\nhost: file\nmax-num-seqs: 5\n")
    environment = {"PAGEWIRE_PORT": "2", "PAGEWIRE_HOST": "environment"}
    config = parse("--port", "3", "--config", str(file), environment=environment)
    assert (config.port, config.host, config.max_num_seqs) == (3, "environment", 5)
    assert config.frontends == 1


def test_yaml_and_toml_say_the_same(tmp_path: Path):
    yaml, toml = tmp_path / "a.yaml", tmp_path / "a.toml"
    yaml.write_text("max_model_len: 64\nreflection: false\nshutdown-grace: 3\nserved-model-name: 7\n")
    toml.write_text('max-model-len = 64\nreflection = false\nshutdown_grace = 3\nserved-model-name = "7"\n')
    assert parse("--config", str(yaml)) == parse("--config", str(toml))
    assert parse("--config", str(yaml)).served_model_name == ("7",)
    assert parse(environment={"PAGEWIRE_CONFIG": str(yaml)}).max_model_len == 64


def test_one_file_may_configure_every_process(tmp_path: Path):
    file = tmp_path / "config.toml"
    file.write_text("threads = 2\nport = 9\nmax-num-seqs = 4\n")
    assert parse("--config", str(file), config=WorkerConfig) == WorkerConfig(threads=2)
    assert parse("--config", str(file), config=FrontendConfig).port == 9
    assert parse("--config", str(file), config=EngineConfig).max_num_seqs == 4


@pytest.mark.parametrize(("word", "hint"), [("POTR", "PORT"), ("FOO", ""), ("POINT_OF_VIEW", "")])
def test_what_all_names_begin_with_makes_none_similar(word: str, hint: str):
    for prefix in ("PAGEWIRE_", "--"):
        found = did_you_mean(prefix + word, [prefix + name for name in ("HOST", "PORT")])
        assert found == (f" (did you mean {prefix}{hint}?)" if hint else "")


def test_a_gpu_is_a_cuda_device():
    """Not a word that resembles cpu."""
    assert parse("--device", "gpu").device == "cuda"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--prot", "5"], ["--prot", "did you mean --port?"]),
        (["--device", "gpux"], ["--device", "'gpux'", "is none of auto, cpu, cuda, simulated"]),
        (["--tenant-weight", "a"], ["--tenant-weight", "'a' is not NAME=X"]),
        (["--tenant-weight", "a=b"], ["--tenant-weight", "'b' is not a number"]),
        (["--tenant-weight", "a=0"], ["--tenant-weight", "below 0.001"]),
        (["--tenant-weight", "a=nan"], ["--tenant-weight", "nan"]),
        (["--port", "many"], ["--port", "'many' is not an integer"]),
        (["--port", "70000"], ["--port", "above 65535"]),
        (["--max-num-seqs", "0"], ["--max-num-seqs", "below 1"]),
        (["--shutdown-grace", "nan"], ["--shutdown-grace", "nan"]),
        (["--port"], ["--port", "expected one argument"]),
        (["one", "two"], ["'two'"]),
        (["--listen-workers", "ipc:///x"], ["--listen-workers"]),  # the supervisor decides it
    ],
)
def test_wrong_flags_are_named(arguments: list[str], words: list[str]):
    error = refusal(*arguments)
    for word in words:
        assert word in error.what
    assert "pagewire test --help" in error.todo


@pytest.mark.parametrize("arguments", [["--standby", "2"], ["--standby=2"], ["a-model", "--standby", "0"]])
def test_a_number_behind_a_switch_is_not_taken_for_the_model(arguments: list[str]):
    """--standby is on or off, --standbys a number."""
    number = arguments[-1][-1]
    wrong = refusal(*arguments)
    assert wrong.what == f"--standby: it takes no value (did you mean --standbys {number}?)"
    assert wrong.todo == "see: pagewire test --help"


def test_the_help_that_an_error_points_to_has_the_flag():
    assert refusal("--port=-1").todo == "see: pagewire test --help"
    assert refusal("--max-stop-strings=-1").todo == "see: pagewire test --help-all"
    assert refusal(environment={"PAGEWIRE_MAX_STOP_STRINGS": "x"}).todo.endswith("--help-all")


def test_a_switch_before_the_model():
    """A model whose name is no number, or the number of another flag, is what it says."""
    for arguments in (["--standby", "./2"], ["--standby", "--standbys=3", "./2"], ["./2", "--standby"]):
        assert (parse(*arguments).model, parse(*arguments).no_standby) == ("./2", False)
    assert parse("--no-pinning", "2").model == "2"


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.yaml", "prot: 5", ["'prot'", "did you mean port?"]),
        ("a.yaml", "port: true", ["port: True is not an integer"]),
        ("a.yaml", "port: 1.5", ["port: 1.5 is not an integer"]),
        ("a.yaml", "port: [1]", ["port: [1] is not an integer"]),
        ("a.yaml", "- port", ["NAME: VALUE"]),
        ("a.yaml", "port: [", ["expected"]),
        ("a.toml", "port 5", ["Expected"]),
        ("a.json", "{}", [".json"]),
    ],
)
def test_wrong_files_are_named(tmp_path: Path, name: str, text: str, words: list[str]):
    file = tmp_path / name
    file.write_text(text)
    error = refusal("--config", str(file))
    assert str(file) in error.what
    for word in words:
        assert word in error.why


def test_an_empty_file_says_nothing(tmp_path: Path):
    (tmp_path / "a.yaml").write_text("")
    assert parse("--config", str(tmp_path / "a.yaml")) == ServeConfig()


def test_a_missing_file_is_named():
    assert "no-such-file.yaml" in refusal("--config", "no-such-file.yaml").what


def test_unknown_variables_are_named():
    error = refusal(environment={"PAGEWIRE_HOTS": "x"})
    assert "PAGEWIRE_HOTS" in error.what and "did you mean PAGEWIRE_HOST?" in error.what


def test_variables_of_other_processes_are_known():
    assert parse(environment={"PAGEWIRE_RANK": "1", "PATH": "x"}) == ServeConfig()


def test_variables_that_kubernetes_sets_for_a_service_called_pagewire():
    """A Service of our name adds PAGEWIRE_SERVICE_HOST and the like, and a URL in PAGEWIRE_PORT."""
    links = {"PAGEWIRE_SERVICE_HOST": "10.0.0.1", "PAGEWIRE_PORT_50051_TCP_ADDR": "10.0.0.1"}
    assert parse(environment=links) == ServeConfig()
    error = refusal(environment=links | {"PAGEWIRE_PORT": "tcp://10.0.0.1:50051"})
    assert "PAGEWIRE_PORT" in error.what and "enableServiceLinks" in error.todo


def test_arguments_for_a_child_bring_back_its_configuration():
    config = parse(
        "m", "--port=5", "--no-reflection", "--no-prefix-cache", "--max-model-len=9", "--dummy-seed=1"
    )
    child = parse(*flags.to_arguments(config, EngineConfig), config=EngineConfig)
    assert child == EngineConfig(model="m", no_prefix_cache=True, max_model_len=9, dummy_seed=1)
    child = parse(*flags.to_arguments(config, FrontendConfig), config=FrontendConfig)
    assert child == FrontendConfig(model="m", port=5, reflection=False)
    assert flags.to_arguments(ServeConfig(), ServeConfig) == []


def test_values_that_look_like_flags_survive(monkeypatch: pytest.MonkeyPatch):
    config = parse("--served-model-name=--port", "--model=-x")
    assert parse(*flags.to_arguments(config, ServeConfig)) == config


def test_children_do_not_see_overruled_variables(monkeypatch: pytest.MonkeyPatch):
    for name in ("PAGEWIRE_PORT", "PAGEWIRE_CONFIG", "PAGEWIRE_RANK"):
        monkeypatch.setenv(name, "1")
    flags.forget_environment(ServeConfig)
    assert "PAGEWIRE_PORT" not in os.environ and "PAGEWIRE_CONFIG" not in os.environ
    assert os.environ["PAGEWIRE_RANK"] == "1"  # the worker's: it is not passed on


@pytest.mark.parametrize("config", [ServeConfig, FrontendConfig, EngineConfig, WorkerConfig, GenerateConfig])
def test_help_fits_one_screen_and_help_all_shows_everything(config, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as short_exit:
        parse("--help", config=config)
    short = capsys.readouterr().out
    with pytest.raises(SystemExit) as long_exit:
        parse("--help-all", config=config)
    long = capsys.readouterr().out
    assert short_exit.value.code == long_exit.value.code == 0
    assert len(short.splitlines()) <= 24 and max(map(len, short.splitlines())) <= 100
    for flag in flags.flags_of(config).values():
        assert (flag.metavar if flag.positional else flag.option.removeprefix("--")) in long


def test_help_shows_defaults_and_ranges(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        parse("--help-all")
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if "  --" in line}
    for option, facts in {
        "--port": "[50051; 0..65535]",
        "--max-num-seqs": "[256; from 1]",
        "--gpu-memory-utilization": "[0.9; 0.05..1]",
        "--max-model-len": "[from 0]",
        "--no-prefix-cache": "prefixes",
    }.items():
        assert lines[option].endswith(facts)


@pytest.mark.parametrize("module", [config, command_config], ids=["processes", "other commands"])
def test_every_flag_is_read(module: ModuleType):
    """By some file beside those that declare flags."""
    declaring = {Path(command_config.__file__), *Path(config.__file__).parent.iterdir()}
    folder = Path(command_config.__file__).parents[1]
    files = {path for room in ROOMS for path in (folder / room).rglob("*.py")}
    sources = "\n".join(path.read_text() for path in files - declaring)
    read = set(re.findall(r"\.([a-z_0-9]+)\b", sources))
    kinds = [each for each in vars(module).values() if dataclasses.is_dataclass(each)]
    declared = {(kind.__name__, field.name) for kind in kinds for field in dataclasses.fields(kind)}
    assert not sorted((kind, name) for kind, name in declared if name not in read)
