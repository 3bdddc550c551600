"""Bearer tokens: what they are, and whom they let in. Pure: no file, no clock of its own.

A token is 256 random bits. The server holds its SHA-256 alone: who can read the file of hashes cannot call.
(A slow hash is for passwords, which can be guessed; nobody guesses 256 random bits.)

Time must not tell a caller how near a guess was. An entry is found by the first bytes of the hash, and a
hash says nothing about the next guess: whoever learns by timing that the first bytes of a hash exist would
have to find a token with that hash, and then with all of it. The whole hash is compared in constant time,
also when there is no such entry.
"""

import hmac
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256

from frontend.auth.caller import Caller
from frontend.errors import Unauthenticated

PREFIX = "pw_"
"""How tokens begin: people and programs that look for leaked secrets recognize them."""
_RANDOM_BYTES = 32
_FOUND_BY = 8
"""Bytes of the hash. Two tokens with the same ones are refused, which takes 2^32 tokens."""
_SCHEME = "bearer "


def new_token() -> str:
    """A token that nobody has had."""
    return PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)


def digest_of(token: str) -> bytes:
    """What is kept of a token."""
    return sha256(token.encode(errors="surrogatepass")).digest()


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """A token that lets somebody in. expires: Unix time from which on it does not; None: never."""

    digest: bytes
    caller: Caller
    expires: float | None = None


class TokenTable:
    """All tokens. Never changes: a file that is read again makes another one."""

    def __init__(self, entries: Iterable[TokenEntry] = ()) -> None:
        """Raises ValueError when a token is there twice."""
        self._entries: dict[bytes, TokenEntry] = {}
        self._nobody = TokenEntry(secrets.token_bytes(sha256().digest_size), Caller(tenant=""))
        for entry in entries:
            if self._entries.setdefault(entry.digest[:_FOUND_BY], entry) is not entry:
                raise ValueError("the same token twice")

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, token: str, now: float) -> Caller:
        """Whom the token lets in, by Unix time. Raises Unauthenticated."""
        digest = digest_of(token)
        entry = self._entries.get(digest[:_FOUND_BY], self._nobody)
        if not hmac.compare_digest(entry.digest, digest) or entry is self._nobody:
            raise Unauthenticated("TOKEN_INVALID", "the token is not known here")
        if entry.expires is not None and now >= entry.expires:
            raise Unauthenticated("TOKEN_EXPIRED", "the token has expired")
        return entry.caller


def token_in(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """The token of a call: its one header "authorization: Bearer TOKEN". Raises Unauthenticated."""
    values = [value for key, value in metadata if key == "authorization"]
    if not values:
        raise Unauthenticated("TOKEN_MISSING", "the call has no token (authorization: Bearer TOKEN)")
    value = values[0]
    if len(values) > 1 or not isinstance(value, str) or not value[: len(_SCHEME)].lower() == _SCHEME:
        raise Unauthenticated("TOKEN_INVALID", "authorization must be one header: Bearer TOKEN")
    return value[len(_SCHEME) :].strip()
