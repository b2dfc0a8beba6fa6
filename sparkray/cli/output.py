"""What the commands print, as text made from plain values.  Prints nothing itself."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sparkray.launch.discovery import Node
from sparkray.protocol.control import JobInfo, NodeInfo, StatusReport
from sparkray.protocol.stacks import StackList
from sparkray.resources import MEMORY, OBJECT_STORE_MEMORY, UNIT, describe, total
from sparkray.words import counted

_GIB = 1 << 30


def started(node: Node) -> str:
    """Say how to go on after a node was started."""
    if node.waiting:
        end = f"To end it:\n  sparkray stop --address {node.head}"
        return f"Started: {waits(node)}.\n{end}"
    lines = [
        f"{'Head' if node.is_head else 'Node'} started, process {node.pid}.",
        f"  address   {node.head}",
        f"  logs      {node.log_dir or node.session_dir + '/logs'}",
        "",
        "From Python on this host:",
        f'  sparkray.init(address="{node.head}")',
    ]
    if node.is_head:
        lines += [
            "Another host, after copying the token file there:",
            f"  sparkray start --address {node.head} --token-file FILE"
            f"    # here: {node.token_file}",
        ]
    lines += ["To end it:", f"  sparkray stop --address {node.head}"]
    return "\n".join(lines)


def waits(node: Node) -> str:
    """Say what a node waits for."""
    return (
        f"process {node.pid} waits for the head at {node.head}, and joins as soon as"
        " that is there"
    )


def there_already(node: Node) -> str:
    """Say that nothing was started."""
    what = "head" if node.is_head else "node"
    state = waits(node) if node.waiting else f"process {node.pid} of {node.head}"
    return f"Nothing to do, this {what} is there: {state}."


def clusters(nodes: Iterable[Node]) -> str:
    """List clusters of this host, one a line."""
    by_head: dict[str, list[Node]] = {}
    for node in nodes:
        by_head.setdefault(node.head, []).append(node)
    return "\n".join(
        f"  {head}  ({counted(len(members), 'node')} here, process"
        f" {', '.join(str(member.pid) for member in members)})"
        for head, members in by_head.items()
    )


def status(report: StatusReport) -> str:
    """Describe a cluster: nodes, resources, waiting requests, jobs."""
    alive = [node for node in report.nodes if node.alive]
    dead = [node for node in report.nodes if not node.alive]
    parts = [
        f"Cluster {report.cluster_id.hex()} at {report.head}, sparkray"
        f" {report.version}, up {duration(report.uptime_s)}",
        _section("Nodes", [_node(node) for node in [*alive, *dead]]),
        _section("Resources (used / total)", _usage(alive)),
        _section("Waiting requests", _demand(report.demand)),
        _section("Jobs", [_job(job) for job in report.jobs if job.alive]),
    ]
    return "\n\n".join(parts)


def status_json(report: StatusReport) -> str:
    """The same for programs."""
    alive = [node for node in report.nodes if node.alive]
    return json.dumps(
        {
            "cluster_id": report.cluster_id.hex(),
            "address": report.head,
            "version": report.version,
            "uptime_s": report.uptime_s,
            "nodes": [_node_fields(node) for node in report.nodes],
            "total": _plain(total(node.total for node in alive)),
            "available": _plain(total(node.available for node in alive)),
            "demand": [
                {"resources": _plain(shape), "count": count}
                for shape, count in report.demand
            ],
            "jobs": [_job_fields(job) for job in report.jobs],
        },
        indent=2,
    )


def stacks(listed: StackList) -> str:
    """Show the threads of processes."""
    parts = []
    for process in listed.processes:
        parts.append(f"{process.kind} {process.pid} on {process.host_name}")
        parts += [f"  {name}\n{stack}" for name, stack in process.threads]
    parts += [f"no answer from {name}" for name in listed.missing]
    return "\n".join(parts)


def duration(seconds: float) -> str:
    """Return e.g. ``3 h 20 min``, ``45 s``."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, hours = whole // 60 % 60, whole // 3600
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def _section(title: str, lines: Sequence[str]) -> str:
    return "\n".join([title, *(f"  {line}" for line in lines or ["none"])])


def _node(node: NodeInfo) -> str:
    role = " head" if node.is_head else ""
    state = "alive" if node.alive else f"dead: {node.reason}"
    return f"{node.node_id.hex()[:8]}  {node.host} ({node.host_name}){role}  {state}"


def _job(job: JobInfo) -> str:
    return (
        f"{job.job_id.hex()}  {job.config.entrypoint or 'interactive'}  process"
        f" {job.driver_pid} on node {job.driver_node.hex()[:8]}"
    )


def _usage(nodes: Sequence[NodeInfo]) -> list[str]:
    have, free = total(n.total for n in nodes), total(n.available for n in nodes)
    return [
        f"{name}: {_amount(name, units - free.get(name, 0))} / {_amount(name, units)}"
        for name, units in sorted(have.items())
        if not name.startswith("node:")
    ]


def _amount(name: str, units: int) -> str:
    if name in (MEMORY, OBJECT_STORE_MEMORY):
        return f"{units / UNIT / _GIB:.2f} GiB"
    return f"{units / UNIT:g}"


def _demand(demand: Sequence[tuple[dict[str, int], int]]) -> list[str]:
    return [f"{count} x {describe(shape)}" for shape, count in demand]


def _plain(vector: Mapping[str, int]) -> dict[str, float]:
    return {name: units / UNIT for name, units in sorted(vector.items())}


def _node_fields(node: NodeInfo) -> dict[str, Any]:
    return {
        "node_id": node.node_id.hex(),
        "address": node.host,
        "host_name": node.host_name,
        "alive": node.alive,
        "is_head": node.is_head,
        "reason": node.reason,
        "total": _plain(node.total),
        "available": _plain(node.available),
        "labels": dict(node.labels),
    }


def _job_fields(job: JobInfo) -> dict[str, Any]:
    return {
        "job_id": job.job_id.hex(),
        "alive": job.alive,
        "entrypoint": job.config.entrypoint,
        "namespace": job.config.namespace,
        "driver_pid": job.driver_pid,
        "driver_node": job.driver_node.hex(),
    }
