"""Flags of other servers: taken for ours where they mean the same, refused with the counterpart where not."""

import re
from pathlib import Path

import pytest

from pagewire import flags
from pagewire.config import EngineConfig, FrontendConfig, ServeConfig, WorkerConfig
from pagewire.flags import UsageError
from pagewire.flags.flag import flags_of
from pagewire.flags.synonyms import (
    COUNTERPARTS,
    KEY_VARIABLES,
    RENAMED,
    VALUES,
    VARIABLES,
    WITHOUT_EFFECT,
    WITHOUT_EFFECT_OF_A_VALUE,
)

OPTIONS = {
    option
    for config in (ServeConfig, EngineConfig, FrontendConfig)
    for flag in flags_of(config).values()
    for option in (flag.option, flag.negative)
}
PAGE_PATH = Path(__file__).parents[2] / "docs" / "coming-from.md"
PAGE = PAGE_PATH.read_text()


def parse(*arguments: str, config=ServeConfig, environment=None):
    return flags.parse(config, arguments, command="serve", environment=environment or {})


def test_every_target_is_a_flag():
    assert {target.partition("=")[0] for target in RENAMED.values()} <= OPTIONS
    texts = [*COUNTERPARTS.values(), *VARIABLES.values()]
    named = {word for text in texts for word in text.split() if word.startswith("--")}
    assert {word.rstrip(",;") for word in named} <= OPTIONS
    assert not OPTIONS & {*RENAMED, *WITHOUT_EFFECT, *WITHOUT_EFFECT_OF_A_VALUE, *COUNTERPARTS}
    assert set(VALUES) <= flags_of(ServeConfig).keys()


KINDS = {
    "Taken": {**RENAMED},
    "Accepted without effect": {**WITHOUT_EFFECT, **WITHOUT_EFFECT_OF_A_VALUE},
    "Refused": COUNTERPARTS,
    "Environment": {**dict.fromkeys(KEY_VARIABLES), **VARIABLES},
}
"""Sections of the page, and the names that their tables have."""


@pytest.mark.parametrize("section", KINDS)
def test_the_tables_of_the_page_are_those_of_the_program(section: str):
    text = PAGE.split(f"### {section}\n", 1)[1].partition("\n#")[0]
    rows = re.findall(r"^\| (`.*?) \| (.*) \|$", text, re.MULTILINE)
    named = {name: there for names, there in rows for name in re.findall(r"`([^`]+)`", names)}
    assert named.keys() == KINDS[section].keys()
    for name, target in RENAMED.items() if section == "Taken" else ():
        assert f"`{target.replace('=', ' ')}`" in named[name]


def test_the_series_of_the_page_exist():
    named = set(re.findall(r"`(pagewire_\w+)`", PAGE))
    metrics = PAGE_PATH.with_name("metrics.md").read_text()
    assert named and all(f"`{name}`" in metrics for name in named)


SAME = """
--host --port --api-key --served-model-name --max-model-len --gpu-memory-utilization
--tensor-parallel-size --pipeline-parallel-size --data-parallel-size --dtype --quantization
--kv-cache-dtype --max-num-seqs --max-num-batched-tokens --block-size --swap-space --enforce-eager
--trust-remote-code --revision --tokenizer --hf-overrides --download-dir --load-format --generation-config
--override-generation-config --chat-template --seed --max-logprobs --model-impl --model --config
--threads --device --reasoning-format
--max-concurrent-requests --otlp-endpoint
"""
"""Flags of vllm serve, llama-server and text-generation-launcher that are flags of ours."""
AUDITED = """
-tp -pp -dp --enable-expert-parallel --kv-cache-memory-bytes --enable-prefix-caching
--no-enable-prefix-caching --enable-chunked-prefill --num-gpu-blocks-override --cpu-offload-gb
--tokenizer-mode --tool-call-parser --enable-auto-tool-choice
--reasoning-parser --speculative-config --enable-lora --lora-modules --scheduling-policy
--async-scheduling --api-server-count --ssl-keyfile --ssl-certfile --ssl-ca-certs --allowed-origins
--root-path --uds --otlp-traces-endpoint --uvicorn-log-level --disable-log-requests --runner
--pooler-config --limit-mm-per-prompt --kv-transfer-config -O
-m -hf -c --ctx-size -np --parallel -t -ngl --n-gpu-layers -fa --flash-attn -b -ub -a --alias
--jinja --chat-template-file -cb --metrics --slots --embeddings --pooling -md --draft-max
--mmproj -ctk -ctv --temp --top-k --top-p --min-p -n -s --mlock --no-mmap --api-key-file
--ssl-key-file --ssl-cert-file --threads-http --timeout --context-shift --no-context-shift
--rope-scaling -sm -ts -mg -v --cache-reuse
--model-id --num-shard --sharded --quantize --max-input-tokens --max-total-tokens --max-batch-size
--max-batch-prefill-tokens --max-batch-total-tokens --waiting-served-ratio --max-waiting-tokens
--hostname --max-best-of --max-stop-sequences --max-top-n-tokens --validation-workers
--cuda-memory-fraction --json-output --huggingface-hub-cache --tokenizer-config-path
--cors-allow-origin --payload-limit --usage-stats --lora-adapters --prometheus-port
"""
"""Other usual flags of these, in this order."""


def test_usual_flags_of_other_servers_are_known():
    config = {flag.option for flag in flags_of(ServeConfig).values()} | {"--config"}
    assert set(SAME.split()) <= config
    assert set(AUDITED.split()) <= {*RENAMED, *WITHOUT_EFFECT, *WITHOUT_EFFECT_OF_A_VALUE, *COUNTERPARTS}


@pytest.mark.parametrize("name", COUNTERPARTS)
def test_every_counterpart_is_told(name: str):
    with pytest.raises(UsageError) as caught:
        parse("a-model", name, "5")
    assert caught.value.what == f"unknown argument {name!r}; use {COUNTERPARTS[name]}"


@pytest.mark.parametrize("name", RENAMED)
def test_every_synonym_is_taken(name: str):
    target, sign, value = RENAMED[name].partition("=")
    field = next(each for each in flags_of(ServeConfig).values() if target in (each.option, each.negative))
    choices = {"log_level": "debug", "quantization": "int8", "pooling_type": "last", "launcher": "ray"}
    numbers = {int: str(min(2000, int(field.at_most or 2000))), float: "0.5"}
    given = choices.get(field.name) or numbers.get(field.kind, "a-word")
    arguments = [name] if sign or field.kind is bool else [name, given]
    ours = [target, *([value] if sign else arguments[1:])]
    assert parse(*arguments) == parse(*ours) != parse()


@pytest.mark.parametrize("name", [*WITHOUT_EFFECT, *WITHOUT_EFFECT_OF_A_VALUE])
def test_what_has_no_effect_changes_nothing(name: str):
    given = [name, "a-value"] if name in WITHOUT_EFFECT_OF_A_VALUE else [name]
    assert parse(*given, "a-model") == parse("a-model") == parse("a-model", *given)


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
        (["m", "-fa", "on", "-O3", "-s", "7"], {"model": "m", "seed": 7}),
        (["m", "-O", "3", "--json-output", "-v"], {"log_format": "json", "log_level": "debug"}),
        (["--generation-config", "vllm"], {"generation_config": "none"}),
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
    changed = ["-O" if word == "-O3" else word for word in changed]
    notes = capsys.readouterr().err.splitlines()
    assert [note.split()[1] for note in notes] == changed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--enable-lora"], "--lora NAME=FOLDER"),
        (["--scheduling-policy", "priority"], "--policy fair or fcfs"),
        (["--json-output=true"], "unknown argument '--json-output'"),
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


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["m", "--served-model-name", "a", "b"], ("a", "b")),
        (["--served-model-name=a", "b", "c", "--model", "m"], ("a", "b", "c")),
        (["m", "--served-model-name", "a", "--served-model-name", "b", "--port", "5"], ("a", "b")),
        (["--port", "5", "--served-model-name", "a", "m"], ("a",)),
    ],
)
def test_several_served_names(arguments: list[str], names: tuple[str, ...]):
    config = parse(*arguments)
    assert (config.model, config.served_model_name) == ("m", names)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["m", "--served-model-name", "a", "--port", "5", "b"], "unknown argument 'b'"),
        (["--model", "m", "b"], "MODEL is given twice: m and b"),
    ],
)
def test_words_that_belong_to_no_flag(arguments: list[str], what: str):
    with pytest.raises(UsageError) as caught:
        parse(*arguments)
    assert caught.value.what == what


KEY = "sk-0123456789abcdef"


def test_variables_of_other_servers(capsys: pytest.CaptureFixture[str]):
    config = parse(environment={"VLLM_API_KEY": KEY, "OLLAMA_NUM_PARALLEL": "3"})
    assert (config.api_key, config.max_num_seqs) == ((KEY,), ServeConfig().max_num_seqs)
    assert capsys.readouterr().err.splitlines() == [
        "note: OLLAMA_NUM_PARALLEL is not read; use --max-num-seqs",
        "note: VLLM_API_KEY is --api-key here",
    ]
    assert parse("--api-key", "mine", environment={"LLAMA_API_KEY": KEY}).api_key == ("mine",)
    assert parse("--auth-file", "tokens", environment={"LLAMA_API_KEY": KEY}).api_key == ()
    assert parse(environment={"VLLM_API_KEY": ""}).api_key == ("",), "refused: too short"


@pytest.mark.parametrize("name", flags.KEYS)
def test_a_private_service_takes_no_key_of_the_environment(name: str):
    """Its client, such as pagewire.LLM, sends none."""
    assert parse(environment={name: KEY, "PAGEWIRE_PARENT_PID": "1"}).api_key == ()
    assert parse(environment={name: KEY}).api_key == (KEY,)


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
