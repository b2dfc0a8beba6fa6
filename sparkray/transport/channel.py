"""Task channels: framed messages over sockets, driven by one I/O thread.

    caller threads --- Channel.send ---> socket          (the caller sends by itself)
    I/O thread     --- epoll ----------> on_frames(channel, [body, ...])

A frame that the socket does not take at once waits in the channel's buffer, and the I/O
thread sends it when the socket has room.  Callbacks run on the I/O thread and must not
block.  This module knows nothing of messages: frames are bytes.
"""

from __future__ import annotations

import collections
import errno
import heapq
import itertools
import logging
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any

from sparkray.exceptions import ProtocolError
from sparkray.protocol.framing import MAX_BODY_BYTES, FrameDecoder
from sparkray.transport.auth import HANDSHAKE_TIMEOUT_S, MAX_UNPROVEN, Handshake

log = logging.getLogger(__name__)

_RECEIVE_BYTES = 256 * 1024
_READ, _WRITE = select.EPOLLIN, select.EPOLLOUT
_NOT_NOW = (
    BlockingIOError,
    InterruptedError,
    ssl.SSLWantReadError,
    ssl.SSLWantWriteError,
)


class IOLoop:
    """One thread that waits for sockets, timers and posted calls.

    `post` may be called from any thread, also from ``__del__`` and signal handlers: it
    takes no lock.  Everything else belongs to the I/O thread unless it says otherwise.
    """

    def __init__(self, name: str) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._posted: collections.deque[Callable[[], None]] = collections.deque()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._epoll.register(self._wake_read, _READ)
        self._stopping = False
        self._pid = os.getpid()
        self.receive_buffer = memoryview(bytearray(_RECEIVE_BYTES))
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def post(self, call: Callable[[], None]) -> None:
        """Run ``call`` on the I/O thread soon.  Any thread; never blocks."""
        self._posted.append(call)
        try:
            os.write(self._wake_write, b"\0")
        except (BlockingIOError, OSError):  # full: it is awake already; closed: over
            return

    def call_later(self, delay_s: float, call: Callable[[], None]) -> None:
        """Run ``call`` on the I/O thread after ``delay_s``.  I/O thread only."""
        due = time.monotonic() + delay_s
        heapq.heappush(self._timers, (due, next(self._order), call))

    def register(self, fd: int, events: int, handler: Callable[[int], None]) -> None:
        self._handlers[fd] = handler
        self._epoll.register(fd, events)

    def modify(self, fd: int, events: int) -> None:
        """Change what is waited for.  Any thread."""
        self._epoll.modify(fd, events)

    def unregister(self, fd: int) -> None:
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    @property
    def on_thread(self) -> bool:
        return threading.get_ident() == self._thread.ident

    def stop(self, timeout_s: float = 5.0) -> None:
        """End the thread.  Any thread but the I/O thread; again is harmless."""
        self._stopping = True
        self.post(lambda: None)
        if self._thread.is_alive() and not self.on_thread:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._turn()
            self._run_posted()  # what was asked for before the end was
        finally:
            self._handlers.clear()
            self._epoll.close()
            os.close(self._wake_read)
            os.close(self._wake_write)

    def _turn(self) -> None:
        for fd, events in self._epoll.poll(self._patience()):
            if fd == self._wake_read:
                self._drain_wake_pipe()
                continue
            handler = self._handlers.get(fd)
            if handler is not None:
                self._guard(handler, events)
        self._run_posted()
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            self._guard(heapq.heappop(self._timers)[2])

    def _run_posted(self) -> None:
        posted = self._posted
        while posted:
            self._guard(posted.popleft())

    def _patience(self) -> float | None:
        if self._posted:
            return 0
        if not self._timers:
            return None
        return max(0.0, self._timers[0][0] - time.monotonic())

    def _drain_wake_pipe(self) -> None:
        try:
            os.read(self._wake_read, 4096)
        except BlockingIOError:
            return

    def _guard(self, call: Callable[..., None], *args: Any) -> None:
        try:
            call(*args)
        except Exception:
            log.exception("bug in a callback of the I/O thread: %r", call)


class Channel:
    """One connection: handshake first, then frames both ways.

    Args:
        loop: the I/O thread that drives it.
        sock: a connected (or connecting) stream socket; the channel owns it.
        token: the cluster's secret.
        server: True on the side that accepted.
        tls: wraps the connection in TLS; ``tls_host`` is whom a client expects.
        on_open: called once the peer has proven itself.
        on_frames: called with the bodies of the frames that one read completed.
        on_close: called once, with the reason, whoever ends the connection.
    """

    def __init__(
        self,
        loop: IOLoop,
        sock: socket.socket,
        token: bytes,
        *,
        server: bool,
        on_open: Callable[[Channel], None],
        on_frames: Callable[[Channel, list[bytes]], None],
        on_close: Callable[[Channel, str], None],
        tls: ssl.SSLContext | None = None,
        tls_host: str = "",
    ) -> None:
        self.peer: Any = None  #: for the user of the channel: who is at the other end
        self.is_open = False
        self.is_closed = False
        self._loop = loop
        self._socket = sock
        self._fd = sock.fileno()
        self._on_open, self._on_frames, self._on_close = on_open, on_frames, on_close
        self._handshake: Handshake | None = Handshake(token, server=server)
        self._decoder = FrameDecoder(MAX_BODY_BYTES)
        self._early: list[bytes] = []  #: frames sent before the peer was proven
        self._out: collections.deque[memoryview] = collections.deque()
        self._server, self._tls, self._tls_host = server, tls, tls_host
        #: Guards `_out`, `_early`, `is_open` and the order of bytes on the socket.
        self._lock = threading.Lock()
        sock.setblocking(False)

    def start(self) -> None:
        """Begin the handshake.  I/O thread only."""
        self._loop.call_later(HANDSHAKE_TIMEOUT_S, self._check_handshake)
        if self._tls is not None and not self._server:
            self._loop.register(self._fd, _WRITE, self._connected)
        else:
            self._begin()

    def _connected(self, events: int) -> None:
        """The TCP connection stands (or failed): only now can TLS begin."""
        error = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            self._close(f"could not connect: {os.strerror(error)}")
            return
        self._loop.unregister(self._fd)
        self._begin()

    def _begin(self) -> None:
        assert self._handshake is not None
        if self._tls is not None:
            self._socket = self._tls.wrap_socket(
                self._socket,
                server_side=self._server,
                do_handshake_on_connect=False,
                server_hostname=None if self._server else self._tls_host,
            )
        self._loop.register(self._fd, _READ, self._ready)
        self._transmit(self._handshake.first_bytes())

    def send(self, data: bytes) -> None:
        """Send framed bytes.  Any thread; never blocks; dropped once closed."""
        with self._lock:
            if self.is_open:
                self._write(data)
            elif not self.is_closed:
                self._early.append(data)

    def queue(self, data: bytes) -> None:
        """Add framed bytes to what `transmit` sends.  Any thread; never blocks."""
        with self._lock:
            if self.is_open:
                self._out.append(memoryview(data))
            elif not self.is_closed:
                self._early.append(data)

    def transmit(self) -> None:
        """Send what was queued, as far as the socket takes it.  Any thread."""
        if self._out and self.is_open and not self._send_out():
            self._watch_for_room()

    @property
    def unsent_bytes(self) -> int:
        return sum(map(len, self._out))

    def close(self, reason: str = "closed here") -> None:
        """End the connection.  Any thread; again is harmless."""
        if self._loop.on_thread:
            self._close(reason)
        else:
            self._loop.post(lambda: self._close(reason))

    def _write(self, data: bytes) -> None:
        """Send or queue; the lock is held."""
        if self._out:
            self._out.append(memoryview(data))
            return
        try:
            sent = self._socket.send(data)
        except _NOT_NOW:
            sent = 0
        except OSError as error:
            if error.errno in (errno.ENOTCONN, errno.EINPROGRESS):
                sent = 0  # still connecting
            else:
                reason = f"sending failed: {error}"
                self._loop.post(lambda: self._close(reason))
                return
        if sent < len(data):
            self._out.append(memoryview(data)[sent:])
            self._watch_for_room()

    def _watch_for_room(self) -> None:
        try:
            self._loop.modify(self._fd, _READ | _WRITE)
        except (OSError, ValueError):  # closing at this moment
            return

    def _transmit(self, data: bytes) -> None:
        if data:
            with self._lock:
                self._write(data)

    def _ready(self, events: int) -> None:
        if events & _WRITE:
            self._flush()
        if events & ~_WRITE and not self.is_closed:
            self._receive()

    def _flush(self) -> None:
        """The socket has room again.  I/O thread."""
        if self._send_out():
            with self._lock:
                if not self._out and not self.is_closed:
                    self._loop.modify(self._fd, _READ)

    def _send_out(self) -> bool:
        """Send from the buffer; return False if the socket is full."""
        with self._lock:
            try:
                while self._out:
                    chunk = self._out[0]
                    sent = self._socket.send(chunk)
                    if sent < len(chunk):
                        self._out[0] = chunk[sent:]
                        return False
                    self._out.popleft()
            except _NOT_NOW:
                return False
            except OSError as error:
                reason = f"sending failed: {error}"
                self._loop.post(lambda: self._close(reason))
        return True

    def _receive(self) -> None:
        while not self.is_closed and self._receive_once() and self._tls is not None:
            pass  # TLS may hold more records that epoll knows nothing of

    def _receive_once(self) -> bool:
        buffer = self._loop.receive_buffer
        try:
            if self._tls is None:
                size = self._socket.recv_into(buffer)
            else:
                with self._lock:  # one TLS object must not be read and written at once
                    size = self._socket.recv_into(buffer)
        except _NOT_NOW:
            return False
        except OSError as error:
            self._close(f"the connection broke: {error}")
            return False
        if not size:
            self._close("the peer closed the connection")
            return False
        self._handle_bytes(buffer[:size])
        return True

    def _handle_bytes(self, data: memoryview) -> None:
        try:
            if self._handshake is not None:
                self._shake(self._handshake, bytes(data))
            else:
                self._deliver(self._decoder.feed(data))
        except ProtocolError as error:
            self._close(str(error))

    def _shake(self, handshake: Handshake, data: bytes) -> None:
        reply, rest = handshake.feed(data)
        self._transmit(reply)
        if not handshake.done:
            return
        self._handshake = None
        self._on_open(self)
        with self._lock:
            self.is_open = True
            early, self._early = self._early, []
            if early:
                self._write(b"".join(early))
        if rest:
            self._deliver(self._decoder.feed(rest))

    def _deliver(self, frames: list[bytes]) -> None:
        if frames:
            self._on_frames(self, frames)

    def _check_handshake(self) -> None:
        if self._handshake is not None and not self.is_closed:
            self._close(f"no proof of the token within {HANDSHAKE_TIMEOUT_S:g} s")

    def _close(self, reason: str) -> None:
        if self.is_closed:
            return
        with self._lock:
            self.is_closed, self.is_open = True, False
            self._out.clear()
            self._early.clear()
        self._loop.unregister(self._fd)
        self._socket.close()
        self._on_close(self, reason)


class Listener:
    """Accepts connections on one socket; each becomes a server-side `Channel`."""

    def __init__(
        self,
        loop: IOLoop,
        sock: socket.socket,
        make_channel: Callable[[socket.socket], Channel],
    ) -> None:
        self._loop = loop
        self._socket = sock
        self._make_channel = make_channel
        self._unproven: set[Channel] = set()
        sock.setblocking(False)

    def start(self) -> None:
        """Begin to accept.  I/O thread only."""
        self._loop.register(self._socket.fileno(), _READ, self._accept)

    def close(self) -> None:
        """Stop accepting.  I/O thread only."""
        self._loop.unregister(self._socket.fileno())
        self._socket.close()

    def _accept(self, events: int) -> None:
        try:
            sock, _ = self._socket.accept()
        except OSError as error:
            log.warning("could not accept a connection: %s", error)
            return
        self._unproven = {c for c in self._unproven if not (c.is_open or c.is_closed)}
        if len(self._unproven) >= MAX_UNPROVEN:
            sock.close()
            return
        channel = self._make_channel(sock)
        self._unproven.add(channel)
        channel.start()


def listen_unix(path: str) -> socket.socket:
    """Return a listening Unix socket that only this user can reach (mode 0600)."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        sock.bind(path)
    finally:
        os.umask(before)
    sock.listen(512)
    return sock


def listen_tcp(host: str, port_min: int, port_max: int) -> socket.socket:
    """Return a listening TCP socket on a free port of the range (0, 0: any port).

    Raises:
        OSError: no port of the range is free; names the range.
    """
    start = (os.getpid() * 7919) % max(1, port_max - port_min + 1)
    ports = range(port_min, port_max + 1)
    for step in range(len(ports)):
        sock = socket.socket(_family(host), socket.SOCK_STREAM)
        try:
            sock.bind((host, ports[(start + step) % len(ports)]))
            sock.listen(512)
        except OSError as error:
            sock.close()
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            return sock
    raise OSError(errno.EADDRINUSE, f"no free port in {port_min}-{port_max} on {host}")


def connect_unix(path: str) -> socket.socket:
    """Return a connected Unix socket.

    Raises:
        OSError: nobody listens there.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(path)
    except OSError:
        sock.close()
        raise
    return sock


def connect_tcp(host: str, port: int) -> socket.socket:
    """Return a TCP socket whose connection is under way; the channel finds out."""
    sock = socket.socket(_family(host), socket.SOCK_STREAM)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    sock.setblocking(False)
    error = sock.connect_ex((host, port))
    if error not in (0, errno.EINPROGRESS):
        sock.close()
        raise OSError(error, f"{os.strerror(error)}: {host}:{port}")
    return sock


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
