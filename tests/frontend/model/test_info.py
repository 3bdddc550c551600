"""The small files of a checkpoint, and what clients are told of them."""

import pytest

from frontend.model.info import limits_of, load_model
from pagewire.config import FrontendConfig
from pagewire.errors import StartupError
from pagewire.internal.v1 import engine_pb2
from pagewire.v1 import model_pb2, prompt_pb2
from tests.frontend.fakes import BEGIN, PAD, write_checkpoint

WELCOME = engine_pb2.Welcome(
    model=engine_pb2.ModelFacts(
        architecture="FakeForCausalLM",
        dtype="float32",
        vocab_size=512,
        max_model_len=200,
        eos_token_ids=[2, 3],
        implementation="native",
    ),
    max_num_seqs=8,
    max_priority=1000,
    max_draft_tokens=8,
)


def load(folder, **options):
    return load_model(FrontendConfig(model=str(folder), **options))


def rendered(model) -> str:
    chat = prompt_pb2.Chat(messages=[{"role": "user", "content": [{"text": "a"}]}])
    template = model.chat_template
    return template.render(template.read(chat, "chat"), "chat")


def test_what_clients_are_told(tmp_path):
    config = FrontendConfig(model=str(write_checkpoint(tmp_path / "tiny")), max_sequences=64)
    model = load_model(config).describe(WELCOME, config)
    assert (model.name, model.source) == ("tiny", str(tmp_path / "tiny"))
    assert (model.architecture, model.dtype) == ("FakeForCausalLM", "float32")
    assert (model.max_model_len, model.vocab_size, list(model.eos_token_ids)) == (200, 512, [2, 3])
    assert (model.bos_token_id, model.pad_token_id) == (BEGIN, PAD)
    beams, scores = model_pb2.CAPABILITY_BEAM_SEARCH, model_pb2.CAPABILITY_PROMPT_LOGPROBS
    chat, adapters = model_pb2.CAPABILITY_CHAT, model_pb2.CAPABILITY_ADAPTERS
    assert list(model.capabilities) == [model_pb2.CAPABILITY_GENERATE, beams, scores, chat, adapters]
    assert (model.limits.max_sequences, model.limits.max_stop_strings) == (8, 64)
    assert model.limits.max_request_bytes == 16 << 20 and model.limits.max_logprobs == 20
    assert (model.limits.max_priority, model.limits.max_tenant_bytes) == (1000, 256)
    assert (model.limits.max_logit_bias, model.limits.max_token_ids) == (4096, 4096)
    assert model.exactness.bitwise and not model.exactness.reason
    assert model.implementation == "native"

    inexact = engine_pb2.Welcome()
    inexact.CopyFrom(WELCOME)
    inexact.model.arithmetic, inexact.model.exactness_caveat = "torch", "torch computes"
    told = load_model(config).describe(inexact, config).exactness
    assert (told.bitwise, told.reason, told.arithmetic) == (False, "torch computes", "torch")


def test_every_limit_is_told(tmp_path):
    """A limit that is new in the protos shows up here."""
    config = FrontendConfig(model=str(write_checkpoint(tmp_path)), media_hosts=("a.example",))
    limits = load_model(config).describe(WELCOME, config).limits
    told = {field.name for field, _ in limits.ListFields()}
    assert told == {field.name for field in limits.DESCRIPTOR.fields}


def test_without_a_template_there_is_no_chat(tmp_path):
    config = FrontendConfig(model=str(write_checkpoint(tmp_path, chat_template_jinja=None)))
    capabilities = load_model(config).describe(WELCOME, config).capabilities
    assert model_pb2.CAPABILITY_CHAT not in capabilities


def test_limits():
    limits = limits_of(WELCOME, FrontendConfig(max_sequences=4, max_stop_strings=3))
    assert (limits.max_sequences, limits.max_stop_strings, limits.eos_token_ids) == (4, 3, {2, 3})


@pytest.mark.parametrize(("flag", "limit"), [(0, 0), (7, 7), (513, 512), (-1, 512)])
def test_candidates_are_at_most_the_vocabulary(flag, limit):
    assert limits_of(WELCOME, FrontendConfig(max_logprobs=flag)).max_logprobs == limit


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        (None, {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "repetition_penalty": 1.0, "n": 1}),
        ({"temperature": 0.6, "top_p": 0.9, "do_sample": True}, {"temperature": 0.6, "top_p": 0.9}),
        ({"temperature": 0.6, "do_sample": False}, {"temperature": 0.0}),
        ({"top_k": -1, "min_p": 0.05, "typical_p": 0.5}, {"top_k": 0, "min_p": 0.05, "typical_p": 0.5}),
        ({"temperature": None, "repetition_penalty": 1.1, "max_length": 20}, {"repetition_penalty": 1.1}),
    ],
)
def test_default_sampling(tmp_path, stated, expected):
    folder = write_checkpoint(tmp_path, generation_config_json=stated)
    sampling = load(folder).default_sampling
    for name, value in expected.items():
        assert getattr(sampling, name) == pytest.approx(value)
    unset = [field.name for field in sampling.DESCRIPTOR.fields if field.has_presence]
    unset = [name for name in unset if not sampling.HasField(name)]
    assert unset == ["seed", "best_of", "beam_search"]


GREEDY = {"do_sample": False, "top_k": 20}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"generation_config": "none"}, {"temperature": 1.0, "top_k": 0}),
        ({"generation_config": "OTHER"}, {"temperature": 0.25, "top_k": 0}),
        ({"generation_config": "OTHER/generation_config.json"}, {"temperature": 0.25}),
        ({"override_generation_config": '{"temperature": 0.5}'}, {"temperature": 0.5, "top_k": 20}),
        ({"override_generation_config": '{"top_k": -1}'}, {"temperature": 0.0, "top_k": 0}),
        (
            {"generation_config": "none", "override_generation_config": '{"do_sample": false}'},
            {"temperature": 0.0, "top_k": 0},
        ),
    ],
    ids=str,
)
def test_defaults_of_flags_go_before_those_of_the_checkpoint(tmp_path, options, expected):
    other = write_checkpoint(tmp_path / "other", generation_config_json={"temperature": 0.25})
    options = {name: value.replace("OTHER", str(other)) for name, value in options.items()}
    sampling = load(write_checkpoint(tmp_path, generation_config_json=GREEDY), **options).default_sampling
    assert {name: getattr(sampling, name) for name in expected} == expected


def test_where_defaults_are_from(tmp_path, caplog):
    folder = write_checkpoint(tmp_path, generation_config_json=GREEDY | {"top_p": None})
    assert load(folder).sampling_origins == dict.fromkeys(("temperature", "top_k"), "generation_config.json")
    with caplog.at_level("INFO"):
        model = load(folder, override_generation_config='{"top_k": 5, "min_p": 0.5}')
    assert model.sampling_origins["temperature"] == "generation_config.json"
    assert (
        model.sampling_origins["top_k"] == model.sampling_origins["min_p"] == "--override-generation-config"
    )
    assert "temperature 0 (generation_config.json), top_k 5 (--override-generation-config)" in caplog.text
    assert load(folder, generation_config=str(folder)).sampling_origins["top_k"] == "--generation-config"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"generation_config": "/no/such"}, "--generation-config: no file /no/such"),
        ({"override_generation_config": "{"}, "it is not readable JSON"),
        ({"override_generation_config": "[]"}, "it is not a JSON object"),
        ({"override_generation_config": '{"n": 2}'}, "--override-generation-config: there is no default 'n'"),
        ({"override_generation_config": '{"top_p": 2}'}, "--override-generation-config: top_p "),
    ],
    ids=str,
)
def test_defaults_that_are_refused(tmp_path, options, why):
    with pytest.raises(StartupError) as caught:
        load(write_checkpoint(tmp_path), **options)
    assert caught.value.why.startswith(why)


def test_a_tokenizer_of_another_folder(tmp_path):
    other = write_checkpoint(tmp_path / "other", chat_template_jinja="other", generation_config_json=None)
    bare = {"tokenizer_json": None, "tokenizer_config_json": None, "chat_template_jinja": "own"}
    model = load(write_checkpoint(tmp_path / "model", **bare), tokenizer=str(other))
    assert (model.name, rendered(model), model.bos_token_id) == ("model", "other", BEGIN)
    assert model.default_sampling.top_k == 40, "of the checkpoint"
    assert model.archive.sha256 == load(other).archive.sha256


def test_a_tokenizer_that_is_no_folder(tmp_path):
    with pytest.raises(StartupError, match="--tokenizer: /no/such is not a folder"):
        load(write_checkpoint(tmp_path), tokenizer="/no/such")


def test_overrides_of_config_json(tmp_path):
    folder = write_checkpoint(tmp_path, tokenizer_config_json=None, config_json={"bos_token_id": 7})
    assert load(folder, hf_overrides='{"bos_token_id": 8}').bos_token_id == 8


def test_every_served_name_means_the_model(tmp_path):
    model = load(write_checkpoint(tmp_path), served_model_name=("one", "two"))
    assert [model.answering_name(name) for name in ("", "one", "two", "three")] == [*3 * ["one"], "three"]
    assert model.name == "one"


def test_defaults_of_the_checkpoint_are_logged(tmp_path, caplog):
    caplog.set_level("INFO")
    load(write_checkpoint(tmp_path, generation_config_json={"temperature": 0.6, "top_p": 1.0, "top_k": 20}))
    (logged,) = [each.getMessage() for each in caplog.records if "requests without" in each.getMessage()]
    origin = "(generation_config.json)"
    assert logged == f"requests without these fields have temperature 0.6 {origin}, top_k 20 {origin}"


@pytest.mark.parametrize("stated", [{"top_p": 1.5}, {"temperature": "hot"}, {"top_k": True}, {"min_p": -1}])
def test_defaults_that_make_no_sense_end_the_start(tmp_path, stated):
    folder = write_checkpoint(tmp_path, generation_config_json=stated)
    with pytest.raises(StartupError) as caught:
        load(folder)
    assert "generation_config.json" in caught.value.why and next(iter(stated)) in caught.value.why


def test_places_of_a_chat_template(tmp_path):
    """A file of its own, or inside one of two others; --chat-template before all."""
    own = tmp_path / "own.jinja"
    own.write_text("own")
    config = {"chat_template": "in-config"}
    named = {
        "chat_template": [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "named"}]
    }
    cases = {
        "file": {"tokenizer_config_json": config, "chat_template_jinja": "file"},
        "in-json": {"chat_template_json": {"chat_template": "in-json"}, "chat_template_jinja": None},
        "in-config": {"tokenizer_config_json": config, "chat_template_jinja": None},
        "named": {"tokenizer_config_json": named, "chat_template_jinja": None},
        "object": {
            "tokenizer_config_json": {"chat_template": {"tool_use": "x", "default": "object"}},
            "chat_template_jinja": None,
        },
    }
    for expected, files in cases.items():
        folder = write_checkpoint(tmp_path / expected, **files)
        assert rendered(load(folder)) == expected
        assert rendered(load(folder, chat_template=str(own))) == "own"


def test_a_chat_template_for_tools(tmp_path):
    """Beside the default one, in a list or in a file: for conversations with tools."""
    named = [
        {"name": "tool_use", "template": "{{ tools | length }} tools"},
        {"name": "default", "template": "no"},
    ]
    listed = write_checkpoint(
        tmp_path / "listed", tokenizer_config_json={"chat_template": named}, chat_template_jinja=None
    )
    in_files = write_checkpoint(tmp_path / "files", chat_template_jinja="no")
    (in_files / "additional_chat_templates").mkdir()
    (in_files / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools | length }} tools")
    chat = prompt_pb2.Chat(
        messages=[{"role": "user", "content": [{"text": "a"}]}],
        tools=[{"name": "f"}],
    )
    for folder in (listed, in_files):
        template = load(folder).chat_template
        assert rendered(load(folder)) == "no"
        assert template.render(template.read(chat, "chat"), "chat") == "1 tools"
    own = tmp_path / "own.jinja"
    own.write_text("own {{ tools }}")
    template = load(listed, chat_template=str(own)).chat_template
    assert template.render(template.read(chat, "chat"), "chat").startswith("own [")


def test_named_chat_templates_without_a_default(tmp_path, caplog):
    config = {"chat_template": [{"name": "rag", "template": "x"}]}
    folder = write_checkpoint(tmp_path, tokenizer_config_json=config, chat_template_jinja=None)
    assert load(folder).chat_template is None
    assert (
        "has the chat templates rag, and none is called default; choose with --chat-template" in caplog.text
    )


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ('{"architectures": ["LlamaModel"]}', "LlamaModel is a decoder without an output head"),
        ('{"architectures": ["BertForMaskedLM"]}', "BertForMaskedLM is an encoder"),
        (
            '{"architectures": ["Gemma3ForCausalLM"], "use_bidirectional_attention": true}',
            "use_bidirectional_attention makes it an encoder",
        ),
    ],
)
def test_what_cannot_generate_has_to_embed(tmp_path, config, why):
    folder = write_checkpoint(tmp_path)
    (folder / "config.json").write_text(config)
    with pytest.raises(StartupError, match=why) as refused:
        load(folder)
    assert "--pooling-type" in refused.value.todo
    assert not load(folder, pooling_type="mean").generates


def test_a_chat_template_that_is_not_there(tmp_path):
    with pytest.raises(StartupError, match="nowhere"):
        load(write_checkpoint(tmp_path), chat_template="/nowhere/a.jinja")


def test_a_chat_template_that_cannot_be_read(tmp_path):
    with pytest.raises(StartupError, match="chat_template.jinja"):
        load(write_checkpoint(tmp_path, chat_template_jinja="{% if %}"))


def test_token_ids_that_only_config_json_knows(tmp_path):
    config = {"architectures": ["A"], "bos_token_id": 7, "pad_token_id": -1}
    model = load(write_checkpoint(tmp_path, tokenizer_config_json={}, config_json=config))
    assert model.bos_token_id == 7 and model.pad_token_id is None
