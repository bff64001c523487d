"""A local endpoint with the parts of the Hugging Face hub's interface that ``fedshift get`` uses."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SHA = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """A repository: its files, and how the endpoint behaves.

    Attributes:
        files: The content of each file by path.
        cut: The bytes of a file after which a connection ends, by path; once each.
        asked: The paths and ranges that were asked for, in order.
        lie: Files whose stated SHA-256 is another one.
    """

    def __init__(self, repository: str, files: dict[str, bytes], licence: str = "cc-by-4.0") -> None:
        self.repository, self.files, self.licence = repository, files, licence
        self.cut: dict[str, int] = {}
        self.asked: list[tuple[str, str]] = []
        self.lie: set[str] = set()

    def info(self) -> dict[str, Any]:
        """Return what the interface says of the repository."""
        sizes = {name: {"size": len(content)} for name, content in self.files.items()}
        siblings = [
            {"rfilename": name, "lfs": {"sha256": self.digest(name), "pointerSize": 130, **size}, **size}
            for name, size in sizes.items()
        ]
        return {"id": self.repository, "sha": SHA, "cardData": {"license": self.licence}, "siblings": siblings}

    def digest(self, name: str) -> str:
        """Return the stated SHA-256 of a file."""
        return hashlib.sha256(self.files[name] + (b"other" if name in self.lie else b"")).hexdigest()


@contextmanager
def serving(hub: Hub) -> Iterator[str]:
    """Serve a repository on loopback and yield the address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, *, body: bool) -> None:
            path = self.path.partition("?")[0]
            if path.startswith(f"/api/datasets/{hub.repository}"):
                return self._send(json.dumps(hub.info()).encode(), {"Content-Type": "application/json"}, body)
            name = path.removeprefix(f"/datasets/{hub.repository}/resolve/{SHA}/")
            if name == path or name not in hub.files:
                return self._send(b"{}", {"X-Error-Code": "RepoNotFound"}, body, 404)
            content, wanted = hub.files[name], self.headers.get("Range", "")
            headers = {"X-Repo-Commit": SHA, "ETag": f'"{hub.digest(name)}"', "Accept-Ranges": "bytes"}
            if body:
                hub.asked.append((name, wanted))
            start = int(wanted.removeprefix("bytes=").partition("-")[0]) if wanted else 0
            if wanted:
                headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            cut = hub.cut.pop(name, None) if body else None
            return self._send(content[start:], headers, body, 206 if wanted else 200, cut)

        def _send(self, content: bytes, headers: Any, body: bool, status: int = 200, cut: int | None = None) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if body:
                self.wfile.write(content[:cut])
            if cut is not None:
                self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
