"""Explicit limits of the wire, and what both sides tell gRPC."""

MOST_MESSAGE_BYTES = 256 << 20  # gRPC's own limit is 4 MiB, which a batch of smashed data passes
LEAST_MESSAGE_BYTES = 8 << 20  # every server takes these: a chunk, a probe, a message without tensors are smaller
KEEPALIVE_MS = 20_000  # pings on an idle stream, both ways; a server would answer them with GOAWAY by default
KEEPALIVE_TIMEOUT_MS = 10_000
RECONNECT_MS = (200, 5_000)  # first and longest wait between two attempts of a channel
BACKOFF_S = (0.2, 5.0)  # first and longest wait between two attempts of the client or the main server
MOST_STREAMS = 64  # open at once on one connection; a client needs four, the main server four and its short calls

_BOTH = [
    ("grpc.max_send_message_length", MOST_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_metadata_size", 16 << 10),
]
_SERVER = [
    *_BOTH,
    ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MS // 2),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", KEEPALIVE_MS // 2),
    ("grpc.max_concurrent_streams", MOST_STREAMS),
    ("grpc.so_reuseport", 0),  # a second server on the port is an error, not a rival
]
CHANNEL_OPTIONS = [
    *_BOTH,
    ("grpc.max_receive_message_length", MOST_MESSAGE_BYTES),
    ("grpc.initial_reconnect_backoff_ms", RECONNECT_MS[0]),
    ("grpc.min_reconnect_backoff_ms", RECONNECT_MS[0]),
    ("grpc.max_reconnect_backoff_ms", RECONNECT_MS[1]),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
]


def server_options(largest_bytes: int) -> list[tuple[str, int]]:
    """gRPC's options for a server. largest_bytes: of the messages that it is sent; a longer message is refused before
    memory is taken for it."""
    most = min(max(largest_bytes, LEAST_MESSAGE_BYTES), MOST_MESSAGE_BYTES)
    return [*_SERVER, ("grpc.max_receive_message_length", most)]
