"""Bearer tokens and the callers that they identify. Pure: no file access, no clock.

A token is 256 random bits, of which the server stores only the SHA-256: reading the file of hashes does not
allow calls. (A slow hash protects guessable passwords; 256 random bits cannot be guessed.)

Lookup leaks no useful timing. An entry is found by the first bytes of the hash, and a hash says nothing about
similar tokens: learning that some prefix exists does not help to find a token with that hash. The whole hash
is compared in constant time, also when no entry is found.
"""

import hmac
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256

from frontend.auth.caller import Caller
from frontend.errors import Unauthenticated

PREFIX = "pw_"
"""Prefix of every token, by which scanners for leaked secrets recognize it."""
_RANDOM_BYTES = 32
_FOUND_BY = 8
"""Bytes of the hash that index the table. Two tokens that share them are rejected, which takes
2^32 tokens."""
_SCHEME = "bearer "


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
    """Returns the token from a call's only "authorization: Bearer TOKEN" header. Raises Unauthenticated."""
    values = [value for key, value in metadata if key == "authorization"]
    if not values:
        raise Unauthenticated("TOKEN_MISSING", "the call has no token (authorization: Bearer TOKEN)")
    value = values[0]
    if len(values) > 1 or not isinstance(value, str) or not value[: len(_SCHEME)].lower() == _SCHEME:
        raise Unauthenticated("TOKEN_INVALID", "authorization must be one header: Bearer TOKEN")
    return value[len(_SCHEME) :].strip()
