"""Waits until a head counts exactly the given nodes as alive.  A program of its own, so
that the caller need not load gRPC: a JSON request comes on standard input; the exit
status is 0 when done, 2 when time ran out (then standard output says what was there).
"""

from __future__ import annotations

import json
import sys
import time

from sparkray.protocol.control import ListNodes, NodeList
from sparkray.transport import auth, client, tls

_POLL_S = 0.05


def await_nodes(
    address: str, token_file: str, node_ids: list[str], timeout_s: float
) -> str:
    """Return "" when the nodes are there, else what was there at last."""
    deadline = time.monotonic() + timeout_s
    token, files = auth.read_token(token_file), tls.from_environment()
    while True:
        left_s = max(1.0, deadline - time.monotonic())
        try:
            answer: NodeList = client.call_head(
                address, token, "ListNodes", ListNodes(), left_s, files
            )
        except (ConnectionError, TimeoutError) as error:
            seen = str(error)
        else:
            alive = sorted(node.node_id.hex() for node in answer.nodes if node.alive)
            if alive == sorted(node_ids):
                return ""
            seen = f"alive: {', '.join(name[:8] for name in alive)}"
        if time.monotonic() > deadline:
            wanted = ", ".join(name[:8] for name in node_ids)
            return f"not after {timeout_s:g} s; wanted: {wanted}; {seen}"
        time.sleep(_POLL_S)


if __name__ == "__main__":
    problem = await_nodes(**json.load(sys.stdin))
    print(problem)
    sys.exit(2 if problem else 0)
