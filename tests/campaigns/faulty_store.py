"""An S3 server on this machine, behind a proxy that throttles, delays, drops and loses answers."""

from __future__ import annotations

import collections
import http.client
import logging
import random
import socket
import struct
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

BUCKET = "runs"
READ_TIMEOUT = 2.0  # seconds that the client waits for an answer
PART = 5 * 2**20  # the smallest part of an upload that S3 allows
ANSWERS = {
    "throttled 503": (503, "SlowDown", "Please reduce your request rate."),
    "throttled 429": (429, "TooManyRequests", "Please reduce your request rate."),
    "broken 500": (500, "InternalError", "We encountered an internal error. Please try again."),
    "forbidden": (403, "AccessDenied", "Access Denied"),
}
# Faults of a store or of the network that a client must survive.
KINDS = (
    "throttled 503",
    "throttled 429",
    "broken 500",
    "dropped",  # the connection ends before anything was done
    "cut upload",  # the connection ends after half of the upload
    "lost answer",  # the connection ends after the work is done, before the client learns of it
    "cut answer",  # the connection ends in the middle of the answer
    "delayed",  # the answer comes when the client has given up waiting
)


@dataclass
class Request:
    """One request of a client."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def kind(self) -> str:
        """S3's name for this kind of request, as far as it matters here."""
        query = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        if "partNumber" in query:
            return "UploadPart"
        if "uploads" in query:
            return "CreateMultipartUpload" if self.method == "POST" else "ListMultipartUploads"
        if "uploadId" in query:
            return {"POST": "CompleteMultipartUpload", "DELETE": "AbortMultipartUpload"}.get(self.method, "ListParts")
        if "delete" in query:
            return "DeleteObjects"
        key = urlsplit(self.path).path.strip("/").partition("/")[2]
        names = {"PUT": "PutObject", "GET": "GetObject", "HEAD": "HeadObject", "DELETE": "DeleteObject"}
        return names.get(self.method, self.method) if key else f"{self.method} bucket"


@dataclass
class Faults:
    """Chooses the fault for each request.

    Attributes:
        share: Share of requests that get a fault, drawn by a separate generator.
        kinds: Kinds of faults to draw from.
        seed: Seed of the generator.
        planned: Faults for the next requests of a kind, such as ("UploadPart", "dropped"); "" is any kind.
        always: Fault for all requests of a kind, by request kind; "" is any kind.
        limit: Maximum number of consecutive faults for the same kind of request, so that a client that retries often
            enough succeeds.
        met: Number of times each fault occurred, by (request kind, fault).
        asked: Number of requests of each kind.
    """

    share: float = 0.0
    kinds: tuple[str, ...] = KINDS
    seed: int = 0
    planned: list[tuple[str, str]] = field(default_factory=list)
    always: dict[str, str] = field(default_factory=dict)
    limit: int = 1000
    met: collections.Counter[tuple[str, str]] = field(default_factory=collections.Counter)
    asked: collections.Counter[str] = field(default_factory=collections.Counter)

    def __post_init__(self) -> None:
        self._draw = random.Random(self.seed)
        self._lock = threading.Lock()
        self._row: collections.Counter[str] = collections.Counter()

    def next(self, request: Request) -> str | None:
        """Return the fault that this request meets, or None."""
        with self._lock:
            self.asked[request.kind] += 1
            found = self._find(request)
            if found is not None:
                self.met[request.kind, found] += 1
            return found

    def _find(self, request: Request) -> str | None:
        for one in self.planned:
            if one[0] in (request.kind, ""):
                self.planned.remove(one)
                return one[1]
        for kind, fault in self.always.items():
            if kind in (request.kind, ""):
                return fault
        if self._draw.random() >= self.share or self._row[request.kind] >= self.limit:
            self._row[request.kind] = 0
            return None
        self._row[request.kind] += 1
        return self._draw.choice(self.kinds)


class _Handler(BaseHTTPRequestHandler):
    """Forward a request to the store, with the fault that was chosen for it."""

    protocol_version = "HTTP/1.1"
    faults: Faults
    behind: tuple[str, int]

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base's name
        """Print nothing."""

    def _handle(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        request = Request(self.command, self.path, dict(self.headers.items()), b"")
        fault = self.faults.next(request)
        if fault == "dropped":
            return self._drop()
        if fault == "cut upload":
            self.rfile.read(length // 2)
            return self._drop()
        request.body = (
            self._chunks() if "chunked" in self.headers.get("Transfer-Encoding", "") else self.rfile.read(length)
        )
        if fault in ANSWERS:
            return self._refuse(*ANSWERS[fault])
        status, headers, body = self._pass_on(request)
        if fault == "delayed":  # after it was done: S3 orders writes by when they came in
            time.sleep(READ_TIMEOUT * 1.5)
        if fault in ("lost answer", "delayed"):
            return self._drop()
        self._begin(status)
        for name, value in headers:
            if name.lower() not in ("connection", "transfer-encoding", "server", "date"):
                self.send_header(name, value)
        if not any(name.lower() == "content-length" for name, _ in headers):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if fault == "cut answer":
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            return self._drop()
        self.wfile.write(body)
        return None

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle  # noqa: N815  the base's names

    def _chunks(self) -> bytes:
        found = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return found

    def _pass_on(self, request: Request) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(*self.behind, timeout=60)
        try:
            kept = {k: v for k, v in request.headers.items() if k.lower() not in ("transfer-encoding", "expect")}
            connection.request(
                request.method, request.path, request.body, {**kept, "Content-Length": str(len(request.body))}
            )
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def _refuse(self, status: int, code: str, message: str) -> None:
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
        self._begin(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _begin(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Connection", "close")  # so that no thread of the proxy waits for a next request

    def _drop(self) -> None:
        """End the connection as a broken network does."""
        self.close_connection = True
        with suppress(OSError):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.shutdown(socket.SHUT_RDWR)


class _Proxy(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: broken connections are the purpose of this server."""


@dataclass
class Store:
    """An S3 server, with its address behind the faults and its direct address."""

    faults: Faults
    address: str
    direct: str

    @contextmanager
    def client(self) -> Iterator[Any]:
        """A client without faults."""
        import boto3

        client = boto3.client(
            "s3",
            endpoint_url=self.direct,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            region_name="us-east-1",
        )
        try:
            yield client
        finally:
            client.close()

    def names(self) -> list[str]:
        """Return the names of all objects."""
        with self.client() as client:
            pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
            return [one["Key"] for page in pages for one in page.get("Contents", [])]

    def open_uploads(self) -> list[str]:
        """Return the names of uploads that were begun but neither completed nor aborted."""
        with self.client() as client:
            return [one["Key"] for one in client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])]

    def abort_uploads(self) -> None:
        """Abort all incomplete uploads, as a store's lifecycle rule does."""
        with self.client() as client:
            for one in client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", []):
                client.abort_multipart_upload(Bucket=BUCKET, Key=one["Key"], UploadId=one["UploadId"])


@contextmanager
def store(faults: Faults | None = None) -> Iterator[Store]:
    """Run a server with one empty bucket, and make fsspec's "s3://" lead to it through the faults."""
    import boto3  # noqa: F401  before moto, which changes it
    import fsspec
    import s3fs
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it logs every request
    faults = faults or Faults()
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    handler = type("Handler", (_Handler,), {"faults": Faults(), "behind": (host, port)})
    proxy = _Proxy(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    found = Store(faults, f"http://127.0.0.1:{proxy.server_address[1]}", f"http://{host}:{port}")
    before = fsspec.config.conf.get("s3")
    fsspec.config.conf["s3"] = {
        "endpoint_url": found.address,
        "key": "test",
        "secret": "test",
        "client_kwargs": {"region_name": "us-east-1"},
        "config_kwargs": {
            "read_timeout": READ_TIMEOUT,
            "connect_timeout": READ_TIMEOUT,
            "retries": {"max_attempts": 0},
        },
        "default_block_size": PART,
    }
    s3fs.S3FileSystem.clear_instance_cache()
    tries, s3fs.S3FileSystem.retries = s3fs.S3FileSystem.retries, 2  # so that our own are needed
    try:
        # Moto's servers of one process share their objects: remove those of an earlier server.
        urllib.request.urlopen(urllib.request.Request(f"{found.direct}/moto-api/reset", method="POST")).close()
        with found.client() as client:
            client.create_bucket(Bucket=BUCKET)
        fsspec.core.url_to_fs(f"s3://{BUCKET}")[0].ls(BUCKET)  # starts the thread that fsspec keeps
        handler.faults = faults  # only now: the requests above are not retried
        yield found
    finally:
        _forget(s3fs.S3FileSystem)
        s3fs.S3FileSystem.retries = tries
        fsspec.config.conf.pop("s3") if before is None else fsspec.config.conf.update(s3=before)
        proxy.shutdown()
        thread.join()
        proxy.server_close()
        server.stop()


def _forget(kind: Any) -> None:
    for files in list(kind._cache.values()):
        if files._s3 is not None:
            kind.close_session(files.loop, files._s3)
    kind.clear_instance_cache()


def quickly(set_attribute: Callable[[Any, str, Any], None]) -> None:
    """Make the pauses between tries short: `set_attribute` is monkeypatch.setattr or setattr."""
    from lightlib.checkpoint.storage import retries

    set_attribute(retries, "FIRST_DELAY", 0.01)
