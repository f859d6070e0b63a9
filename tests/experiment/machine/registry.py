"""A registry of one image on this machine, which asks for an account as public ones do."""

from __future__ import annotations

import gzip
import hashlib
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qs

from typing_extensions import Self

PASSWORD = "secret-word"
_ACCESS = "of-the-registry"
_BASIC = "Basic bWU6c2VjcmV0LXdvcmQ="  # me:secret-word
_TYPE = "application/vnd.docker.distribution.manifest.v2+json"


class Registry:
    """Serves ``train:1`` for the name ``me`` with the password, or for the password as a token.

    Source: https://distribution.github.io/distribution/spec/auth/token/

    Args:
        layer: The archive of the files of the image.

    Attributes:
        address: Its host and port.
        asked: The credentials of the requests for a token.
        pulled: The tokens by which parts of the image were read.
    """

    def __init__(self, layer: bytes) -> None:
        packed = gzip.compress(layer)
        config = json.dumps(
            {
                "architecture": "amd64",
                "os": "linux",
                "config": {},
                "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
            }
        ).encode()
        self._blobs = {_digest(blob): blob for blob in (packed, config)}
        self._manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": _TYPE,
                "config": _part("application/vnd.docker.container.image.v1+json", config),
                "layers": [_part("application/vnd.docker.image.rootfs.diff.tar.gzip", packed)],
            }
        ).encode()
        self.asked: list[str] = []
        self.pulled: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"registry": self}))
        self.address = f"127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread = Thread(target=self._server.serve_forever)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def token(self, credentials: str) -> tuple[int, bytes]:
        """Return the answer to a request for a token."""
        if credentials not in (_BASIC, f"refresh_token {PASSWORD}"):
            return 401, b"{}"
        self.asked.append(credentials)
        return 200, json.dumps({"token": _ACCESS, "access_token": _ACCESS}).encode()

    def part(self, path: str, authorization: str) -> tuple[int, bytes]:
        """Return the manifest or a blob, for a token that holds."""
        if authorization not in (f"Bearer {_ACCESS}", f"Bearer {PASSWORD}"):
            return 401, b"{}"
        if path == "/v2/":
            return 200, b"{}"
        self.pulled.append(authorization)
        kind, name = path.rsplit("/", 2)[1:]
        return 200, self._manifest if kind == "manifests" else self._blobs[name]


class _Handler(BaseHTTPRequestHandler):
    registry: Registry

    def do_GET(self) -> None:
        authorization = self.headers.get("Authorization", "")
        if self.path.startswith("/token"):
            self._answer(*self.registry.token(authorization))
        else:
            self._answer(*self.registry.part(self.path, authorization))

    do_HEAD = do_GET  # noqa: N815  its name in http.server

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        kind = form["grant_type"][0]
        self._answer(*self.registry.token(f"{kind} {form.get(kind, [''])[0]}"))

    def _answer(self, code: int, body: bytes) -> None:
        self.send_response(code)
        if code == 401:
            realm = f'Bearer realm="http://{self.registry.address}/token",service="registry"'
            self.send_header("WWW-Authenticate", realm)
        self.send_header("Content-Type", _TYPE if "/manifests/" in self.path else "application/json")
        self.send_header("Docker-Content-Digest", _digest(body))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def _part(kind: str, blob: bytes) -> dict[str, object]:
    return {"mediaType": kind, "size": len(blob), "digest": _digest(blob)}


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"
