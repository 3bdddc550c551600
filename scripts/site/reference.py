"""Pages of the site that are made out of the program: flags and error codes."""

import inspect
from collections.abc import Iterable, Iterator

from google.rpc import code_pb2

from frontend.errors import DOMAIN, ServiceError
from pagewire import cli
from pagewire.flags import Flag, flags_of
from pagewire.flags.command_line import range_of, usage_of

_FLAGS_HEAD = """# Flags

Every flag of every command, from the classes that the commands read.

A flag `--some-name` can also be set as the environment variable `PAGEWIRE_SOME_NAME`, or as `some-name` in a
YAML or TOML file that `--config FILE` names. The flag takes precedence over the variable, and the variable
over the file. A name that is not known is an error. A switch `--x` is turned off by `--no-x`.
"""
_ERRORS_HEAD = f"""# Error codes

Every error that a frontend answers with: the gRPC status, `ErrorInfo.reason` of its details, and the HTTP
status of the OpenAI API. A request that an engine core refuses has the core's own code and reason. Errors of
fields name them in `BadRequest`; errors after which another attempt makes sense have `RetryInfo`.

`ErrorInfo.domain` is `{DOMAIN}`, also for errors of the gateways' services. AIP-193 asks for a globally
unique name. This project owns no DNS name; the name of the proto package is as unique as the full names of
its methods, which gRPC relies on anyway.

| gRPC | reason | HTTP | meaning |
| --- | --- | ---: | --- |
"""


def flags_page() -> str:
    """Returns the page of all flags."""
    parts = [_FLAGS_HEAD]
    for command, about in cli.COMMANDS.items():
        if command != "version":
            config = cli.find_command(command).config
            head = f"## pagewire {command}\n\n{about[:1].upper()}{about[1:]}.\n"
            parts.append(f"{head}\n{_flags_table(flags_of(config).values())}")
    return "\n".join(parts)


def errors_page() -> str:
    """Returns the page of all error codes."""
    kinds = sorted(filter(_is_sent, _kinds(ServiceError)), key=lambda kind: (kind.code, kind.reason))
    return _ERRORS_HEAD + "\n".join(map(_error_row, kinds)) + "\n"


def _flags_table(flags: Iterable[Flag]) -> str:
    rows = [
        f"| `{_cell(usage_of(flag))}` | {_default(flag)} | {range_of(flag)} | {_cell(flag.help)} |"
        for flag in flags
    ]
    if not rows:
        return "No flags.\n"
    return "\n".join(["| flag | default | range | meaning |", "| --- | --- | --- | --- |", *rows]) + "\n"


def _default(flag: Flag) -> str:
    if flag.default in (None, "", ()):
        return ""
    if isinstance(flag.default, bool):
        return "on" if flag.default else "off"
    return f"`{_cell(str(flag.default))}`"


def _kinds(kind: type[ServiceError]) -> Iterator[type[ServiceError]]:
    for each in kind.__subclasses__():
        yield each
        yield from _kinds(each)


def _is_sent(kind: type[ServiceError]) -> bool:
    """False for a class that only stands for its subclasses: it has no reason of its own."""
    return not kind.__subclasses__() or kind.reason != ServiceError.reason


def _error_row(kind: type[ServiceError]) -> str:
    of_kind = ServiceError("")
    of_kind.code = kind.code
    given = inspect.signature(kind).parameters
    reason = "one of several" if "reason" in given else f"`{kind.reason}`"
    about = " ".join((kind.__doc__ or "").split("\n\n")[0].split())
    code, status = code_pb2.Code.Name(kind.code), str(of_kind.http_status)
    if "code" in given:
        code = status = "the core's"
    return f"| {code} | {reason} | {status} | {_cell(about)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
