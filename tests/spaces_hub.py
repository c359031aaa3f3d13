"""A local stand-in for the Hub's API, as far as a Space is made with it: it notes every call and fails when told to."""

import json
import threading
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

COMMIT = "c" * 40


class Hub(ThreadingHTTPServer):
    """calls: what was asked, in order. bodies: what came with each call, parsed.

    failures: call -> answers (status, message) to give first, one a call. stages: the Space's stage at each look, the
    last one for good. space: the body it was created with, None as long as there is none.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.space: dict | None = None
        self.files: dict[str, bytes] = {}
        self.calls: list[str] = []
        self.bodies: list[object] = []
        self.tokens: set[str] = set()
        self.failures: dict[str, list[tuple[int, str]]] = {}
        self.stages = ["BUILDING", "APP_STARTING", "RUNNING"]
        self.stale = 0  # looks at the Space that still tell of an earlier commit
        self.log = ["line\n"]
        self.answers_are_lost = False  # whether a creation that "fails" was carried out all the same
        self.hardware: str | None = None
        self.keeps_hardware = True  # whether the hardware asked for at creation is given

    def name(self, method: str, path: str) -> str:
        return f"{method} {path.removeprefix('/api/')}"


class Answer(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.answer("GET")

    def do_POST(self) -> None:
        self.answer("POST")

    def answer(self, method: str) -> None:
        hub, path = self.server, urlsplit(self.path).path
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            raw = self.chunks()
        name = hub.name(method, path)
        hub.calls.append(name)
        lines = [json.loads(line) for line in raw.splitlines() if line.strip()]
        hub.bodies.append(lines if len(lines) > 1 else next(iter(lines), None))
        hub.tokens.add(self.headers.get("Authorization", ""))
        failure = hub.failures.get(name)
        if failure:
            status, message = failure.pop(0)
            if hub.answers_are_lost:
                hub.space = hub.bodies[-1]
            return self.send(status, {"error": message, "errors": [{"message": message}]})
        if hub.space is None and path != "/api/repos/create":
            return self.send(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        self.reply(name, path, hub.bodies[-1])

    def chunks(self) -> bytes:
        raw = b""
        while size := int(self.rfile.readline(), 16):
            raw += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return raw

    def reply(self, name: str, path: str, body: object) -> None:
        hub = self.server
        if path == "/api/repos/create":
            url = f"{hub.address}/spaces/{body['organization']}/{body['name']}"
            if hub.space is not None:
                return self.send(409, {"error": "You already created this space repo", "url": url})
            hub.space = body
            hub.hardware = body.get("hardware") if hub.keeps_hardware else "cpu-basic"
            return self.send(200, {"url": url})
        if path.endswith("/logs/build") or path.endswith("/logs/run"):
            events = "".join(f"data: {json.dumps({'data': line, 'timestamp': ''})}\n\n" for line in hub.log)
            return self.send(200, events.encode(), {"Content-Type": "text/event-stream"})
        if "/preupload/" in path:
            files = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False, "oid": None}
                for file in body["files"]
            ]
            return self.send(200, {"files": files})
        if "/commit/" in path:
            for operation in body:
                value = operation["value"]
                if operation["key"] == "file":
                    hub.files[value["path"]] = b64decode(value["content"])
                elif operation["key"] == "deletedFile":
                    del hub.files[value["path"]]
            url = f"{hub.address}/spaces/me/demo/commit/{COMMIT}"
            return self.send(200, {"success": True, "commitOid": COMMIT, "commitUrl": url})
        if path.endswith("/hardware"):
            hub.hardware = body["flavor"]
        if path.endswith("/runtime") or path.endswith("/hardware"):
            return self.send(200, self.runtime())
        if path.endswith("/variables"):
            return self.send(200, {body["key"]: {"value": body["value"]}})
        if path.endswith("/secrets"):
            return self.send(200, {})
        if "/tree/" in path:
            return self.send(200, [{"type": "file", "path": f, "size": 1, "oid": "a" * 40} for f in hub.files])
        siblings = [{"rfilename": file} for file in hub.files]
        self.send(200, {"id": "me/demo", "sha": "a" * 40, "siblings": siblings, "private": False, "tags": []})

    def runtime(self) -> dict:
        hub, stage, sha = self.server, self.server.stages[0], COMMIT
        if hub.stale:
            hub.stale -= 1
            stage, sha = "RUNNING", "b" * 40
        elif len(hub.stages) > 1:
            hub.stages.pop(0)
        return {"stage": stage, "sha": sha, "hardware": {"current": None, "requested": hub.hardware}}

    def send(self, status: int, body: object, headers: dict[str, str] | None = None) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in ({"Content-Type": "application/json"} | (headers or {})).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def hub() -> Iterator[Hub]:
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
