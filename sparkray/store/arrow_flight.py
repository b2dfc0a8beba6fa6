"""The part of `store.flight` that loads Arrow."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Any, Final

import pyarrow
from pyarrow import flight

from sparkray.exceptions import ObjectLostError, ProtocolError
from sparkray.store.copying import copy_into
from sparkray.transport.tls import TLSFiles

#: Bytes in one record batch.
_CHUNK_BYTES: Final = 2 * 1024 * 1024
#: A peer that is cut off is given up soon.  Servers of Flight suffer no more than four
#: pings while they send nothing, and an object is on its way within a minute.
_CLIENT_OPTIONS: Final = [
    ("grpc.enable_http_proxy", 0),  # hosts of one cluster need no proxy
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.min_reconnect_backoff_ms", 10_000),  # and so long a connect may take
]


class _Gate(flight.ServerMiddlewareFactory):  # type: ignore[misc,unused-ignore]
    """Lets nobody in who does not show the token."""

    def __init__(self, token: bytes) -> None:
        super().__init__()
        self._expected = _credentials(token)

    def start_call(self, info: Any, headers: dict[str, list[Any]]) -> None:
        shown = headers.get("authorization", [""])[0]
        shown = shown.encode() if isinstance(shown, str) else shown
        if not hmac.compare_digest(shown, self._expected):
            raise flight.FlightUnauthenticatedError("no proof of the cluster's token")


class _Server(flight.FlightServerBase):  # type: ignore[misc,unused-ignore]
    def __init__(self, open_object: Callable[[bytes], memoryview], **options: Any):
        super().__init__(**options)
        self._open_object = open_object

    def do_get(self, context: Any, ticket: Any) -> Any:
        try:
            view = self._open_object(ticket.ticket)
        except ObjectLostError as error:
            raise flight.FlightServerError(error.reason) from error
        except Exception as error:  # told to the client, who raises it
            raise flight.FlightServerError(str(error)) from error
        return flight.RecordBatchStream(_as_table(view))


def _as_table(view: memoryview) -> Any:
    """Return the bytes of ``view`` as a table over the same memory."""
    field = pyarrow.field("data", pyarrow.uint8(), nullable=False)
    schema = pyarrow.schema([field], metadata={"size": str(len(view))})
    whole = pyarrow.py_buffer(view)
    batches = []
    for start in range(0, len(view), _CHUNK_BYTES):
        part = whole.slice(start, min(_CHUNK_BYTES, len(view) - start))
        array = pyarrow.Array.from_buffers(pyarrow.uint8(), part.size, [None, part])
        batches.append(pyarrow.RecordBatch.from_arrays([array], schema=schema))
    return pyarrow.Table.from_batches(batches, schema)


def serve(
    open_object: Callable[[bytes], memoryview],
    token: bytes,
    host: str,
    port: int,
    files: TLSFiles | None,
) -> Any:
    """Return a server that runs in threads of its own; see `flight.FlightStore`."""
    options: dict[str, Any] = {"middleware": {"token": _Gate(token)}}
    if files is not None:
        ca, cert, key = files.read()
        options["tls_certificates"] = [(cert, key)]
        options["verify_client"] = True
        options["root_certificates"] = ca
    location = _location(f"{host}:{port}", files)
    return _Server(open_object, location=location, **options)


def fetch(
    address: str,
    token: bytes,
    object_id: bytes,
    into: Callable[[int], memoryview],
    timeout_s: float,
    files: TLSFiles | None,
) -> int:
    """See `flight.fetch`."""
    try:
        with _connect(address, files) as client:
            options = flight.FlightCallOptions(
                timeout=timeout_s, headers=[(b"authorization", _credentials(token))]
            )
            reader = client.do_get(flight.Ticket(object_id), options)
            return _receive(reader, into)
    except flight.FlightUnauthenticatedError as error:
        text = f"{address} does not accept the token of this cluster"
        raise ProtocolError(text) from error
    except (flight.FlightError, pyarrow.ArrowException) as error:
        text = str(error).partition(". Detail:")[0]  # the rest is gRPC's own
        raise ObjectLostError(object_id.hex(), f"{address}: {text}") from error


def _receive(reader: Any, into: Callable[[int], memoryview]) -> int:
    metadata = reader.schema.metadata or {}
    try:
        size = int(metadata[b"size"])
    except (KeyError, ValueError) as error:
        raise ProtocolError("the answer is not an object of a store") from error
    target = into(size)
    position = 0
    while position < size:
        try:
            column = reader.read_chunk().data.column(0)
        except StopIteration:
            break
        length = len(column)
        if position + length > size:
            break
        data = memoryview(column.buffers()[1]).cast("B")
        start = column.offset
        copy_into(target[position : position + length], data[start : start + length])
        position += length
    if position != size:
        raise ProtocolError(f"the object ended at {position} of {size} bytes")
    return size


def _connect(address: str, files: TLSFiles | None) -> Any:
    if files is None:
        return flight.connect(
            _location(address, files), generic_options=_CLIENT_OPTIONS
        )
    ca, cert, key = files.read()
    return flight.connect(
        _location(address, files),
        tls_root_certs=ca,
        cert_chain=cert,
        private_key=key,
        generic_options=_CLIENT_OPTIONS,
    )


def _location(address: str, files: TLSFiles | None) -> str:
    return f"grpc{'+tls' if files else ''}://{address}"


def _credentials(token: bytes) -> bytes:
    return b"Bearer " + token
