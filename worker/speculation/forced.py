"""Drafts what a grammar forces: the names and signs of a JSON schema, for one, between the values.

Peers insert such text without asking the model (jump-forward decoding), which changes how the output is split
into tokens, and so what follows. Here it is a draft: it is accepted where the model samples the same tokens.
"""

from collections.abc import Sequence

from worker.grammar.rows import GrammarRows


class ForcedDrafter:
    """A worker.speculation.drafter.Drafter for rows with grammars."""

    is_free = True
    computed_prompts = False

    def __init__(self, grammars: GrammarRows) -> None:
        self._grammars = grammars

    def draft(self, rows: Sequence[int], most: Sequence[int]) -> list[list[int]]:
        return [self._grammars.forced(row)[:length] for row, length in zip(rows, most, strict=True)]

    def remove_row(self, row: int) -> None:
        """The grammar ends with the backend's row."""
