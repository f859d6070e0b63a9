"""The account of a registry of images: its login, or its token for one pull by docker."""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightlib.errors import LightlibError
from lightlib.experiment.file.environment import RegistryAuth
from lightlib.experiment.file.place import Place

_HUB = "docker.io"
_HUB_NAMES = (_HUB, "index.docker.io", "registry-1.docker.io")
_HUB_KEY = "https://index.docker.io/v1/"  # under which docker keeps the account of its own registry
_KINDS = ("identitytoken", "registrytoken")
_REPLACED = ("auths", "credsStore", "credHelpers")  # in a config.json: accounts, and the programs that keep them


@dataclass(frozen=True)
class Account:
    """The account by which a worker gets an image.

    Args:
        server: The registry, as `login` takes it.
        login: Its name and password. Default: none.
        tokens: For a pull without a login, by their names in docker's `config.json`. Default: none.
    """

    server: str
    login: tuple[str, str] | None = field(default=None, repr=False)
    tokens: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, given: RegistryAuth | None, image: str, engine: str, place: Place) -> Account | None:
        """Return the account of an experiment for an image; None without one.

        Args:
            given: The section `environment.registry_auth`.
            image: Its registry is the default of `serveraddress`.
            engine: ``"docker"`` or ``"podman"``, which has no place for a token.
            place: Of the section.

        Raises:
            ConfigError: `auth` is malformed; or there is only a token, and the engine is podman.
        """
        if given is None:
            return None
        server = given.serveraddress or _registry_of(image)
        login = None
        if given.username is not None and given.password is not None:
            login = given.username, given.password
        elif given.auth is not None:
            login = _decoded(given.auth, place.below("auth"))
        tokens = {kind: value for kind in _KINDS if (value := getattr(given, kind)) is not None}
        if tokens and login is None and engine == "podman":
            place.below(next(iter(tokens))).refuse(
                "is a token, and podman pulls the images of this machine.",
                "username and password, or auth, which podman takes too.",
                f"write username and password; or run `podman login {server}` on the machines of the workers, and "
                "delete environment.registry_auth.",
            )
        return cls(server, login, tokens if engine == "docker" else {})

    def secrets(self) -> Iterator[str]:
        """Yield the values that no message shows."""
        yield from self.tokens.values()
        if self.login is not None:
            yield self.login[1]

    @contextmanager
    def environment(self) -> Iterator[dict[str, str]]:
        """Yield the variables of a `docker pull` that uses the tokens: a private folder is docker's until the end.

        The folder has the user's contexts and certificates by links, and the user's `config.json` with these tokens in
        place of its accounts (https://docs.docker.com/reference/cli/docker/#docker-cli-configuration-file-configjson-properties).

        Raises:
            LightlibError: The user's `config.json` is damaged.
        """
        docker_folder = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
        settings = _settings(docker_folder / "config.json")
        host = re.sub("^[a-z]+://", "", self.server).partition("/")[0]
        key = _HUB_KEY if host in _HUB_NAMES else host
        kept = {name: value for name, value in settings.items() if name not in _REPLACED}
        folder = Path(tempfile.mkdtemp(prefix="lightlib-docker-"))
        try:
            for path in docker_folder.iterdir() if docker_folder.is_dir() else ():
                if path.name != "config.json":
                    (folder / path.name).symlink_to(path.resolve())
            descriptor = os.open(folder / "config.json", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            with open(descriptor, "w", encoding="utf-8") as file:
                json.dump({**kept, "auths": {key: dict(self.tokens)}}, file)
            unset = {name: value for name, value in os.environ.items() if name != "DOCKER_AUTH_CONFIG"}
            yield {**unset, "DOCKER_CONFIG": str(folder)}
        finally:
            shutil.rmtree(folder)


def _registry_of(image: str) -> str:
    """Return the registry in the name of an image: its first part, if that is an address.

    Source: https://docs.docker.com/reference/cli/docker/image/tag/#description
    """
    first, slash, _ = image.partition("/")
    return first if slash and ("." in first or ":" in first or first == "localhost") else _HUB


def _decoded(auth: str, place: Place) -> tuple[str, str]:
    """Return the name and the password of `auth`."""
    try:
        name, _, password = base64.b64decode(auth, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        name = password = ""
    if not name or not password:
        place.refuse(
            "is malformed.",
            "USER:PASSWORD in base64, as docker writes it.",
            "write the output of `printf %s USER:PASSWORD | base64 -w0`; or username and password in place of it.",
        )
    return name, password


def _settings(path: Path) -> dict[str, Any]:
    """Return the user's settings of docker; empty without a file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise LightlibError(
            f"{path} is no JSON object.",
            expected="docker's settings, to which a pull by environment.registry_auth adds its token.",
            fix=f"correct or delete {path}.",
        )
    return content
