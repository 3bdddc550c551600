"""An Abort finds a request by its x-request-id while its body waits for its tenant's turn to be read."""

import pytest

from frontend.call.messages import SMALL_MESSAGE_BYTES
from tests.frontend.fakes import abort_in_turn

HI = [{"role": "user", "content": "hi"}]
USER = {"user": "x" * SMALL_MESSAGE_BYTES}


@pytest.mark.parametrize(
    ("path", "body", "end"),
    [
        ("/v1/chat/completions", {"messages": HI}, 200),
        ("/v1/completions", {"prompt": "hi"}, 200),
        ("/v1/completions", {"prompt": ["hi", "ho"]}, 200),
        ("/v1/responses", {"input": "hi"}, 200),
        ("/v1/messages", {"messages": HI, "max_tokens": 9, "metadata": USER, "user": None}, 409),
        ("/v1/embeddings", {"input": "hi"}, 409),
    ],
)
async def test_an_abort_of_a_body_that_waits_for_its_turn(run_api, path, body, end):
    async with run_api(pooling_type="last") as api:
        headers = {"x-request-id": "mine"}
        body = USER | body
        answer = await abort_in_turn(api.service, lambda: api.http.post(path, json=body, headers=headers))
        assert answer.status_code == end, answer.text
