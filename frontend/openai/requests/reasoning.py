"""Reads how much a model is to think."""

from frontend.errors import InvalidRequest, Unsupported
from frontend.templates.chat_template import ChatTemplate
from frontend.templates.conversation import EFFORT
from pagewire.v1 import prompt_pb2

NO_THINKING = "none"


def put_effort(effort: str, name: str, chat: prompt_pb2.Chat, template: ChatTemplate | None) -> None:
    """Sets the template's own variable, or its switch for `none`. name: of the client's field. Raises
    InvalidRequest; Unsupported, where the template has neither."""
    if template is None:
        return  # a conversation is refused without one
    features = template.features(with_tools=bool(chat.tools))
    if features.effort:
        if EFFORT in chat.template_kwargs.fields:
            raise InvalidRequest({name: "is set by chat_template_kwargs already"})
        chat.template_kwargs[EFFORT] = effort
    elif effort == NO_THINKING and features.switches:
        chat.enable_thinking = False
    else:
        raise Unsupported({name: "the model's chat template has no such switch"})
