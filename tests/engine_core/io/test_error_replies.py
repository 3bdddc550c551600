"""Replies about requests that end by an error."""

from engine_core.context import BUG, CoreContext, Identity
from engine_core.counters import Counters
from engine_core.errors import Code, Refused
from engine_core.scheduler.scheduler import Scheduler
from pagewire.internal.v1.engine_pb2 import EngineMessage, Welcome
from tests.engine_core.fakes import LIMITS

Sent = list[tuple[bytes, EngineMessage]]


def make_replies() -> tuple[CoreContext, Sent, Counters]:
    sent: Sent = []
    scheduler = Scheduler(num_blocks=8, block_size=4, max_num_seqs=2, max_num_batched_tokens=8)
    identity = Identity(Welcome(epoch=77), LIMITS)
    context = CoreContext(identity, scheduler, lambda *message: sent.append(message), lambda: 0.0)
    return context, sent, context.counters


def test_a_failure_is_sent_and_counted() -> None:
    replies, sent, counters = make_replies()
    replies.fail(b"a", 5, *BUG)
    ((frontend, message),) = sent
    failure = message.request_failed
    assert (frontend, failure.epoch, failure.handle) == (b"a", 77, 5)
    assert (failure.code, failure.reason) == (Code.INTERNAL, "INTERNAL") and failure.message
    assert counters.failures == {"INTERNAL": 1}


def test_a_refusal_has_its_field_and_its_quota_and_is_no_failure() -> None:
    replies, sent, counters = make_replies()
    replies.refuse(b"a", 5, Refused("prompt", "is empty"))
    replies.refuse(b"a", 6, Refused("", "too many", "TENANT_QUOTA", retry_after=1.5, quota="requests"))
    first, second = (message.request_failed for _, message in sent)
    assert (first.field, first.message, first.code) == ("prompt", "prompt is empty", Code.INVALID_ARGUMENT)
    assert not first.HasField("retry_delay")
    assert (second.quota, second.retry_delay.ToMilliseconds()) == ("requests", 1500)
    assert not counters.failures
