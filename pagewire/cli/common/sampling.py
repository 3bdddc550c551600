"""The sampling parameters of `generate` and `chat`."""

from pathlib import Path

from pagewire.client.params import SamplingParams
from pagewire.command_config import SamplingConfig
from pagewire.flags import UsageError

_FORMS = ("json_object", "json_schema", "regex", "choice", "grammar", "lark", "structural_tag")


def sampling_params(config: SamplingConfig, n: int | None = None) -> SamplingParams:
    """Returns the parameters given as flags; the others keep the model's defaults. Raises UsageError."""
    forms = {name: getattr(config, name) for name in _FORMS}
    given = [_option(name) for name, value in forms.items() if value]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} cannot be combined: an output has one form")
    return SamplingParams(
        schema=_content(config.json_schema, "json_schema"),
        json_object=config.json_object,
        regex=config.regex,
        choice=config.choice or None,
        grammar=_content(config.grammar, "grammar"),
        lark=_content(config.lark, "lark"),
        structural_tag=_content(config.structural_tag, "structural_tag"),
        max_tokens=config.max_tokens,
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        min_p=config.min_p,
        repetition_penalty=config.repetition_penalty,
        seed=config.seed,
        stop=config.stop,
        stop_regex=config.stop_regex,
        n=n,
    )


def _content(path: str, name: str) -> str | None:
    """Returns the text of a file; None: no file is given. Raises UsageError."""
    if not path:
        return None
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"{_option(name)} {path}: {why}") from None


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
