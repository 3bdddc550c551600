"""The frontend's knowledge of the model, from the checkpoint's small files, and its description
for clients."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from frontend.answers.choice import AnswerFormats, choose
from frontend.audio.checkpoint import Audio, read_audio
from frontend.errors import Unsupported
from frontend.fetching.urls import media_hosts
from frontend.media.checkpoint import Images, read_images
from frontend.model.checkpoint_text import GENERATION_CONFIG, read_checkpoint, read_template
from frontend.model.pooling_config import PoolingDefaults, read_pooling
from frontend.model.scoring_config import PairScoring, read_scoring
from frontend.model.text_defaults import TextDefaults
from frontend.templates.chat_template import ChatTemplate
from frontend.text.tokenizer import Tokenizer
from frontend.text.tokenizer_files import (
    TokenizerArchive,
    read_json,
)
from frontend.validation.fields import FIELDS, Kind
from frontend.validation.requests import MAX_SCORED_BYTES
from frontend.validation.rules import (
    MAX_ID_BYTES,
    MAX_STOP_REGEXES,
    MAX_STRING_BYTES,
    Limits,
)
from pagewire.checkpoints.files import config_overrides, object_of_flag, why_not_generate
from pagewire.checkpoints.heads import Classes, read_classes
from pagewire.checkpoints.paths import checkpoint_path, default_served_name, tokenizer_folder
from pagewire.config import FrontendConfig
from pagewire.errors import StartupError
from pagewire.internal.v1 import engine_pb2
from pagewire.ipc.logprob_columns import MAX_OUTPUT_VALUES, MAX_PROMPT_CANDIDATES
from pagewire.limits import (
    MAX_BAD_WORD_TOKENS,
    MAX_BAD_WORDS,
    MAX_CHOICES,
    MAX_FETCHED_BYTES,
    MAX_GRAMMAR_BYTES,
    MAX_LENGTH_PENALTY,
    MAX_LOGIT_BIAS,
    MAX_MEDIA,
    MAX_MEDIA_PIXELS,
    MAX_MEDIA_SECONDS,
    MAX_STOPS,
    MAX_TOKEN_IDS,
)
from pagewire.v1 import generation_pb2, model_pb2

log = logging.getLogger(__name__)

DEFAULT_SAMPLING = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
    "n": 1,
}
"""Defaults where generation_config.json has none."""
DEFAULT = "default"
"""The origin of these."""
_LARGEST = 1 << 31
"""Bound of every sampling parameter's absolute value."""
FROM_GENERATION_CONFIG = ("temperature", "top_p", "top_k", "min_p", "typical_p", "repetition_penalty")


@dataclass(frozen=True)
class ModelInfo:
    """A served model, without the facts that only the engine knows."""

    names: tuple[str, ...]
    """In requests; answers have the first."""
    source: str
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    default_sampling: generation_pb2.SamplingParams
    bos_token_id: int | None
    pad_token_id: int | None
    archive: TokenizerArchive
    answers: AnswerFormats
    pooling: PoolingDefaults | None = None
    """How prompts are embedded; None: they are not."""
    classes: Classes | None = None
    """How prompts are classified; None: they are not."""
    scoring: PairScoring | None = None
    """How prompts of pairs are scored; None: they are not."""
    images: Images = Images()
    """How prompts have images, or why they have none."""
    audio: Audio = Audio()
    """The same of sounds."""
    generates: bool = True
    """False for an encoder, and for a checkpoint without an output head."""
    sampling_origins: Mapping[str, str] = field(default_factory=dict)
    """Where default_sampling is from, by field, as EffectiveParameters.origins says; not there: DEFAULT."""

    @property
    def name(self) -> str:
        """The name in answers."""
        return self.names[0]

    @property
    def texts(self) -> TextDefaults:
        """How texts to embed are prepared."""
        return self.pooling.texts if self.pooling is not None else TextDefaults()

    def require_head(self) -> None:
        """Raises Unsupported if this model cannot generate."""
        if not self.generates:
            raise Unsupported(
                {"model": "does not generate: it is an encoder, or its checkpoint has no output head"}
            )

    def answering_name(self, asked: str) -> str:
        """Returns the name in answers to a request with this `model`: this model's, or an adapter's."""
        return self.name if asked in ("", *self.names) else asked

    def describe(self, welcome: engine_pb2.Welcome, config: FrontendConfig) -> model_pb2.Model:
        """Returns the model's description for ModelService."""
        facts, limits = welcome.model, limits_of(welcome, config)
        capabilities = self._ways_to_generate(limits) if self.generates else []
        embedding_size = self.pooling.size(facts) if self.pooling is not None else 0
        if embedding_size:
            capabilities.append(model_pb2.CAPABILITY_EMBED)
        if capabilities and not facts.adapters_caveat:
            capabilities.append(model_pb2.CAPABILITY_ADAPTERS)
        if self.classes is not None:
            capabilities.append(model_pb2.CAPABILITY_CLASSIFY)
        has_cosines = self.pooling is not None and self.pooling.of_texts and embedding_size
        if has_cosines or self.scoring is not None:
            capabilities.append(model_pb2.CAPABILITY_SCORE)
        return model_pb2.Model(
            name=self.name,
            source=self.source,
            architecture=facts.architecture,
            dtype=facts.dtype,
            quantization=facts.quantization,
            kv_cache_dtype=facts.kv_cache_dtype,
            max_model_len=facts.max_model_len,
            vocab_size=facts.vocab_size,
            eos_token_ids=facts.eos_token_ids,
            ends=self.ends(limits),
            bos_token_id=self.bos_token_id,
            pad_token_id=self.pad_token_id,
            capabilities=capabilities,
            default_sampling=self.default_sampling,
            default_sampling_origins={
                each.name: self.sampling_origins.get(each.name, DEFAULT)
                for each, _ in self.default_sampling.ListFields()
            },
            limits=_limits_message(limits, config),
            implementation=facts.implementation,
            images_caveat=self.images.caveat,
            audio_caveat=self.audio.caveat,
            embedding_size=embedding_size,
            embedding_texts=self.texts.message() if embedding_size else None,
            exactness=model_pb2.Exactness(
                bitwise=not facts.exactness_caveat,
                reason=facts.exactness_caveat,
                arithmetic=facts.arithmetic,
            ),
        )

    @property
    def media(self) -> Images | Audio:
        """How prompts have media, of which a model takes one kind, or why they have none."""
        return self.audio or self.images

    def ends(self, limits: Limits) -> list[generation_pb2.EndToken]:
        """Returns the tokens that end a sequence, in ascending order, and what names them."""
        return [self.end(token, limits.eos_origins.get(token, "")) for token in sorted(limits.eos_token_ids)]

    def end(self, token: int, origin: str) -> generation_pb2.EndToken:
        """Returns a token that ends a sequence, with its text."""
        return generation_pb2.EndToken(token_id=token, text=self.tokenizer.spelling(token), origin=origin)

    def _ways_to_generate(self, limits: Limits) -> list[model_pb2.Capability]:
        found = [
            model_pb2.CAPABILITY_GENERATE,
            model_pb2.CAPABILITY_BEAM_SEARCH,
            model_pb2.CAPABILITY_PROMPT_LOGPROBS,
        ]
        if self.chat_template is not None:
            found.append(model_pb2.CAPABILITY_CHAT)
            if self.answers.tools is not None:
                found.append(model_pb2.CAPABILITY_TOOLS)
            if self.answers.reasons:
                found.append(model_pb2.CAPABILITY_REASONING)
        if limits.has_grammars:
            found.append(model_pb2.CAPABILITY_STRUCTURED_OUTPUT)
        if limits.input_embedding_size:
            found.append(model_pb2.CAPABILITY_PROMPT_EMBEDDINGS)
        if limits.takes_images and self.images.reader is not None:
            found.append(model_pb2.CAPABILITY_IMAGES)
        if limits.takes_audio and self.audio.reader is not None:
            found.append(model_pb2.CAPABILITY_AUDIO)
        return found


def _limits_message(limits: Limits, config: FrontendConfig) -> model_pb2.Limits:
    """Returns the limits on requests for clients."""
    return model_pb2.Limits(
        max_sequences=limits.max_sequences,
        max_stop_strings=limits.max_stop_strings,
        max_bad_words=MAX_BAD_WORDS,
        max_bad_word_tokens=MAX_BAD_WORD_TOKENS,
        max_logit_bias=MAX_LOGIT_BIAS,
        max_token_ids=MAX_TOKEN_IDS,
        max_string_bytes=MAX_STRING_BYTES,
        max_logprobs=limits.max_logprobs,
        max_prompt_candidates=MAX_PROMPT_CANDIDATES,
        max_output_values=MAX_OUTPUT_VALUES,
        max_beam_stop_tokens=MAX_STOPS,
        max_length_penalty=MAX_LENGTH_PENALTY,
        max_continuations=config.max_continuations,
        max_continuation_bytes=MAX_SCORED_BYTES,
        max_request_bytes=config.max_request_bytes,
        max_priority=limits.max_priority,
        max_draft_tokens=limits.max_draft_tokens,
        max_tenant_bytes=MAX_ID_BYTES,
        max_grammar_bytes=MAX_GRAMMAR_BYTES,
        max_choices=MAX_CHOICES,
        max_stop_regexes=MAX_STOP_REGEXES,
        max_media=MAX_MEDIA,
        max_media_pixels=MAX_MEDIA_PIXELS,
        max_media_seconds=MAX_MEDIA_SECONDS,
        max_fetched_bytes=MAX_FETCHED_BYTES if config.media_hosts else 0,
    )


def limits_of(welcome: engine_pb2.Welcome, config: FrontendConfig) -> Limits:
    """Returns the limits that requests are validated against."""
    vocab_size = welcome.model.vocab_size
    return Limits(
        vocab_size=vocab_size,
        max_model_len=welcome.model.max_model_len,
        eos_token_ids=frozenset(welcome.model.eos_token_ids),
        eos_origins=dict(zip(welcome.model.eos_token_ids, welcome.eos_origins, strict=False)),
        max_sequences=min(config.max_sequences, welcome.max_num_seqs),
        max_stop_strings=config.max_stop_strings,
        max_priority=welcome.max_priority,
        max_draft_tokens=welcome.max_draft_tokens,
        max_logprobs=vocab_size if config.max_logprobs < 0 else min(config.max_logprobs, vocab_size),
        num_ranks=welcome.parallelism.data,
        has_grammars=bool(welcome.model.grammar_engine),
        input_embedding_size=welcome.model.input_embedding_size,
        media_hosts=media_hosts(config.media_hosts),
        takes_images=engine_pb2.MEDIA_KIND_IMAGE in welcome.model.media_kinds,
        takes_audio=engine_pb2.MEDIA_KIND_AUDIO in welcome.model.media_kinds,
    )


def load_model(config: FrontendConfig) -> ModelInfo:
    """Reads what a checkpoint has for a frontend. Raises StartupError."""
    path = checkpoint_path(config.model)
    text = read_checkpoint(path, tokenizer_folder(config.tokenizer))
    fields = {**text.token_ids, **config_overrides(config.hf_overrides)}
    template, origin, for_tools = text.template, text.template_origin, text.tool_template
    if config.chat_template:
        origin = str(Path(config.chat_template).expanduser())
        template, for_tools = read_template(Path(origin)), None

    def compiled(source: str | None, other: ChatTemplate | None = None) -> ChatTemplate | None:
        special, most = text.special_tokens, config.max_request_bytes
        if source is None:
            return None
        return ChatTemplate(source, special, max_bytes=most, origin=origin, for_tools=other)

    def token_id(name: str) -> int | None:
        token = text.special_tokens.get(f"{name}_token")
        found = text.tokenizer.token_id(token) if token is not None else None
        stated = fields.get(f"{name}_token_id")
        return found if found is not None else stated if _is_token_id(stated) else None

    sampling, origins = _sampling_of(config, text.generation_config)
    changed = [
        f"{name} {value:g} ({origins.get(name, DEFAULT)})"
        for name, value in _named(sampling)
        if value != DEFAULT_SAMPLING.get(name)
    ]
    if changed:
        log.info("requests without these fields have %s", ", ".join(changed))
    pooling, reason = read_pooling(path, config.pooling_type), why_not_generate(fields)
    classes = read_classes(fields)
    if reason and pooling is None:
        raise StartupError(
            "cannot generate with this checkpoint",
            f"config.json: {reason}",
            "--pooling-type last, mean or cls embeds with it",
        )
    return ModelInfo(
        names=config.served_model_name or (default_served_name(config.model),),
        source=config.model,
        tokenizer=text.tokenizer,
        chat_template=compiled(template, compiled(for_tools)),
        default_sampling=sampling,
        sampling_origins=origins,
        bos_token_id=token_id("bos"),
        pad_token_id=token_id("pad"),
        archive=text.archive(template),
        answers=choose(
            *(text.tokenizer, text.response_template, for_tools or template),
            *(config.tool_format, config.reasoning_format),
        ),
        pooling=pooling,
        classes=classes,
        scoring=read_scoring(config, text, fields, classes, path),
        images=read_images(path, fields, text.tokenizer),
        audio=read_audio(path, fields, text.tokenizer),
        generates=not reason and classes is None,
    )


def _named(sampling: generation_pb2.SamplingParams) -> list[tuple[str, float]]:
    return [(field.name, value) for field, value in sampling.ListFields()]


def _is_token_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 32


def _sampling_of(
    config: FrontendConfig, own: Path | None
) -> tuple[generation_pb2.SamplingParams, dict[str, str]]:
    """Returns the defaults of sampling, by --generation-config and --override-generation-config, and where
    those are from that are stated. own: the checkpoint's file. Raises StartupError."""
    origin, path = GENERATION_CONFIG, None if config.generation_config == "none" else own
    if config.generation_config not in ("auto", "none"):
        origin = "--generation-config"
        path = Path(config.generation_config).expanduser()
        path = path / GENERATION_CONFIG if path.is_dir() else path
        if not path.is_file():
            raise StartupError("cannot read the defaults of sampling", f"--generation-config: no file {path}")
    content = read_json(path) if path is not None else {}
    sampling = default_sampling(content, str(path))
    origins = dict.fromkeys(_stated_sampling(content), origin)
    if config.override_generation_config:
        flag = "--override-generation-config"
        override = object_of_flag(flag, config.override_generation_config)
        unknown = sorted(override.keys() - {*FROM_GENERATION_CONFIG, "do_sample"})
        if unknown:
            raise StartupError(
                "cannot read the defaults of sampling",
                f"{flag}: there is no default {unknown[0]!r}",
                f"there are do_sample, {', '.join(FROM_GENERATION_CONFIG)}",
            )
        sampling.MergeFrom(default_sampling(override, flag, {}))
        origins |= dict.fromkeys(_stated_sampling(override), flag)
    return sampling, origins


def _stated_sampling(content: Mapping[str, Any]) -> list[str]:
    """Returns the fields whose defaults the content of a generation_config.json states."""
    is_greedy = ["temperature"] if content.get("do_sample") is False else []
    return [*is_greedy, *(name for name in FROM_GENERATION_CONFIG if content.get(name) is not None)]


def default_sampling(
    stated: Mapping[str, Any], origin: str, otherwise: Mapping[str, float] = DEFAULT_SAMPLING
) -> generation_pb2.SamplingParams:
    """Returns the values of absent sampling fields, as the content of a generation_config.json states them.
    Raises StartupError.

    do_sample: false means greedy; a file without it leaves sampling on, as other servers do. origin: for
    errors. otherwise: values of fields that are not stated.
    """
    values: dict[str, Any] = dict(otherwise)
    for name in FROM_GENERATION_CONFIG:
        value = stated.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _LARGEST:
            raise StartupError("cannot read the checkpoint", f"{origin}: {name} is not a number")
        values[name] = max(int(value), 0) if name == "top_k" else float(value)  # -1: all, too
        problem = _sampling_problem(name, values[name])
        if problem is not None:
            raise StartupError("cannot read the checkpoint", f"{origin}: {name} {problem}")
    if stated.get("do_sample") is False:
        values["temperature"] = 0.0
    return generation_pb2.SamplingParams(**values)


def _sampling_problem(name: str, value: float) -> str | None:
    check = FIELDS[f"sampling.{name}"]
    assert not isinstance(check, Kind)
    return check(value, Limits(1, 1, frozenset(), 1, 1))
