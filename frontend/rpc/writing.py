"""Sends a call's messages over gRPC."""

from typing import Any

from frontend.call.write_timeout import Send
from frontend.rpc.call_context import Context


def sender(context: Context) -> Send:
    """Returns a function that sends messages of the call.

    Headers go out on their own before the first message: sent together with a message that the client's
    flow-control window holds back, they would keep a status from being sent, too.
    """
    begun = False

    async def send(message: Any) -> None:
        nonlocal begun
        if not begun:
            begun = True
            await context.send_initial_metadata(())
        await context.write(message)

    return send
