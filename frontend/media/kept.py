"""Files that requests have brought, which later ones name by their SHA-256 in place of them."""

from collections import OrderedDict
from collections.abc import Iterable
from hashlib import sha256

from frontend.errors import MediaUnknown
from frontend.media.files import DIGEST_FIELD, file_of, media_of
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

    def put_files(self, prompts: Iterable[tuple[str, prompt_pb2.Prompt]], tenant: Tenant) -> None:
        """Puts files in place of the digests of a request's prompts, which have paths. Raises MediaUnknown
        for those that are not kept, and changes nothing then."""
        own: dict[bytes, bytes] = self._files.get(tenant, OrderedDict())
        named = [each for path, prompt in prompts for each in media_of(prompt, path) if each[1].sha256]
        lacking = [where + DIGEST_FIELD for where, media in named if media.sha256 not in own]
        if lacking:
            raise MediaUnknown(dict.fromkeys(lacking, "is of no file that this server keeps: send the file"))
        for _, media in named:
            self._files[tenant].move_to_end(media.sha256)
            media.data = own[media.sha256]  # which clears sha256

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
