"""Asks a core in the house a question."""

from engine_core.admin.answers import MAX_PENDING
from pagewire.internal.v1.engine_pb2 import Utility, UtilityResult
from tests.engine_core.house import House

FRONTEND = b"operator"


def ask(house: House, **call: object) -> UtilityResult:
    """Steps until a question is answered."""
    house.put(Utility(call_id=7, **call), FRONTEND)  # type: ignore[arg-type]
    before = len(answers(house))
    for _ in range(MAX_PENDING):
        house.step()
        if len(found := answers(house)) > before:
            return found[-1]
    raise AssertionError("no answer")


def answers(house: House) -> list[UtilityResult]:
    """All answers so far."""
    return [message.utility_result for frontend, message in house.sent if frontend == FRONTEND]
