"""The fields of generation requests, and how each value is checked. Pure.

A set field without an entry in FIELDS is refused by its path (requests.py), so a field that is added to the
protos is refused until it is implemented. Fields of other requests are in scripts/limits/field_tables.py.
"""

from enum import Enum

from frontend.validation.rules import (
    ALL_CANDIDATES,
    AT_LEAST_ONE,
    BACKEND,
    BAD_WORDS,
    CANDIDATE_IDS,
    CHOICES,
    DRAFT_TOKENS,
    GRAMMAR_TEXT,
    IDENTIFIER,
    LOGIT_BIAS,
    MAX_COUNT,
    PRIORITY,
    RANK,
    SEQUENCES,
    STOP_REGEXES,
    STOP_STRINGS,
    TIME_LIMIT,
    TOKEN_IDS,
    TOOL_NAME,
    TOP_N,
    TRUE,
    Rule,
    known_value,
    number,
)
from pagewire.beam_limits import MAX_LENGTH_PENALTY
from pagewire.v1 import generation_pb2, prompt_pb2


class Kind(Enum):
    """Treatment of a field whose value needs no rule."""

    NESTED = "look inside"
    FREE = "any value is fine"


FIELDS: dict[str, Rule | Kind] = {
    "request_id": IDENTIFIER,
    "model": IDENTIFIER,
    "priority": PRIORITY,
    "tenant": IDENTIFIER,
    "speculation": Kind.NESTED,
    "speculation.max_draft_tokens": DRAFT_TOKENS,
    "prompt": Kind.NESTED,
    "prompt.text": Kind.FREE,
    "prompt.token_ids": Kind.NESTED,
    "prompt.token_ids.ids": Kind.FREE,  # see check_token_ids
    "prompt.chat": Kind.NESTED,
    "prompt.chat.messages": Kind.NESTED,
    "prompt.chat.messages.role": IDENTIFIER,
    "prompt.chat.messages.content": Kind.NESTED,
    "prompt.chat.messages.content.text": Kind.FREE,
    "prompt.chat.messages.name": IDENTIFIER,
    "prompt.chat.messages.reasoning": Kind.FREE,
    "prompt.chat.messages.tool_calls": Kind.NESTED,
    "prompt.chat.messages.tool_calls.id": IDENTIFIER,
    "prompt.chat.messages.tool_calls.name": TOOL_NAME,
    "prompt.chat.messages.tool_calls.arguments": Kind.FREE,  # see frontend.templates.conversation
    "prompt.chat.messages.tool_call_id": IDENTIFIER,
    "prompt.chat.tools": Kind.NESTED,
    "prompt.chat.tools.name": TOOL_NAME,
    "prompt.chat.tools.description": Kind.FREE,
    "prompt.chat.tools.parameters": Kind.FREE,  # see frontend.templates.conversation
    "prompt.chat.tool_choice": Kind.NESTED,
    "prompt.chat.tool_choice.mode": known_value(prompt_pb2.ToolChoice.Mode),
    "prompt.chat.tool_choice.function": TOOL_NAME,
    "prompt.chat.enable_thinking": Kind.FREE,
    "prompt.chat.add_generation_prompt": Kind.FREE,
    "prompt.chat.continue_final_message": Kind.FREE,
    "prompt.chat.template_kwargs": Kind.FREE,  # see frontend.templates.chat_template
    "prompt.add_special_tokens": Kind.FREE,
    "prompt.truncate_to": AT_LEAST_ONE,
    "prompt.truncation_side": known_value(prompt_pb2.TruncationSide),
    "sampling": Kind.NESTED,
    "sampling.temperature": number(0, 100),
    "sampling.top_p": number(0, 1, above=True),
    "sampling.top_k": number(0, MAX_COUNT),
    "sampling.min_p": number(0, 1),
    "sampling.typical_p": number(0, 1, above=True),
    "sampling.frequency_penalty": number(-2, 2),
    "sampling.presence_penalty": number(-2, 2),
    "sampling.repetition_penalty": number(0.01, 100),
    "sampling.seed": Kind.FREE,
    "sampling.n": SEQUENCES,
    "sampling.best_of": SEQUENCES,
    "sampling.beam_search": Kind.NESTED,
    "sampling.beam_search.width": SEQUENCES,
    "sampling.beam_search.length_penalty": number(-MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY),
    "sampling.beam_search.early_stopping": Kind.FREE,
    "sampling.logit_bias": LOGIT_BIAS,
    "sampling.allowed_token_ids": TOKEN_IDS,
    "sampling.bad_words": BAD_WORDS,
    "sampling.bad_token_ids": TOKEN_IDS,
    "stopping": Kind.NESTED,
    "stopping.max_tokens": AT_LEAST_ONE,
    "stopping.min_tokens": number(0, MAX_COUNT),
    "stopping.stop": STOP_STRINGS,
    "stopping.stop_regex": STOP_REGEXES,
    "stopping.stop_token_ids": TOKEN_IDS,
    "stopping.ignore_eos": Kind.FREE,
    "stopping.include_stop": Kind.FREE,
    "stopping.time_limit": TIME_LIMIT,
    "stopping.repetition": Kind.NESTED,
    "stopping.repetition.max_ngram": number(1, 64),
    "stopping.repetition.count": number(2, 1000),
    "structured_output": Kind.NESTED,
    "structured_output.json_object": TRUE,
    "structured_output.json_schema": GRAMMAR_TEXT,  # and see frontend.grammar
    "structured_output.regex": GRAMMAR_TEXT,
    "structured_output.choice": Kind.NESTED,
    "structured_output.choice.values": CHOICES,
    "structured_output.grammar": Kind.NESTED,
    "structured_output.grammar.text": GRAMMAR_TEXT,
    "structured_output.grammar.syntax": known_value(generation_pb2.StructuredOutput.Grammar.Syntax),
    "structured_output.structural_tag": GRAMMAR_TEXT,
    "structured_output.backend": BACKEND,
    "output": Kind.NESTED,
    "output.mode": known_value(generation_pb2.OutputOptions.Mode),
    "output.text": Kind.FREE,
    "output.token_ids": Kind.FREE,
    "output.logprobs": Kind.NESTED,
    "output.logprobs.top_n": TOP_N,
    "output.logprobs.token_ids": Kind.NESTED,
    "output.logprobs.token_ids.ids": CANDIDATE_IDS,
    "output.logprobs.all": ALL_CANDIDATES,
    "output.prompt_token_ids": Kind.FREE,
    "output.prompt_logprobs": Kind.NESTED,
    "output.prompt_logprobs.top_n": TOP_N,
    "output.prompt_logprobs.token_ids": Kind.NESTED,
    "output.prompt_logprobs.token_ids.ids": CANDIDATE_IDS,
    "output.prompt_logprobs.all": ALL_CANDIDATES,
    "output.prompt_logprobs_start": Kind.FREE,  # see frontend.logprobs
    "output.echo": Kind.FREE,
    "output.skip_special_tokens": Kind.FREE,
    "output.stream_interval": AT_LEAST_ONE,
    "output.continuous_usage": Kind.FREE,
    "output.timings": Kind.FREE,
    "output.token_bytes": Kind.FREE,
    "cache": Kind.NESTED,
    "cache.salt": IDENTIFIER,
    "cache.bypass": Kind.FREE,
    "routing": Kind.NESTED,
    "routing.data_parallel_rank": RANK,
    "routing.session_id": IDENTIFIER,
    "continuation": Kind.NESTED,
    "continuation.sequences": Kind.NESTED,
    "continuation.sequences.index": Kind.FREE,  # see validation.py
    "continuation.sequences.token_ids": Kind.FREE,
}
"""Path of a field, without indexes -> how it is checked. A field that is missing here is not implemented."""
