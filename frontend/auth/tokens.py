"""Bearer tokens, the callers that they identify, and the token file:

    tokens:
      - sha256: 5994471abb01112afcc18159f6cc74b4f511b99806da59b3caf5a9c173cacfc5
        tenant: alice
        role: user                     # or admin; default: user
        weight: 2                      # share among tenants, relative to 1; default: the engine's
        max_requests: 8                # in flight at an engine; 0, the default: no limit
        max_tokens_per_minute: 100000  # prompt and output; 0, the default: no limit
        max_sequences: 32              # in flight at an engine: n, best_of, beams; 0, the default: no limit
        min_priority: -10              # the best class that its requests may have; default: 0
        adapters: [legal, support]     # that its requests may name; default: all
        expires: 2027-01-31            # refused from then on, UTC; default: never

A tenant may have several tokens, so that they can be rotated without downtime; weight and quotas must be the
same in each of them.

A token is 256 random bits, of which the server stores only the SHA-256: reading the file of hashes does not
allow calls. (A slow hash protects guessable passwords; 256 random bits cannot be guessed.)

Lookup leaks no useful timing. An entry is found by the first bytes of the hash, and a hash says nothing about
similar tokens: learning that some prefix exists does not help to find a token with that hash. The whole hash
is compared in constant time, also when no entry is found.
"""

import contextlib
import datetime
import hmac
import logging
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

from frontend.auth.caller import Caller, Terms
from frontend.errors import Unauthenticated
from pagewire.errors import StartupError
from pagewire.host.file_watch import Signature, exposure, read_small, signature_of
from pagewire.limits import is_adapter_name

PREFIX = "pw_"
"""Prefix of every token, by which scanners for leaked secrets recognize it."""
_RANDOM_BYTES = 32
_FOUND_BY = 8
"""Bytes of the hash that index the table. Two tokens that share them are rejected, which takes
2^32 tokens."""
_SCHEME = "bearer "

_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")
MIN_WEIGHT, MAX_WEIGHT = 0.001, 1000.0
MAX_REQUESTS = (1 << 32) - 1
MAX_TOKENS = (1 << 63) - 1
MAX_PRIORITY = 1000
_TERMS = ("weight", "max_requests", "max_tokens_per_minute", "max_sequences", "min_priority", "adapters")
"""Fields that belong to the tenant: they are equal in all of its tokens."""


def new_token() -> str:
    """Returns a new random token."""
    return PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)


def digest_of(token: str) -> bytes:
    """Returns the stored hash of a token."""
    return sha256(token.encode(errors="surrogatepass")).digest()


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """A valid token's hash and caller. expires: Unix time from which on it is refused; None: never."""

    digest: bytes
    caller: Caller
    expires: float | None = None


class TokenTable:
    """An immutable set of tokens; reading the file again makes another one."""

    def __init__(self, entries: Iterable[TokenEntry] = ()) -> None:
        """Raises ValueError for duplicate tokens."""
        self._entries: dict[bytes, TokenEntry] = {}
        self._dummy = TokenEntry(secrets.token_bytes(sha256().digest_size), Caller(tenant=""))
        for entry in entries:
            if self._entries.setdefault(entry.digest[:_FOUND_BY], entry) is not entry:
                raise ValueError("the same token twice")

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, token: str, now: float) -> Caller:
        """Returns the caller of a token. now: Unix time. Raises Unauthenticated."""
        digest = digest_of(token)
        entry = self._entries.get(digest[:_FOUND_BY], self._dummy)
        if not hmac.compare_digest(entry.digest, digest) or entry is self._dummy:
            raise Unauthenticated("TOKEN_INVALID", "the token is not known here")
        if entry.expires is not None and now >= entry.expires:
            raise Unauthenticated("TOKEN_EXPIRED", "the token has expired")
        return entry.caller


def token_in(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """Returns the token from a call's "authorization: Bearer TOKEN" header; without one from x-api-key, where
    Anthropic's clients put it. Raises Unauthenticated, also for two of one."""
    headers: dict[str, str | bytes] = {}
    for key, given in metadata:
        if key in headers:
            raise Unauthenticated("TOKEN_INVALID", f"the call has several {key} headers: send one")
        if key in ("authorization", "x-api-key"):
            headers[key] = given
    value = headers.get("authorization")
    if value is None and isinstance(own := headers.get("x-api-key"), str):
        return own.strip()
    if value is None:
        raise Unauthenticated("TOKEN_MISSING", "the call has no token (authorization: Bearer TOKEN)")
    if not isinstance(value, str) or not value[: len(_SCHEME)].lower() == _SCHEME:
        raise Unauthenticated("TOKEN_INVALID", "the authorization header must be: Bearer TOKEN")
    return value[len(_SCHEME) :].strip()


log = logging.getLogger(__name__)


class BadTokenList(Exception):
    """The text is not a valid token list; says where and why, without quoting a hash."""


def read_tokens(text: str) -> TokenTable:
    """Parses the file's text. Raises BadTokenList."""
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: the 31st of February
        mark = getattr(error, "problem_mark", None)  # the whole message would quote the file
        where = f", line {mark.line + 1}" if mark else ""
        raise BadTokenList(f"not YAML{where}") from None
    if not isinstance(content, dict) or list(content) != ["tokens"]:
        raise BadTokenList("must hold one list, under the name tokens")
    listed = content["tokens"]
    if not isinstance(listed, list):
        raise BadTokenList("tokens: must be a list")
    entries: list[TokenEntry] = []
    places: dict[bytes, int] = {}
    terms: dict[str | None, tuple[int, Terms]] = {}
    for place, item in enumerate(listed):
        entry = _entry(item, f"tokens[{place}]")
        if (before := places.setdefault(entry.digest, place)) != place:
            raise BadTokenList(f"tokens[{place}].sha256: is that of tokens[{before}]")
        first, its = terms.setdefault(entry.caller.tenant, (place, entry.caller.terms or Terms()))
        if its != entry.caller.terms:
            raise BadTokenList(
                f"tokens[{place}]: {', '.join(_TERMS)} must be those of tokens[{first}], "
                "which is for the same tenant"
            )
        entries.append(entry)
    return TokenTable(entries)


def entry_line(digest: bytes, tenant: str, fields: Mapping[str, Any]) -> str:
    """Returns the line for a token; fields: its other fields, by name. Raises BadTokenList."""
    values = {"sha256": digest.hex(), "tenant": tenant} | dict(fields)
    _entry(values, "the token")
    text: str = yaml.safe_dump(values, default_flow_style=True, sort_keys=False, width=1 << 20)
    return f"- {text.strip()}\n"


def add_line(text: str, line: str) -> str:
    """Returns the file's text with a token added; "" stands for a missing file. Raises BadTokenList."""
    before = text.rstrip() or "tokens:"
    indents: list[str] = re.findall(r"^( *)- ", before, re.MULTILINE)
    longer = f"{before}\n{indents[-1] if indents else '  '}{line}"
    read_tokens(longer)
    return longer


def tenant_problem(name: object) -> str | None:
    """Says what is wrong with a tenant's name; None: it is valid. It has no "/": see caller.scope()."""
    if isinstance(name, str) and _TENANT.fullmatch(name):
        return None
    return "must be 1 to 64 letters, digits, dots, dashes and underlines, in quotes if it is a number"


def _entry(item: object, path: str) -> TokenEntry:
    if not isinstance(item, dict):
        raise BadTokenList(f"{path}: must have at least sha256 and tenant")
    for name in item:
        if name not in _FIELDS:
            raise BadTokenList(f"{path}: unknown name {str(name)[:32]!r}; there are {', '.join(_FIELDS)}")
    values: dict[str, Any] = {}
    for name, read in _FIELDS.items():
        if name in item:
            try:
                values[name] = read(item[name])
            except ValueError as error:
                raise BadTokenList(f"{path}.{name}: {error}") from None
        elif name in ("sha256", "tenant"):
            raise BadTokenList(f"{path}.{name}: is missing")
    terms = Terms(**{name: values[name] for name in _TERMS if name in values})
    caller = Caller(values["tenant"], values.get("role") == "admin", terms)
    return TokenEntry(values["sha256"], caller, values.get("expires"))


def _digest(value: object) -> bytes:
    if not isinstance(value, str) or not _DIGEST.fullmatch(value):
        raise ValueError("must be 64 hexadecimal digits, as `pagewire token new` prints them")
    return bytes.fromhex(value)


def _tenant(value: object) -> str:
    problem = tenant_problem(value)
    if problem is not None:
        raise ValueError(problem)
    return str(value)


def _role(value: object) -> str:
    if value not in ("user", "admin"):
        raise ValueError("must be user or admin")
    return str(value)


def _weight(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not MIN_WEIGHT <= value <= MAX_WEIGHT:
        raise ValueError(f"must be {MIN_WEIGHT} to {MAX_WEIGHT:.0f}")
    return float(value)


def _count(most: int, least: int = 0) -> Callable[[object], int]:
    def count(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError(f"must be a whole number, {least} to {most}")
        return value

    return count


def _adapters(value: object) -> tuple[str, ...]:
    names = value if isinstance(value, list) else [None]
    if not all(isinstance(name, str) and is_adapter_name(name) for name in names):
        raise ValueError("must be a list of names of adapters")
    return tuple(names)


def _time(value: object) -> float:
    """Returns the Unix time of a date or time, or of either as text. (YAML parses unquoted ones.)"""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = datetime.datetime.fromisoformat(value)
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        value = datetime.datetime.combine(value, datetime.time())
    if not isinstance(value, datetime.datetime):
        raise ValueError("must be a date such as 2027-01-31, or a time such as 2027-01-31 12:00:00 (UTC)")
    if value.tzinfo is None:
        value = value.replace(tzinfo=datetime.UTC)
    return value.timestamp()


_FIELDS: Mapping[str, Callable[[object], Any]] = {
    "sha256": _digest,
    "tenant": _tenant,
    "role": _role,
    "weight": _weight,
    "max_requests": _count(MAX_REQUESTS),
    "max_tokens_per_minute": _count(MAX_TOKENS),
    "max_sequences": _count(MAX_REQUESTS),
    "min_priority": _count(MAX_PRIORITY, -MAX_PRIORITY),
    "adapters": _adapters,
    "expires": _time,
}


class TokenFile:
    """Holds the last table that could be read. A broken or missing file is logged and changes nothing: it
    neither revokes tokens nor admits callers."""

    def __init__(self, path: str) -> None:
        """Raises StartupError."""
        self._path = Path(path)
        try:
            self._seen, self.table = self._read()
        except (OSError, UnicodeDecodeError, BadTokenList) as error:
            raise StartupError(
                f"cannot use --auth-file {path}",
                _why(error),
                "docs/security.md shows one; to make an entry: pagewire token new --tenant NAME",
            ) from None
        log.info("%d tokens in --auth-file", len(self.table))

    def refresh(self) -> None:
        """Reads the file again if it has changed. Blocks: call it in a thread."""
        now = signature_of([self._path])
        if now == self._seen:
            return
        self._seen = now
        try:
            self._seen, self.table = self._read()
        except (OSError, UnicodeDecodeError, BadTokenList) as error:
            log.error("--auth-file has changed and cannot be used; the old tokens stay: %s", _why(error))
        else:
            log.info("--auth-file has changed: %d tokens", len(self.table))

    def _read(self) -> tuple[Signature, TokenTable]:
        """Reads the file after taking its signature, so that a concurrent change is noticed next time."""
        signature = signature_of([self._path])
        table = read_tokens(read_small(self._path).decode())
        if how := exposure(self._path, 0o022):
            text = "others on this machine may write to --auth-file, and so admit themselves: %s"
            log.warning(f"{text}; chown it, or chmod go-w", how)
        return signature, table


def _why(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return "not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
