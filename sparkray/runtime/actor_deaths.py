"""What is said of actors that are dead."""

from __future__ import annotations

from sparkray.exceptions import ActorDiedError, TaskError
from sparkray.protocol import actors as p
from sparkray.protocol.codec import decode_as
from sparkray.protocol.messages import WireError
from sparkray.runtime.state.actor import ActorClient
from sparkray.store.serialize import deserialize
from sparkray.transport.errors import from_wire


def death_of(client: ActorClient, row: p.ActorRow) -> BaseException:
    """Return the error of calls to a dead actor."""
    text = f"{client.describe()} has ended: {row.reason}"
    if row.error[:1] == b"\x80":
        try:
            cause = deserialize(row.error)
        except Exception:  # its class is unknown here, or fails to unpickle
            return ActorDiedError(text)
        if isinstance(cause, ActorDiedError):  # as its creator has it
            return cause
        text = f"{client.describe()} could not be made: {cause}"
        if isinstance(cause, TaskError):
            return ActorDiedError(text, cause.cause).as_user_error()
        return ActorDiedError(text, cause)
    if row.error:
        return from_wire(decode_as(WireError, row.error))
    return ActorDiedError(text)


def dead_row(client: ActorClient, reason: str, error: bytes) -> p.ActorRow:
    """Return the last row of an actor that the head will never tell of."""
    return p.ActorRow(
        actor_id=client.actor_id,
        version=1 << 40,
        state=p.DEAD,
        incarnation=0,
        address=None,
        reason=reason,
        error=error,
        name="",
        namespace="",
        class_name=client.class_name,
        detached=False,
        job_id=b"",
    )
