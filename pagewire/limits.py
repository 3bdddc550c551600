"""Limits of requests: frontends report violations to clients, and the engine core checks again."""

import re
from typing import Any

MAX_BAD_WORDS = 128
MAX_BAD_SPELLINGS = 3 * MAX_BAD_WORDS
"""What an engine core is sent: each word at the beginning of a text, after a space, and after other text."""
MAX_BAD_WORD_TOKENS = 128
"""Tokens of one spelling."""
MAX_LOGIT_BIAS = 4096
"""Tokens with a bias: those of 64 rows then take 3 ms of a step, which all streams wait for."""
MAX_TOKEN_IDS = 4096
"""Tokens that are barred, or that end an output: those of 64 rows then take 5 ms of a step."""
EMBEDDING_DTYPES = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Element types of Prompt.embeddings, and their bytes."""
MAX_MEDIA = 16
"""Media of one request."""
MAX_VIDEO_FRAMES = 256
"""Of one medium."""
MAX_MEDIA_PIXELS = 64 << 20
"""Pixels of all images of one request, as the headers of their files state them."""
MAX_MEDIA_ASPECT = 200
"""The longer side of an image, in shorter ones."""
MAX_MEDIA_SECONDS = 1200
"""Seconds of all sounds of one request."""
MAX_FETCHED_BYTES = 16 << 20
"""Bytes of the files that are fetched for one request."""
MAX_MEDIA_BYTES = 64 << 20
"""Bytes of one request's images as the encoder takes them: resized, or cut into tiles."""
MAX_VECTOR_VALUES = 1 << 23
"""Elements of all vectors of one response: 32 MiB of float32."""
MAX_STEP_VECTOR_VALUES = 4 * MAX_VECTOR_VALUES
"""Elements of the vectors of all requests that begin in one step: half of a message between processes."""
MAX_LENGTH_PENALTY = 10.0
"""Largest absolute value: length ** length_penalty must stay finite."""
MAX_STOPS = 128
"""Most tokens that may end a beam: each costs a candidate per beam and step."""

NEUTRAL: dict[str, tuple[float, ...]] = {
    "temperature": (0, 1),
    "top_p": (1,),
    "top_k": (0,),
    "min_p": (0,),
    "typical_p": (1,),
}
"""Allowed values of the sampling fields: beams are not sampled, and fields without effect are refused rather
than ignored."""


MAX_GRAMMAR_BYTES = 1 << 17
"""Bytes of what a client sends: a schema, a regular expression, a grammar, a document, or all choices."""
MAX_CHOICES = 4096
MAX_COMPILED_BYTES = 8 * MAX_GRAMMAR_BYTES
"""Bytes of the grammar that a frontend makes of it."""

PARSER_LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_items_in_row": 2_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 200_000,
    "verbose_errors": False,  # which would contain the output
}
"""Of llguidance.LLParserLimits. A frontend judges a grammar within the limits that the worker has; fuel
bounds the time of a mask: about 15 ms, for grammars made to be slow."""


def is_panic(error: BaseException) -> bool:
    """Returns whether an exception is a panic of a library in Rust: it is no Exception, but ends one request
    alone."""
    return type(error).__name__ == "PanicException"


MAX_ADAPTERS = 10_000
"""Named adapters at one engine core."""
MAX_ADAPTER_NAME = 128
"""Characters."""
ADAPTER_DIGEST_BYTES = 32
_ADAPTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]*")


def is_adapter_name(name: str) -> bool:
    """Returns whether an adapter may have a name: letters, digits and ._:@- behind the first. It is also the
    name of a folder: there is no slash."""
    return len(name) <= MAX_ADAPTER_NAME and _ADAPTER_NAME.fullmatch(name) is not None
