"""Reads the inputs of requests that generate nothing."""

from collections.abc import Mapping
from typing import Any

from frontend.field_names import Names
from frontend.validation.requests import MAX_PROMPTS
from pagewire.v1 import prompt_pb2
from pagewire_openai.requests.completion import read_prompts
from pagewire_openai.requests.fields import given


def read_inputs(body: Mapping[str, Any], names: Names) -> list[prompt_pb2.Prompt]:
    """Returns the prompts in `input`, each with the body's fields for all of them. Raises InvalidRequest."""
    prompts = read_prompts(body, "input", MAX_PROMPTS)
    for place, prompt in enumerate(prompts):
        if (special := given(body, "add_special_tokens", None)) is not None:
            prompt.add_special_tokens = special
        if (most := given(body, "truncate_prompt_tokens", None)) is not None:
            prompt.truncate_to = most
        path, name = f"inputs[{place}]", f"input[{place}]" if len(prompts) > 1 else "input"
        names[f"{path}.truncate_to"] = "truncate_prompt_tokens"
        for kind in (".text", ".token_ids.ids", ".token_ids", ""):
            names[path + kind] = name
    names["inputs"] = "input"
    return prompts
