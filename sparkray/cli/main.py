"""The command ``sparkray``: start and stop nodes on this host, look at a cluster.

Exit status: 0 done, 1 it failed, 2 wrong usage.  The token is never shown, and never an
argument: it comes from a file or a variable.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from sparkray import __version__, labels
from sparkray.cli import output, stopping
from sparkray.cli.signals import EndSignals
from sparkray.config import Settings, unknown_variables
from sparkray.exceptions import StartError
from sparkray.launch import discovery, process
from sparkray.launch.discovery import Node
from sparkray.words import counted


class _JsonObject(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A JSON object given as text."""

    name = "JSON"

    def convert(self, value: Any, param: Any, ctx: Any) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        try:
            parsed = json.loads(value)
        except ValueError as error:
            self.fail(f"{value!r} is not JSON: {error}", param, ctx)
        if not isinstance(parsed, dict):
            self.fail(f"{value!r} is not a JSON object", param, ctx)
        return parsed


class _Labels(_JsonObject):
    """The labels of a node."""

    def convert(self, value: Any, param: Any, ctx: Any) -> dict[str, Any]:
        given = super().convert(value, param, ctx)
        try:
            labels.check(given)
        except (TypeError, ValueError) as error:
            self.fail(str(error), param, ctx)
        return given


class _Address(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """The head's address."""

    name = "HOST:PORT"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        try:
            discovery.parse_address(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return str(value)


_PORT = click.IntRange(0, 65535)
_temp_dir = click.option(
    "--temp-dir",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="SPARKRAY_TEMP_DIR",
    help="Parent of session directories (default: sparkray-UID under TMPDIR).",
)
_token_file = click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    envvar="SPARKRAY_TOKEN_FILE",
    help="File that holds the cluster's token.",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="sparkray")
def main() -> None:
    """Nested remote tasks over a Spark cluster, in plain Python."""
    try:
        Settings.from_environment()
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    if text := unknown_variables(os.environ):
        click.echo(f"Warning: {text}", err=True)


@main.command()
@click.option("--head", is_flag=True, help="Start a new cluster's head on this host.")
@click.option("--address", type=_Address(), help="Join the cluster of this head.")
@click.option("--host", help="Address of this host, to listen on and to announce.")
@click.option("--port", type=_PORT, help="The head's port; 0: any (default 6380).")
@click.option("--num-cpus", type=click.FloatRange(min=0), help="CPUs for tasks.")
@click.option(
    "--num-gpus",
    type=click.FloatRange(min=0),
    help="GPUs for tasks (default: those in CUDA_VISIBLE_DEVICES, else all there are).",
)
@click.option("--resources", type=_JsonObject(), help="Custom ones: name -> amount.")
@click.option("--labels", type=_Labels(), help="Labels: name -> text.")
@click.option(
    "--object-store-memory", type=click.IntRange(min=1 << 20), help="Bytes for objects."
)
@click.option("--worker-port-min", type=_PORT, help="First port for workers.")
@click.option("--worker-port-max", type=_PORT, help="Last port for workers.")
@click.option("--log-dir", type=click.Path(file_okay=False), help="Keep logs here.")
@click.option(
    "--wait-for-head",
    is_flag=True,
    help="If the head is not there yet, leave the node waiting for it.",
)
@click.option("--once", is_flag=True, help="Do nothing if such a node is here already.")
@click.option("--block", is_flag=True, help="Stay; the node ends with this command.")
@_temp_dir
@_token_file
def start(
    head: bool,
    address: str | None,
    wait_for_head: bool,
    once: bool,
    block: bool,
    token_file: Path | None,
    **given: Any,
) -> None:
    """Start a node on this host: the head of a new cluster, or one more node."""
    if head == bool(address):
        raise click.UsageError("give one of --head and --address HOST:PORT")
    if head and wait_for_head:
        raise click.UsageError("--wait-for-head goes with --address")
    if address and given["port"] is not None:
        raise click.UsageError("--port is the head's: it goes with --head")
    _check_worker_ports(given["worker_port_min"], given["worker_port_max"])
    if head and given["port"] is None:
        given["port"] = _default_port()
    environment = {} if token_file is None else _token_environment(token_file)
    options = process.NodeOptions(
        head=head,
        address=address,
        patient=wait_for_head,
        environment=environment,
        **given,
    )
    signals = EndSignals()
    try:
        with _alone(options) if once else contextlib.nullcontext() as there:
            if there is not None:
                click.echo(output.there_already(there))
                return
            started = process.start_node(options, owned=block, cancel_fd=signals.fd)
    except StartError as error:
        raise click.ClickException(str(error)) from error
    if not block and signals.came():
        started.stop()
        raise click.ClickException("interrupted; the node was ended")
    click.echo(output.started(started.node))
    for warning in started.node.warnings:
        click.echo(f"Warning: {warning}", err=True)
    if block:
        sys.exit(_stay(started, signals))


@main.command()
@click.option("--address", type=_Address(), help="Stop the nodes of this cluster.")
@click.option("--force", is_flag=True, help="End what does not stop within the time.")
@click.option(
    "--timeout", "timeout_s", type=float, default=20.0, help="Seconds to wait for it."
)
@_temp_dir
def stop(
    address: str | None, force: bool, timeout_s: float, temp_dir: Path | None
) -> None:
    """Stop the nodes of one cluster on this host, and nothing else."""
    nodes = _own_nodes(address, temp_dir, waiting=True)
    if not nodes:
        if address:
            raise click.ClickException(f"no node of {address} runs on this host")
        click.echo("no cluster runs on this host")
        return
    left = stopping.stop(nodes, timeout_s=timeout_s, force=force)
    for node in nodes:
        click.echo(f"{'still runs' if node in left else 'stopped'}: process {node.pid}")
    if left:
        raise click.ClickException(
            f"after {timeout_s:g} s {len(left)} of {counted(len(nodes), 'node')} still"
            " there; --force ends what does not end by itself"
        )


@main.command()
@click.option(
    "--address", type=_Address(), envvar="SPARKRAY_ADDRESS", help="Of this cluster."
)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@_temp_dir
@_token_file
def status(
    address: str | None, as_json: bool, temp_dir: Path | None, token_file: Path | None
) -> None:
    """Show nodes, resources, waiting requests and jobs of a cluster."""
    from sparkray.protocol.control import ClusterStatus

    nodes = _nodes_of(address, temp_dir)
    token = _find_token(nodes, token_file)
    report = _ask_head(address or nodes[0].head, token, "Status", ClusterStatus())
    click.echo((output.status_json if as_json else output.status)(report))


@main.command()
@click.option(
    "--address", type=_Address(), envvar="SPARKRAY_ADDRESS", help="Of this cluster."
)
@_temp_dir
@_token_file
def stack(address: str | None, temp_dir: Path | None, token_file: Path | None) -> None:
    """Show what every thread of every process of a cluster does: what hangs, where."""
    from sparkray.protocol.stacks import ListStacks

    nodes = _nodes_of(address, temp_dir)
    token = _find_token(nodes, token_file)
    listed = _ask_head(address or nodes[0].head, token, "ListStacks", ListStacks())
    click.echo(output.stacks(listed))


@contextlib.contextmanager
def _alone(options: process.NodeOptions) -> Iterator[Node | None]:
    """Keep others from starting such a node meanwhile; yield the one that is here."""
    temp_dir = options.temp_dir or discovery.default_temp_dir()
    fd = os.open(process.make_private(temp_dir), os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        found = discovery.nodes_on_this_host(temp_dir)
        if options.head:
            port = f":{options.port}"
            same = [n for n in found if n.is_head and n.head.endswith(port)]
        else:
            found += discovery.waiting_on_this_host(temp_dir)
            others = [node for node in found if not node.is_head]
            same = discovery.with_head(others, options.address or "")
        yield same[0] if same else None
    finally:
        os.close(fd)


def _own_nodes(
    address: str | None, temp_dir: Path | None, *, waiting: bool = False
) -> list[Node]:
    """Return the nodes of the cluster that is meant; exits if that is not clear.

    Args:
        waiting: return those too that wait for its head.
    """
    found = discovery.nodes_on_this_host(temp_dir, deep=bool(address))
    if waiting:
        known = {node.pid for node in found}
        more = discovery.waiting_on_this_host(temp_dir)
        found += [node for node in more if node.pid not in known]
    if address:
        return discovery.with_head(found, address)
    shared = [node for node in found if not (node.local or node.owned)]
    if len({node.head for node in shared}) > 1:
        raise click.UsageError(
            "several clusters run on this host; name one by --address:\n"
            + output.clusters(shared)
        )
    return shared


def _nodes_of(address: str | None, temp_dir: Path | None) -> list[Node]:
    """Return the nodes here of the cluster to look at; exits if there is none."""
    nodes = _own_nodes(address, temp_dir)
    if not nodes and not address:
        waiting = discovery.waiting_on_this_host(temp_dir)
        said = [f"; {output.waits(node)}" for node in waiting] or ["; give --address"]
        raise click.ClickException("no cluster runs on this host" + "".join(said))
    return nodes


def _ask_head(address: str, token: bytes, method: str, request: Any) -> Any:
    from sparkray.transport import client, tls

    try:
        return client.call_head(
            address, token, method, request, 15.0, tls.from_environment()
        )
    except (OSError, TimeoutError, ValueError) as error:
        raise click.ClickException(str(error)) from error


def _find_token(nodes: list[Node], token_file: Path | None) -> bytes:
    from sparkray.transport import auth

    try:
        if nodes:
            return nodes[0].token()
        if token_file is not None:
            return auth.read_token(token_file)
        token = auth.token_from_environment(os.environ)
    except (OSError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    if token is None:
        raise click.ClickException(
            "no token for that cluster: give --token-file, or set SPARKRAY_TOKEN_FILE"
        )
    return token


def _token_environment(token_file: Path) -> dict[str, str]:
    return {"SPARKRAY_TOKEN_FILE": str(token_file.absolute())}


def _check_worker_ports(first: int | None, last: int | None) -> None:
    if (first is None) != (last is None):
        raise click.UsageError("--worker-port-min and --worker-port-max go together")
    if first is not None and last is not None and first > last:
        raise click.UsageError("--worker-port-min is above --worker-port-max")


def _default_port() -> int:
    return 6380


def _stay(started: process.NodeProcess, signals: EndSignals) -> int:
    """Wait until the node ends, or a signal asks for that; return its exit status."""
    signals.watch_children()
    while (status := started.poll()) is None:
        if signals.wait():
            status = started.stop()
            break
    signals.ignore()
    return status
