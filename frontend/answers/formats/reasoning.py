"""Marks around reasoning."""

from frontend.answers.tables import ReasoningFormat

FORMATS = (
    ReasoningFormat("seed", "<seed:think>", "</seed:think>", (("<seed:think>",),)),
    ReasoningFormat("mistral", "[THINK]", "[/THINK]", (("[THINK]",),)),
    ReasoningFormat("cohere", "<|START_THINKING|>", "<|END_THINKING|>", (("<|START_THINKING|>",),)),
    ReasoningFormat("gemma-4", "<|channel>thought", "<channel|>", (("<|channel>thought",),)),
    ReasoningFormat("apertus", "<|inner_prefix|>", "<|inner_suffix|>", (("<|inner_prefix|>",),)),
    ReasoningFormat(
        "apriel",
        "Here are my reasoning steps:",
        "[BEGIN FINAL RESPONSE]",
        (("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),),
    ),
    ReasoningFormat("think", "<think>", "</think>", (("<think>",), ("</think>",))),
)
"""In the order in which a chat template is compared with them."""
