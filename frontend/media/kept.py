"""Files that requests have brought, which later ones name by their SHA-256 in place of them."""

from collections import OrderedDict
from hashlib import sha256

from frontend.errors import InvalidRequest, MediaUnknown
from frontend.media.files import DIGEST_FIELD, Prompts, file_of, media_of
from pagewire.v1 import prompt_pb2

MAX_KEPT_BYTES = 128 << 20
"""Files that a frontend keeps, in all."""

Tenant = str | None


class KeptFiles:
    """Files by tenant and digest: the least recently used leave first, of the tenant that has the most. A
    tenant finds its own alone. Belongs to the event loop's thread."""

    def __init__(self, capacity: int = MAX_KEPT_BYTES) -> None:
        """capacity: bytes; larger files are not kept."""
        self.num_bytes = 0
        """That are kept."""
        self._capacity = capacity
        self._files: dict[Tenant, OrderedDict[bytes, bytes]] = {}
        self._sizes: dict[Tenant, int] = {}

    def keep(self, prompt: prompt_pb2.Prompt, tenant: Tenant) -> None:
        """Keeps the files of a prompt that has been read."""
        for _, media in media_of(prompt, ""):
            if not media.HasField("frames"):
                self._add(file_of(media), tenant)

    def check(self, prompts: Prompts, tenant: Tenant, room: int) -> None:
        """Raises MediaUnknown for digests of files that are not kept, and InvalidRequest where those that are
        have more bytes than `room`. prompts: of a request, with their paths in it."""
        own: dict[bytes, bytes] = self._files.get(tenant, OrderedDict())
        named, size = _named(prompts), 0
        lacking = [where for where, media in named if media.sha256 not in own]
        if lacking:
            raise MediaUnknown(dict.fromkeys(lacking, "is of no file that this server keeps: send the file"))
        for where, media in named:
            size += len(own[media.sha256])
            if size > room:
                raise InvalidRequest(
                    {where: "is one too many: with its files the request would be too large"}
                )

    def put_files(self, prompts: Prompts, tenant: Tenant, room: int) -> None:
        """Puts files in place of the digests of a request's prompts. Raises what check() does, and changes
        nothing then."""
        self.check(prompts, tenant, room)
        for _, media in _named(prompts):
            files = self._files[tenant]
            files.move_to_end(media.sha256)
            media.data = files[media.sha256]  # which clears sha256

    def _add(self, file: bytes, tenant: Tenant) -> None:
        if not file or len(file) > self._capacity:
            return
        files, digest = self._files.setdefault(tenant, OrderedDict()), sha256(file).digest()
        if digest not in files:
            self._count(len(file), tenant)
            files[digest] = file
        files.move_to_end(digest)
        while self.num_bytes > self._capacity:
            self._drop_one()

    def _drop_one(self) -> None:
        tenant = max(self._sizes, key=self._sizes.__getitem__)
        _, file = self._files[tenant].popitem(last=False)
        self._count(-len(file), tenant)
        if not self._files[tenant]:
            del self._files[tenant], self._sizes[tenant]

    def _count(self, size: int, tenant: Tenant) -> None:
        self.num_bytes += size
        self._sizes[tenant] = self._sizes.get(tenant, 0) + size


def _named(prompts: Prompts) -> list[tuple[str, prompt_pb2.Media]]:
    """Returns the media that are digests, with the paths of these."""
    found = (each for path, prompt in prompts for each in media_of(prompt, path))
    return [(where + DIGEST_FIELD, media) for where, media in found if media.sha256]
