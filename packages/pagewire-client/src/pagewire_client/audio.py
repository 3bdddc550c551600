"""Sounds in prompts."""

from pagewire_client.images import Medium

FIELD = "audio"
"""Names the sounds of a prompt that is text or token ids, beside images.PROMPT."""


class Audio(Medium):
    """A sound of a prompt: a part of a message, or one of the sounds of a text. The file is WAV or FLAC.

    >>> client.chat([{"role": "user", "content": [pagewire.Audio("dog.wav"), "What is this?"]}])
    >>> client.generate({"prompt": "<|AUDIO|> It is", "audio": [pagewire.Audio("dog.wav")]})
    """
