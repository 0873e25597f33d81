"""Debug adapters over TCP: for each client that connects, a process of its own that runs the adapter."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from typing import IO

_HOST = "127.0.0.1"
_COMMAND = (sys.executable, "-m", "cudakit", "debug", "--dap")


def serve_port(port: int) -> None:
    """Accept clients on a port of this machine until the process is interrupted; port 0: any free one, which is
    printed. Raises OSError if the port is in use."""
    with socket.create_server((_HOST, port)) as server:
        print(f"cudakit debug adapter: listens on {_HOST}:{server.getsockname()[1]}, until Ctrl-C", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                client, _ = server.accept()
                threading.Thread(target=_session, args=(client,), daemon=True).start()


def _session(client: socket.socket) -> None:
    """Connect a client with a new adapter until one of them ends."""
    with client, subprocess.Popen(_COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as adapter:
        if adapter.stdin is None or adapter.stdout is None:
            return
        threading.Thread(target=_forward, args=(client, adapter.stdin), daemon=True).start()
        with contextlib.suppress(OSError):
            while data := adapter.stdout.read1(1 << 16):  # type: ignore[attr-defined]
                client.sendall(data)
            client.shutdown(socket.SHUT_RDWR)


def _forward(client: socket.socket, sink: IO[bytes]) -> None:
    with contextlib.suppress(OSError, ValueError), sink:
        while data := client.recv(1 << 16):
            sink.write(data)
            sink.flush()
