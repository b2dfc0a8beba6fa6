"""What a head that starts with the state of an earlier one has to make good.  Pure.

An end is written step by step (the node, its jobs, their actors), and the head may die
between two steps: what hangs on something that has ended ends now.
"""

from __future__ import annotations

from sparkray.head.state.actors import ActorState
from sparkray.head.state.placement import GroupState
from sparkray.head.state.saved import Tables
from sparkray.protocol.control import NodeInfo


def lost_nodes(tables: Tables) -> list[tuple[bytes, str]]:
    """Return dead or unknown nodes that something still hangs on, each with why it
    is gone."""
    alive = {node.node_id for node in tables.nodes.alive()}
    used = {job.driver_node for job in tables.jobs.all() if job.alive}
    for actor in tables.actors.actors.values():
        if actor.state is not ActorState.DEAD:
            used.add(actor.node_id)
            if not actor.request.detached:
                used.add(actor.request.creator.node_id)
    for group in tables.groups.groups.values():
        if group.state is not GroupState.REMOVED:
            used.update(group.nodes)
    return [
        (node_id, _reason(tables.nodes.get(node_id)))
        for node_id in sorted(used - alive - {b""})
    ]


def unfinished_jobs(tables: Tables) -> list[bytes]:
    """Return jobs that have to end: those of detached actors that have ended."""
    return [
        actor.request.job_id
        for actor in tables.actors.actors.values()
        if actor.request.detached
        and actor.state is ActorState.DEAD
        and tables.jobs.is_alive(actor.request.job_id)
    ]


def ended_jobs(tables: Tables) -> list[bytes]:
    """Return jobs that have ended while something of them has not."""
    users = {
        actor.request.job_id
        for actor in tables.actors.actors.values()
        if actor.state is not ActorState.DEAD and not actor.request.detached
    }
    users |= {
        group.request.job_id
        for group in tables.groups.groups.values()
        if group.state is not GroupState.REMOVED and not group.request.detached
    }
    return [job_id for job_id in tables.jobs.ended() if job_id in users]


def _reason(node: NodeInfo | None) -> str:
    return node.reason if node is not None else "the head does not know it any more"
