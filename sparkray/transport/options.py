"""What gRPC servers and clients agree on: limits, keepalive, how the token is shown."""

from __future__ import annotations

from typing import Final

#: No control message is larger; checked on the length, before room is set aside.
MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024

_SIZES: Final = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", 16 * 1024),
]
_KEEPALIVE: Final = [
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.max_pings_without_data", 0),
]
SERVER_OPTIONS: Final = [
    *_SIZES,
    *_KEEPALIVE,
    ("grpc.so_reuseport", 0),  # a second server on the port must fail, not share it
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.max_concurrent_streams", 1_000),
    ("grpc.server_handshake_timeout_ms", 10_000),
]
CLIENT_OPTIONS: Final = [
    *_SIZES,
    *_KEEPALIVE,
    ("grpc.enable_http_proxy", 0),  # hosts of one cluster need no proxy
    ("grpc.enable_retries", 0),  # only the caller knows what may be repeated
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
]


def credential(token: bytes) -> str:
    """Return the value of the ``authorization`` metadata for ``token``."""
    return f"Bearer {token.hex()}"


def full_name(host: str, port: int) -> str:
    """Return ``host:port``, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
