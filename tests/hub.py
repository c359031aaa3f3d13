"""A stand-in for the hub: serves directories as model repositories, and says what was asked of it."""

import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0" * 40


class Hub:
    """models: id -> directory. status: id -> what its requests are answered with instead: 401, 403, 404, 500, or
    "gated", which refuses files to whoever sends no token and everyone whose token is "stranger"."""

    def __init__(self) -> None:
        self.models: dict[str, Path] = {}
        self.status: dict[str, int | str] = {}
        self.asked: list[str] = []
        self.tokens: set[str | None] = set()
        self.url = ""
        self.silent = threading.Event()  # while set, nothing is answered

    @contextmanager
    def served(self):
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Handler,), {"hub": self}))
        server.daemon_threads = True
        self.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.silent.clear()
            server.shutdown()
            server.server_close()


class Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path, hub = self.path.partition("?")[0], self.hub
        hub.asked.append(path)
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
        hub.tokens.add(token)
        while hub.silent.is_set():
            threading.Event().wait(0.05)
        parts = path.strip("/").split("/")
        api = parts[:2] == ["api", "models"]
        name, rest = "/".join(parts[2:4] if api else parts[:2]), parts[4:] if api else parts[2:]
        status = hub.status.get(name)
        if isinstance(status, int):
            return self.answer(status, b"{}", {"X-Error-Code": "RepoNotFound"} if status == 404 else {})
        if name not in hub.models:
            return self.answer(401, b"{}", {"X-Error-Code": "RepoNotFound"})
        folder = hub.models[name]
        if api:
            files = [
                {"type": "file", "path": file.name, "size": file.stat().st_size, "oid": "1" * 40}
                for file in sorted(folder.iterdir())
            ]
            siblings = [{"rfilename": file["path"]} for file in files]
            info = files if rest[:1] == ["tree"] else {"id": name, "sha": COMMIT, "siblings": siblings}
            return self.answer(200, json.dumps(info).encode(), {"Content-Type": "application/json"})
        if status == "gated" and token in (None, "stranger"):
            return self.answer(403 if token else 401, b"", {"X-Error-Code": "GatedRepo"})
        body = (folder / rest[-1]).read_bytes()
        return self.answer(200, body, {"ETag": hashlib.sha256(body).hexdigest(), "X-Repo-Commit": COMMIT})

    def answer(self, status, body, headers):
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)
