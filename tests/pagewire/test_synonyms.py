"""Flags of other servers: taken for ours where they mean the same, refused with the counterpart where not."""

from pathlib import Path

import pytest

from pagewire import flags
from pagewire.config import EngineConfig, FrontendConfig, ServeConfig, WorkerConfig
from pagewire.flags import UsageError
from pagewire.flags.flag import flags_of
from pagewire.flags.synonyms import COUNTERPARTS, RENAMED, VALUES, WITHOUT_EFFECT, WITHOUT_EFFECT_OF_A_VALUE

OPTIONS = {
    option
    for config in (ServeConfig, EngineConfig, FrontendConfig)
    for flag in flags_of(config).values()
    for option in (flag.option, flag.negative)
}
PAGE = (Path(__file__).parents[2] / "docs" / "coming-from.md").read_text()


def parse(*arguments: str, config=ServeConfig, environment=None):
    return flags.parse(config, arguments, command="serve", environment=environment or {})


def test_every_target_is_a_flag():
    assert set(RENAMED.values()) <= OPTIONS
    named = {word for text in COUNTERPARTS.values() for word in text.split() if word.startswith("--")}
    assert {word.rstrip(",;") for word in named} <= OPTIONS
    assert not OPTIONS & {*RENAMED, *WITHOUT_EFFECT, *WITHOUT_EFFECT_OF_A_VALUE, *COUNTERPARTS}
    assert set(VALUES) <= flags_of(ServeConfig).keys()


@pytest.mark.parametrize(
    "name", sorted({*RENAMED, *WITHOUT_EFFECT, *WITHOUT_EFFECT_OF_A_VALUE, *COUNTERPARTS})
)
def test_every_flag_is_on_the_page(name: str):
    assert f"`{name}`" in PAGE


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["-m", "folder", "-c", "4096", "-np", "3"],
            {"model": "folder", "max_model_len": 4096, "max_num_seqs": 3},
        ),
        (["--ssl-keyfile=k.pem", "--ssl-certfile", "c.pem"], {"tls_key": "k.pem", "tls_cert": "c.pem"}),
        (["--model-id", "folder", "--max-total-tokens", "9"], {"model": "folder", "max_model_len": 9}),
        (["--no-enable-prefix-caching"], {"no_prefix_cache": True}),
        (["--dtype", "half"], {"dtype": "float16"}),
        (["--dtype=float"], {"dtype": "float32"}),
        (["--kv-cache-dtype", "fp8"], {"kv_cache_dtype": "fp8_e4m3"}),
        (["--load-format", "safetensors"], {"load_format": "auto"}),
        (["--max-model-len", "32k"], {"max_model_len": 32_000}),
        (["--max-model-len", "32K"], {"max_model_len": 32_768}),
        (["--max-model-len", "1.5k"], {"max_model_len": 1500}),
        (["--max-model-len", "auto"], {"max_model_len": 0}),
        (["--enable-prefix-caching", "--enable-chunked-prefill", "m"], {"model": "m"}),
        (["--tool-call-parser", "hermes", "m"], {"model": "m"}),
        (["--reasoning-parser=qwen3", "--enable-auto-tool-choice", "m"], {"model": "m"}),
    ],
)
def test_what_means_the_same_is_taken(
    arguments: list[str], expected: dict[str, object], capsys: pytest.CaptureFixture[str]
):
    config = parse(*arguments)
    assert {name: getattr(config, name) for name in expected} == expected
    changed = [word.split("=")[0] for word in arguments]
    changed = [word for word in changed if word.startswith("-") and word not in OPTIONS]
    notes = capsys.readouterr().err.splitlines()
    assert [note.split()[1] for note in notes] == changed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--enable-lora"], "LoRA adapters are not supported yet"),
        (["--scheduling-policy", "priority"], "--policy fair|fcfs"),
        (["--revision", "main"], "MODEL@REVISION"),
        (
            ["--quantization", "awq"],
            "'awq' is a method of checkpoints, which is detected: leave out the flag",
        ),
        (["--enable-prefix-caching=false"], "--enable-prefix-caching"),
        (["--max-model-len", "32x"], "'32x' is not an integer"),
        (["--max-model-len", "1.2345k"], "'1.2345k' is not an integer"),
        (["--max-num-seqs", "k"], "'k' is not an integer"),
    ],
)
def test_other_flags_are_refused_with_what_to_use(arguments: list[str], words: str):
    with pytest.raises(UsageError) as caught:
        parse(*arguments)
    assert words in caught.value.what


def test_a_command_without_a_model_knows_no_flags_of_other_servers():
    with pytest.raises(UsageError, match="unknown argument '-c'"):
        parse("-c", "5", config=WorkerConfig)
    with pytest.raises(UsageError, match="unknown argument '--enable-lora'"):
        parse("--enable-lora", config=WorkerConfig)


def test_own_values_of_files_and_variables_are_translated_too(tmp_path: Path):
    file = tmp_path / "config.yaml"
    file.write_text("dtype: half\nmax-model-len: 8k\n")
    assert (parse("--config", str(file)).dtype, parse("--config", str(file)).max_model_len) == (
        "float16",
        8000,
    )
    assert parse(environment={"PAGEWIRE_MAX_MODEL_LEN": "8k"}).max_model_len == 8000
