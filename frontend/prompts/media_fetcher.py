"""Fetches the media of prompts that are URLs, in processes that can be killed, before a request is compared,
tokenized or sent: from then on it is one that has brought the files."""

from collections.abc import Sequence

from frontend.fetching.fetch import TIME_LIMIT
from frontend.fetching.urls import is_url
from frontend.media.files import URI_FIELD, Prompts, field_of, media_of
from frontend.prompts.process_pool import PromptProcesses
from pagewire.config import FrontendConfig
from pagewire.host.standby import Fork
from pagewire.internal.v1 import reader_pb2
from pagewire.v1 import prompt_pb2

MAX_PROCESSES = 8
"""Requests of a frontend whose media are fetched at once, half of them of one tenant, with 16 MiB each."""
PATIENCE = TIME_LIMIT + 2.0
"""Seconds after which a process is killed whose resolver does not answer."""


def has_urls(prompt: prompt_pb2.Prompt) -> bool:
    """Returns whether a prompt has media that are to be fetched."""
    return any(is_url(media.uri) for _, media in media_of(prompt, ""))


def lacks_files(prompt: prompt_pb2.Prompt) -> bool:
    """Returns whether a prompt has media that a server fetches, or has kept."""
    return any(media.sha256 or is_url(media.uri) for _, media in media_of(prompt, ""))


class MediaFetcher:
    """The processes that fetch, which are started on demand."""

    def __init__(self, config: FrontendConfig, fork: Fork | None = None) -> None:
        """fork: see PromptProcesses."""
        self._processes = PromptProcesses(config, fork, MAX_PROCESSES)

    async def close(self) -> None:
        """Ends the processes, with what they do."""
        await self._processes.close()

    async def put_files(self, prompts: Prompts, tenant: str | None) -> Sequence[bytes]:
        """Puts files in place of the URLs of a request's validated prompts; returns the SHA-256 of each, in
        order. tenant: whose turn it takes. Raises ServiceError."""
        found = [
            (where + URI_FIELD, each)
            for path, prompt in prompts
            for where, each in media_of(prompt, path)
            if is_url(each.uri)
        ]
        job = reader_pb2.FetchMedia(uris=[each.uri for _, each in found], paths=[where for where, _ in found])
        request = reader_pb2.ReadRequest(media=job)
        path, prompt = prompts[0]
        blamed = job.paths[0] if len(found) == 1 else field_of(prompt, path)
        answer, _ = await self._processes.ask(request, blamed, tenant, len(found), PATIENCE)
        for (_, each), file in zip(found, answer.media.files, strict=True):
            each.data = file  # which clears uri
        return list(answer.media.digests)


def drop_files(prompt: prompt_pb2.Prompt) -> None:
    """Drops the files of a prompt that has been read: they may be many times as large as its message was."""
    for _, media in media_of(prompt, ""):
        media.ClearField("source")
