"""The prompt of a query and a document, for models that score pairs.

A template is written as for vLLM and sentence-transformers, with `messages` of the roles `query`, `document`
and, with an instruction, `system`; or shorter, with `query`, `document` and `instruction`, which may be
undefined.
"""

from frontend.errors import InvalidRequest
from frontend.templates.chat_template import ChatTemplate
from frontend.templates.conversation import SYSTEM, Conversation
from frontend.templates.taint import tainted
from pagewire.errors import StartupError

QUERY, DOCUMENT, INSTRUCTION = "query", "document", "instruction"
_WHAT = "cannot score with this template"
_PROBES = {QUERY: "pagewire asks", DOCUMENT: "pagewire tells", INSTRUCTION: "pagewire wants"}


class PairTemplate:
    """A template of pairs. `render` may be called from several threads."""

    def __init__(self, template: ChatTemplate, origin: str) -> None:
        """Raises StartupError, naming the origin, when the template leaves out the query or the document."""
        self._template = template
        try:
            plain = self.render(_PROBES[QUERY], _PROBES[DOCUMENT], "", "")
            instructed = self.render(_PROBES[QUERY], _PROBES[DOCUMENT], _PROBES[INSTRUCTION], "")
        except InvalidRequest as error:
            raise StartupError(_WHAT, f"{origin}: {'; '.join(error.violations.values())}") from None
        for name in (QUERY, DOCUMENT):
            if _PROBES[name] not in plain:
                raise StartupError(_WHAT, f"{origin} leaves out the {name}")
        self.takes_instruction = _PROBES[INSTRUCTION] in instructed

    def render(self, query: str, document: str, instruction: str, path: str) -> str:
        """Returns the prompt's text, which knows what in it a client wrote (frontend.templates.taint).
        instruction: empty: the template's own. Raises InvalidRequest, naming `path`."""
        given = {QUERY: tainted(query), DOCUMENT: tainted(document)}
        messages = [{"role": role, "content": text} for role, text in given.items()]
        if instruction:
            given[INSTRUCTION] = tainted(instruction)
            messages.insert(0, {"role": SYSTEM, "content": given[INSTRUCTION]})
        return self._template.render(Conversation(messages, True, False, given), path)
