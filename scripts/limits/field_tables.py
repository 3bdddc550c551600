"""What every field of every request may be, for people: the rules of fields.py, and what is judged elsewhere.

field_rows.py makes rows of it, and docs/limits.md is printed from those.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from frontend.paging import MAX_SIZE
from frontend.validation.fields import FIELDS, Kind
from frontend.validation.requests import (
    DTYPES,
    MAX_ABORTS,
    MAX_DETOKENIZED,
    MAX_PAIR_BYTES,
    MAX_PARTS,
    MAX_PROMPTS,
    MAX_SCORED_BYTES,
)
from frontend.validation.rules import IDENTIFIER, MAX_COUNT, PRIORITY, Rule
from pagewire.limits import (
    MAX_MEDIA,
    MAX_MEDIA_ASPECT,
    MAX_MEDIA_PIXELS,
    MAX_MEDIA_SECONDS,
    MAX_VECTOR_VALUES,
)

TABLE = "frontend/validation/fields.py"
VALIDATION = "frontend/validation/requests.py"
TEXT_DEFAULTS = "frontend/model/text_defaults.py"
PROMPTS = "frontend/prompts/prompt_encoding.py"
TEMPLATE = "frontend/templates/chat_template.py"
GENERATOR = "frontend/streams/generator.py"
ADAPTERS = "frontend/engine/adapters.py"
CORE_ADAPTERS = "engine_core/adapters/sources.py"
MULTIPLEXER = "frontend/streams/multiplexer.py"
ADMIN = "frontend/servicers/admin.py"
FLEET = "frontend/rpc/fleet.py"
INSPECTOR = "frontend/inspector.py"
PAGING = "frontend/paging.py"


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A field that no rule of one value can judge."""

    range: str
    where: str


Entry = Rule | Kind | Elsewhere
TEXT = Elsewhere("16 bytes per token of context, at least 256 KiB", PROMPTS)
CONVERSATION = Elsewhere(f"at least 1; at most {MAX_PARTS} parts in the request", VALIDATION)
MEDIA = Elsewhere(
    f"at most {MAX_MEDIA} in a prompt, {MAX_MEDIA_PIXELS} pixels or {MAX_MEDIA_SECONDS} s in all, no side"
    f" {MAX_MEDIA_ASPECT} times the other; of prompts to generate from, and to tokenize",
    VALIDATION,
)
SERVED_MODEL = Elsewhere("a name that is served, or of an adapter that the caller may use", GENERATOR)
ADAPTER = Elsewhere("the name of an adapter that the caller may use", ADAPTERS)
PAGES: dict[str, Entry] = {
    "limit": Elsewhere(f"1 to {MAX_SIZE}; not with page_size or page_token", PAGING),
    "page_size": Elsewhere(f"0 to {MAX_COUNT}; above {MAX_SIZE} counts as that", PAGING),
    "page_token": Elsewhere("next_page_token of the same list with the same filters", PAGING),
}
FRONTEND_NAME = Elsewhere("at most 256 bytes; stands for one frontend; not with all_frontends", FLEET)

JUDGED_ELSEWHERE: dict[str, Elsewhere] = {
    "model": SERVED_MODEL,
    "prompt": Elsewhere("required: text, token_ids or chat", VALIDATION),
    "prompt.text": TEXT,
    "prompt.media": MEDIA,
    "prompt.chat.messages.content.media": MEDIA,
    "prompt.token_ids.ids": Elsewhere("ids of the vocabulary; at least 1, fewer than the context", PROMPTS),
    "prompt.chat.messages": CONVERSATION,
    "prompt.chat.messages.content.text": Elsewhere("as prompt.text, all messages together", PROMPTS),
    "prompt.chat.messages.reasoning": Elsewhere("where the template reads it", TEMPLATE),
    "prompt.chat.continue_final_message": Elsewhere("not with add_generation_prompt", VALIDATION),
    "prompt.chat.template_kwargs": Elsewhere("names that the template does not reserve", TEMPLATE),
    "output.prompt_logprobs_start": Elsewhere("below the prompt's length", "frontend/engine/logprobs.py"),
    "output.echo": Elsewhere("not with output.text = false", VALIDATION),
    "continuation.sequences.index": Elsewhere("below n; each once", VALIDATION),
    "continuation.sequences.token_ids": Elsewhere(
        "ids of the vocabulary; what the request can have produced", "frontend/streams/continuation.py"
    ),
}
"""Of a GenerateRequest: fields that FIELDS leaves free, or more than their rule says."""

DEFAULTS: dict[str, str] = {
    "request_id": "drawn by the server",
    "model": "the only model",
    "prompt.add_special_tokens": "true for text, false for chat",
    "prompt.truncate_to": "no truncation",
    "prompt.truncation_side": "left",
    "prompt.chat.add_generation_prompt": "true, unless continue_final_message",
    "prompt.chat.enable_thinking": "as the chat template has it",
    "prompt.chat.parallel_tool_calls": "true",
    "reasoning.budget": "any number",
    **{
        f"sampling.{name}": "the model's (Model.default_sampling)"
        for name in (
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "typical_p",
            "frequency_penalty",
            "presence_penalty",
            "repetition_penalty",
        )
    },
    "sampling.seed": "drawn by the server, which reports it",
    "sampling.n": "1",
    "sampling.best_of": "n",
    "sampling.beam_search.width": "required",
    "sampling.beam_search.length_penalty": "1",
    "sampling.beam_search.early_stopping": "false",
    "stopping.max_tokens": "what the context leaves",
    "stopping.min_tokens": "0",
    "stopping.ignore_eos": "false",
    "stopping.include_stop": "false",
    "stopping.time_limit": "none",
    "speculation.max_draft_tokens": "Limits.max_draft_tokens",
    "output.mode": "deltas",
    "output.text": "true",
    "output.skip_special_tokens": "true",
    "output.stream_interval": "1",
    "output.prompt_logprobs_start": "1, the first that has one",
    "routing.data_parallel_rank": "the server chooses",
}
"""What a field that is not set means, where that is not the zero of its type."""


def _below(prefix: str, new: str) -> dict[str, Entry]:
    """Entries of GenerateRequest at and below a path, under another one."""
    entries = {**FIELDS, **JUDGED_ELSEWHERE}
    return {
        new + path.removeprefix(prefix): entry
        for path, entry in entries.items()
        if path == prefix or path.startswith(f"{prefix}.")
    }


REQUESTS: dict[str, Mapping[str, Entry]] = {
    "GenerateRequest": {**FIELDS, **JUDGED_ELSEWHERE},
    "AbortRequest": {
        "request_ids": Elsewhere(f"at most {MAX_ABORTS}, each {IDENTIFIER.range}", VALIDATION),
        "tenant": IDENTIFIER,
    },
    "GenerateMultiplexedRequest": {
        "generate": Elsewhere("a GenerateRequest whose request_id is not empty", MULTIPLEXER),
        "abort": Elsewhere("an AbortRequest; ids of other streams count for nothing", MULTIPLEXER),
    },
    "TokenizeRequest": {
        "model": SERVED_MODEL,
        **_below("prompt", "prompts"),
        "prompts": Elsewhere(f"1 to {MAX_PROMPTS}", VALIDATION),
        "prompts.text": Elsewhere("at most 2 MiB", PROMPTS),
        "prompts.token_ids.ids": Elsewhere("ids of the vocabulary; at most 524,288", PROMPTS),
        "token_texts": Kind.FREE,
        "offsets": Elsewhere("not for prompts of token ids", PROMPTS),
        "rendered_text": Kind.FREE,
        "count_only": Kind.FREE,
    },
    "DetokenizeRequest": {
        "model": SERVED_MODEL,
        "sequences": Elsewhere(f"1 to {MAX_PROMPTS}", VALIDATION),
        "sequences.ids": Elsewhere(f"ids of the vocabulary; at most {MAX_DETOKENIZED} in all", VALIDATION),
        "skip_special_tokens": Kind.FREE,
    },
    "GetTokenizerRequest": {"model": SERVED_MODEL},
    "ScoreContinuationsRequest": {
        "request_id": Elsewhere(f"{IDENTIFIER.range}, with room for a suffix", VALIDATION),
        "model": SERVED_MODEL,
        **_below("prompt", "prompt"),
        "continuations": Elsewhere(
            f"1 to Limits.max_continuations, not empty; {MAX_SCORED_BYTES} bytes in all", VALIDATION
        ),
        "token_logprobs": Kind.FREE,
        "priority": PRIORITY,
        "tenant": IDENTIFIER,
        **_below("cache", "cache"),
    },
    "EmbedRequest": {
        "request_id": Elsewhere(f"{IDENTIFIER.range}, with room for a suffix", VALIDATION),
        "model": SERVED_MODEL,
        **_below("prompt", "inputs"),
        "inputs": Elsewhere(
            f"1 to {MAX_PROMPTS}, each with text, token_ids or chat; {MAX_VECTOR_VALUES} elements in all",
            VALIDATION,
        ),
        "dimensions": Elsewhere("1 to Model.embedding_size", VALIDATION),
        "normalize": Kind.FREE,
        "kind": Elsewhere("values of EmbeddingKind", VALIDATION),
        "raw_dtype": Elsewhere(", ".join(DTYPES), VALIDATION),
        "prompt_name": Elsewhere("names of Model.embedding_texts; with one, inputs are texts", TEXT_DEFAULTS),
        "priority": PRIORITY,
        "tenant": IDENTIFIER,
        "adapter": ADAPTER,
        **_below("cache", "cache"),
    },
    "ClassifyRequest": {
        "request_id": Elsewhere(f"{IDENTIFIER.range}, with room for a suffix", VALIDATION),
        "model": SERVED_MODEL,
        **_below("prompt", "inputs"),
        "inputs": Elsewhere(
            f"1 to {MAX_PROMPTS}, each with text, token_ids or chat; {MAX_VECTOR_VALUES} numbers in all",
            VALIDATION,
        ),
        "priority": PRIORITY,
        "tenant": IDENTIFIER,
        **_below("cache", "cache"),
    },
    "ScoreRequest": {
        "request_id": Elsewhere(f"{IDENTIFIER.range}, with room for a suffix", VALIDATION),
        "model": SERVED_MODEL,
        **_below("prompt", "query"),
        **_below("prompt", "documents"),
        "documents": Elsewhere(
            f"1 to {MAX_PROMPTS}; for a template {MAX_PAIR_BYTES} bytes in all, each with the query; else"
            f" {MAX_VECTOR_VALUES} elements in all",
            VALIDATION,
        ),
        "top_n": Elsewhere("at least 1", VALIDATION),
        "priority": PRIORITY,
        "tenant": IDENTIFIER,
        "adapter": ADAPTER,
        "instruction": Elsewhere("where the template has one", VALIDATION),
        **_below("cache", "cache"),
    },
    "ListModelsRequest": {},
    "GetModelRequest": {"name": SERVED_MODEL},
    "LoadAdapterRequest": {
        "name": Elsewhere("1 to 128 letters, digits and ._:@- behind the first", ADAPTERS),
        "source": Elsewhere(
            "a folder of --lora, or directly in --lora-folder; a name on the Hub (--lora-hub)", CORE_ADAPTERS
        ),
        "pinned": Kind.FREE,
        "tenants": Elsewhere("names of tenants, as in tokens", ADAPTERS),
    },
    "UnloadAdapterRequest": {"name": ADAPTER},
    "ListAdaptersRequest": {},
    "GetServerInfoRequest": {},
    "GetLoadRequest": {},
    "WatchLoadRequest": {"min_interval": Elsewhere("0 to 86400 s; below 0.05 s counts as that", ADMIN)},
    "DrainRequest": {
        "timeout": Elsewhere("0 to 86400 s", FLEET),
        "frontend": FRONTEND_NAME,
        "all_frontends": Kind.FREE,
    },
    "ResumeRequest": {"frontend": FRONTEND_NAME, "all_frontends": Kind.FREE},
    "ResetCacheRequest": {},
    "ListRequestsRequest": {**PAGES, "tenant": Kind.FREE},
    "ExplainRequestRequest": {
        "request_id": Elsewhere("1 to 256 bytes", INSPECTOR),
        "tenant": Elsewhere("the caller's; an admin may name another one; none without tokens", INSPECTOR),
    },
    "GetKvPoolRequest": {"max_cells": Elsewhere("1 to 16384", INSPECTOR)},
    "ListTenantsRequest": PAGES,
    "ListEnginesRequest": {},
}
"""By message: the requests of the RPCs that are built."""

REQUEST_DEFAULTS: dict[str, str] = {
    "DetokenizeRequest.skip_special_tokens": "true",
    "WatchLoadRequest.min_interval": "1 s",
    "DrainRequest.timeout": "never",
    "ListRequestsRequest.limit": "pages",
    "ListRequestsRequest.page_size": "100",
    "ListRequestsRequest.page_token": "the first page",
    "LoadAdapterRequest.source": "the subfolder with the name",
    "LoadAdapterRequest.tenants": "all",
    "EmbedRequest.adapter": "none",
    "ScoreRequest.adapter": "none",
    "ScoreRequest.instruction": "the template's own",
    "ScoreRequest.top_n": "all",
    "EmbedRequest.dimensions": "all",
    "EmbedRequest.normalize": "the model's",
    "EmbedRequest.kind": "one vector",
    "EmbedRequest.raw_dtype": "numbers, not raw elements",
    "EmbedRequest.prompt_name": "default_prompt_name of Model.embedding_texts",
    "GetKvPoolRequest.max_cells": "1024",
    "ListTenantsRequest.limit": "pages",
    "ListTenantsRequest.page_size": "100",
    "ListTenantsRequest.page_token": "the first page",
}

NOT_BUILT: dict[str, str] = {
    "StartProfileRequest": "the whole RPC answers UNIMPLEMENTED",
    "StopProfileRequest": "the whole RPC answers UNIMPLEMENTED",
}
"""Requests of RPCs that are part of the contract and nothing more."""

REFUSED_FIELDS = frozenset(
    {
        "prompt.media.cache_id",
        "prompt.chat.template",
        "prompt.chat.messages.content.media.cache_id",
        "extensions",
    }
)
"""Paths of GenerateRequest that are not built: refused by name, with all that is below them."""
