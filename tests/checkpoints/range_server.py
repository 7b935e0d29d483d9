"""An HTTP server of a folder that answers ranges, and counts the bytes it sends."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Served(Counter[str]):
    """Bytes sent, by file."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else what follows the headers waits 40 ms for their receipt

    def __init__(self, folder: Path, served: Served, ranges: bool, stalls: threading.Event, *args: object) -> None:
        self.folder, self.served, self.ranges, self.goes_on = folder, served, ranges, stalls
        super().__init__(*args)

    def do_HEAD(self) -> None:
        self._answer(send=False)

    def do_GET(self) -> None:
        self._answer(send=True)

    def _answer(self, *, send: bool) -> None:
        file = self.folder / Path(self.path).name
        if not file.is_file():
            self.send_error(404)
            return
        num_bytes = file.stat().st_size
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")) if self.ranges else None
        with file.open("rb") as opened:
            opened.seek(int(asked[1]) if asked else 0)
            part = opened.read(int(asked[2]) + 1 - int(asked[1]) if asked else num_bytes) if send else b""
        self.send_response(206 if asked else 200)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(part) if send else num_bytes))
        if asked:
            self.send_header("Content-Range", f"bytes {asked[1]}-{int(asked[1]) + len(part) - 1}/{num_bytes}")
        self.end_headers()
        if send:
            if asked and file.name.startswith("rank") and not self.goes_on.is_set():
                self.wfile.write(part[: len(part) // 2])
                self.goes_on.wait()
                return
            self.wfile.write(part)
            self.served[file.name] += len(part)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(folder: Path, *, ranges: bool = True, stalls: bool = False) -> Iterator[tuple[str, Served]]:
    """Serve a folder; yields its URL and the bytes sent. One that ``stalls`` sends half of a range and no more."""
    served, goes_on = Served(), threading.Event()
    if not stalls:
        goes_on.set()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, folder, served, ranges, goes_on))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", served
    finally:
        goes_on.set()
        server.shutdown()
        server.server_close()
        thread.join()
