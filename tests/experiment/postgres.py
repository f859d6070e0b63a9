"""A PostgreSQL server of this test alone, from the system's package, on a socket in a folder."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path


def programs() -> Path | None:
    """Return the folder of `initdb` and `postgres`; None if the server is not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    by_path = shutil.which("postgres")
    return found[-1].parent if found else Path(by_path).resolve().parent if by_path else None


def why_not() -> str:
    """Return why no server can be started here; empty if one can."""
    if programs() is None:
        return "PostgreSQL's server is not installed (apt install postgresql)"
    if os.geteuid() == 0 and _user() is None:
        return "PostgreSQL does not run as root, and there is no user 'postgres'"
    return ""


def _user() -> str | None:
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        return None


class Postgres:
    """A server, which can be stopped as by a crash and started again."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="lightlib-pg-"))
        self._as = {"user": _user()} if os.geteuid() == 0 else {}
        if self._as:
            shutil.chown(self.folder, _user())
        self._run("initdb", "-D", self.folder / "data", "-A", "trust", "-U", "tester", "--no-sync", "-E", "UTF8")
        self._server = None
        self.start()

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://tester@/postgres?host={self.folder}"

    def database(self, name) -> str:
        """Create another database, and return its URL."""
        self._run("createdb", "-h", self.folder, "-U", "tester", name)
        return self.url.replace("/postgres?", f"/{name}?")

    def _run(self, name, *arguments):
        subprocess.run(
            [programs() / name, *map(str, arguments)], check=True, capture_output=True, cwd=self.folder, **self._as
        )

    def start(self):
        options = ["-k", self.folder, "-c", "listen_addresses=", "-c", "max_connections=200"]
        command = [programs() / "postgres", "-D", self.folder / "data", *options]
        with (self.folder / "log").open("ab") as log:
            self._server = subprocess.Popen(list(map(str, command)), stderr=log, stdout=log, cwd="/", **self._as)
        end = time.monotonic() + 120
        ready = [str(programs() / "pg_isready"), "-h", str(self.folder), "-U", "tester", "-q"]
        while subprocess.run(ready, check=False).returncode:
            assert self._server.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < end, (self.folder / "log").read_text()
            time.sleep(0.1)

    def crash(self):
        """Stop it at once, as `pg_ctl stop -m immediate` does: it recovers from its log when it is started again."""
        self._server.send_signal(signal.SIGQUIT)
        self._server.wait(60)

    def close(self):
        if self._server.poll() is None:
            self.crash()
        shutil.rmtree(self.folder)
