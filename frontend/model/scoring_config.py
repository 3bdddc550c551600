"""How a model scores a query and a document in one prompt: by a classifier of one label, or by the logits of
chosen tokens. Never without a template: scores of a prompt that the model was not trained on mean nothing.

The template is that of --score-template, or the checkpoint's chat template if it reads messages of the roles
query and document, or that of a reranker that is known by name. An encoder has its tokenizer's form of pairs.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frontend.model.checkpoint_text import CheckpointText, read_template
from frontend.model.pooling_config import TYPES
from frontend.model.score_templates import RERANKERS, Reranker
from frontend.model.text_defaults import PROMPTS_FILE
from frontend.templates.chat_template import ChatTemplate
from frontend.templates.pair_template import PairTemplate
from frontend.text.tokenizer import Tokenizer
from pagewire.checkpoints.files import classifies_by_encoder, read_object, why_not_generate
from pagewire.checkpoints.heads import CLASSIFIER, Classes
from pagewire.config import FrontendConfig
from pagewire.errors import StartupError
from pagewire.internal.v1.engine_pb2 import POOLING_TYPE_LAST, Pooling

log = logging.getLogger(__name__)
_WHAT = "cannot score pairs"
_PAIR_ROLES = tuple(
    re.compile(rf"""["']role["']\s*,\s*["'](?:eq|==|equalto)["']\s*,\s*["']{role}["']""")
    for role in ("query", "document")
)
"""Filters that select messages of pairs."""


@dataclass(frozen=True, slots=True)
class PairScoring:
    """template: None: the tokenizer's form of pairs. pooling: what the engine makes of a prompt: one number,
    or two whose difference counts. activation: of that, "none" or "sigmoid"."""

    template: PairTemplate | None
    pooling: Pooling
    activation: str


def read_scoring(
    config: FrontendConfig,
    text: CheckpointText,
    fields: Mapping[str, Any],
    classes: Classes | None,
    folder: Path,
) -> PairScoring | None:
    """Returns how the model scores pairs; None: nothing says how. fields: of config.json in the checkpoint's
    folder. Raises StartupError."""
    by_tokenizer = classifies_by_encoder(fields) and not config.score_template
    reranker = RERANKERS.get(config.score_template.lower()) or _known_by_name(config.model)
    source, origin = _template_of(config, text, reranker)
    if by_tokenizer:
        source, origin = "", "two texts as the tokenizer puts them together"
    if source is None:
        if config.score_tokens:
            raise StartupError(_WHAT, "--score-tokens has no template", "--score-template names one")
        return None
    found = _pooling_of(config, text.tokenizer, fields, classes, reranker)
    if isinstance(found, str):
        if config.score_template or config.score_tokens:
            raise StartupError(_WHAT, found)
        return None
    log.info("scores pairs of query and document: %s", origin)
    most, pairs = config.max_request_bytes, None
    if not by_tokenizer:
        template = ChatTemplate(source, text.special_tokens, max_bytes=most, origin=origin)
        pairs = PairTemplate(template, origin)
    return PairScoring(pairs, found, _activation_of(fields, folder) if classes else "sigmoid")


def _known_by_name(model: str) -> Reranker | None:
    """Returns the reranker that a folder, a file, a model of the hub or a folder of its cache is named by."""
    *above, name = Path(model).parts or ("",)
    names = [name, *(part for part in above if part.startswith("models--"))]
    found = (
        each for each in RERANKERS.values() if any(each.checkpoint.search(name.lower()) for name in names)
    )
    return next(found, None)


def _template_of(
    config: FrontendConfig, text: CheckpointText, reranker: Reranker | None
) -> tuple[str | None, str]:
    """Returns the template of pairs, and its origin for errors."""
    wanted = config.score_template
    if wanted and wanted.lower() not in RERANKERS:
        path = Path(wanted).expanduser()
        if not path.is_file():
            names = ", ".join(RERANKERS)
            raise StartupError(_WHAT, f"--score-template: {wanted} is no file, and none of {names}")
        return read_template(path), str(path)
    own = text.template
    if not wanted and own is not None and all(role.search(own) for role in _PAIR_ROLES):
        return own, text.template_origin
    if reranker is None:
        return None, ""
    return reranker.template, f"the template {next(n for n, each in RERANKERS.items() if each is reranker)}"


def _pooling_of(
    config: FrontendConfig,
    tokenizer: Tokenizer,
    fields: Mapping[str, Any],
    classes: Classes | None,
    reranker: Reranker | None,
) -> Pooling | str:
    """Returns what the engine makes of a prompt, or why no score can be made of it."""
    if classes is not None:
        if config.score_tokens:
            return "--score-tokens: the checkpoint has a classifier in place of tokens"
        if len(classes.labels) != 1:
            return f"the classifier has {len(classes.labels)} labels, and a score is the number of one"
        return Pooling(type=TYPES[classes.pooling], head=CLASSIFIER)
    if reason := why_not_generate(fields):
        return f"config.json: {reason}"
    tokens: Sequence[str] = tuple(config.score_tokens.split(",")) if config.score_tokens else ()
    tokens = tokens or (reranker.tokens if reranker is not None else ())
    if not 1 <= len(tokens) <= 2:
        return "--score-tokens must name the tokens for and against relevance, as in yes,no, or one alone"
    ids = [tokenizer.encode_following(token) for token in tokens]
    for token, found in zip(tokens, ids, strict=True):
        if len(found) != 1:
            return f"--score-tokens: {token!r} is not one token of the vocabulary, but {len(found)}"
    return Pooling(type=POOLING_TYPE_LAST, token_ids=(found[0] for found in ids))


def _activation_of(fields: Mapping[str, Any], folder: Path) -> str:
    """Returns what a cross-encoder's number becomes, as sentence-transformers has it. Raises StartupError."""
    own = read_object(folder, PROMPTS_FILE, _WHAT) if folder.is_dir() else None
    section = fields.get("sentence_transformers")
    stated = (own or {}).get("activation_fn")
    stated = stated or (section.get("activation_fn") if isinstance(section, dict) else None)
    stated = stated or fields.get("sbert_ce_default_activation_function") or "Sigmoid"
    known = {"Sigmoid": "sigmoid", "Identity": "none"}
    if (name := str(stated).rpartition(".")[2]) not in known:
        why = f"activation_fn {name} is not known; {' and '.join(known)} are"
        raise StartupError(_WHAT, why)
    return known[name]
