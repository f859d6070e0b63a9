"""The section `environment`: image, variables and permissions of the processes of a trial."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from typing_extensions import Self

from lightlib.experiment.file import checks
from lightlib.experiment.file.part import Part, key
from lightlib.experiment.file.place import Place

DEVICES = ("cpu", "cuda", "rocm")
_RENAMED = {"gpu": "cuda"}  # its name before Determined 0.17.6
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_TOKENS = ("auth", "identitytoken", "registrytoken")


class RegistryAuth(Part):
    """The account of a registry of images. The password, and the tokens that may replace it, are masked.

    Attributes:
        username: Required, as are `password` and `serveraddress`, unless a token is given.
        password: Passed to ``login`` on its standard input.
        serveraddress: The registry. Default with a token: that of the image.
        email: Default: none.
        auth: ``USER:PASSWORD`` in base64, in place of name and password.
        identitytoken: A token in place of them, which docker uses for the pull.
        registrytoken: Another kind of token, as `identitytoken`.
    """

    section: ClassVar[str] = "environment.registry_auth"

    username: str | None = key(checks.text("me"), default=None)
    password: str | None = key(checks.text("…"), default=None)
    serveraddress: str | None = key(checks.text("registry.example.org"), default=None)
    email: str | None = key(checks.text("me@example.org"), default=None)
    auth: str | None = key(checks.text("…"), default=None)
    identitytoken: str | None = key(checks.text("…"), default=None)
    registrytoken: str | None = key(checks.text("…"), default=None)

    def checked(self, place: Place) -> Self:
        needed = ("username", "password", "serveraddress")
        missing = next((name for name in needed if getattr(self, name) is None), None)
        if missing and not any(getattr(self, name) for name in _TOKENS):
            self.missing(missing, place)
        return self


class ProxyPort(Part):
    """A port of rank 0 that is reachable from outside of the container.

    Attributes:
        proxy_port: 1 to 65535.
        proxy_tcp: Whether it is plain TCP rather than HTTP. Default False.
        unauthenticated: Whether it needs no login. Default False.
        default_service_id: Whether it has the id of the trial. Default False.
    """

    section: ClassVar[str] = "environment.proxy_ports"

    proxy_port: int = key(checks.integer(1, 65535))
    proxy_tcp: bool = key(checks.flag, default=False)
    unauthenticated: bool = key(checks.flag, default=False)
    default_service_id: bool = key(checks.flag, default=False)

    @classmethod
    def expanded(cls, value: Any, place: Place) -> Any:  # noqa: ARG003  one signature for all
        """Return the mapping for a bare port."""
        return {"proxy_port": value} if type(value) is int else value


def _by_device(value: Any, place: Place) -> dict[str, Any]:
    """Return a mapping of device types with their present names."""
    mapping = checks.mapping(value, place)
    for name, entry in mapping.items():
        if name not in DEVICES and name not in _RENAMED:
            place.below(name).unknown(entry, DEVICES, of=place.key)
    for old, new in _RENAMED.items():
        if mapping.get(old) is not None and mapping.get(new) is not None:
            place.below(old).refuse(f"stands next to {new}, its present name.", "one of the two.", f"delete {old}.")
    return {_RENAMED.get(name, name): (name, entry) for name, entry in mapping.items() if entry is not None}


def _image(value: Any, place: Place) -> dict[str, str]:
    if isinstance(value, str):
        name: str = checks.text("pytorch/pytorch")(value, place)
        return dict.fromkeys(DEVICES, name)
    by_device = _by_device(value, place)
    return {
        device: checks.text("pytorch/pytorch")(entry, place.below(old)) for device, (old, entry) in by_device.items()
    }


def _variables(value: Any, place: Place) -> dict[str, tuple[str, ...]]:
    if isinstance(value, (list, tuple)):
        return dict.fromkeys(DEVICES, _pairs(value, place))
    by_device = _by_device(value, place)
    return {name: _pairs(entry, place.below(old)) for name, (old, entry) in by_device.items()}


def _pairs(value: Any, place: Place) -> tuple[str, ...]:
    pairs: tuple[str, ...] = checks.several(_pair, "NAME=VALUE")(value, place)
    return pairs


def _pair(value: Any, place: Place) -> str:
    if not isinstance(value, str) or not _VARIABLE.fullmatch(value):
        if isinstance(value, dict) and len(value) == 1:
            value = " = ".join(map(str, *value.items()))
        place.wrong(value, "NAME=VALUE, without a space before the `=`.", place.line("OMP_NUM_THREADS=1"))
    return value


class Environment(Part):
    """Image, variables and permissions of the processes of a trial.

    Attributes:
        image: The image of a container by device type: ``cpu``, ``cuda`` or ``rocm``. A text is the image of all.
        environment_variables: ``NAME=VALUE`` by device type; a list is for all.
        force_pull_image: Whether the image is pulled even if it is there. Default False.
        registry_auth: The account of the registry of images. Default: none.
        add_capabilities: Linux capabilities that containers get.
        drop_capabilities: Linux capabilities that containers lose.
        proxy_ports: Ports of rank 0 that are reachable from outside of its container.
        pod_spec: Merged into the manifest of Kubernetes. Default: nothing.
        preload: Whether a trial is forked from a process that has imported torch and lightlib. False: it starts as a
            new interpreter. Default True.
    """

    section: ClassVar[str] = "environment"
    ignored: ClassVar[dict[str, str]] = {"ports": "Determined removed it; write proxy_ports."}

    image: Mapping[str, str] = key(_image, default={})
    environment_variables: Mapping[str, tuple[str, ...]] = key(_variables, default={})
    force_pull_image: bool = key(checks.flag, default=False)
    registry_auth: RegistryAuth | None = key(RegistryAuth.read, default=None)
    add_capabilities: tuple[str, ...] = key(checks.several(checks.text("IPC_LOCK"), "IPC_LOCK"), default=())
    drop_capabilities: tuple[str, ...] = key(checks.several(checks.text("MKNOD"), "MKNOD"), default=())
    proxy_ports: tuple[ProxyPort, ...] = key(checks.several(ProxyPort.read, 8080), default=())
    pod_spec: Mapping[str, Any] = key(checks.mapping, default={})
    preload: bool = key(checks.flag, default=True)

    def variables(self, device: str) -> dict[str, str]:
        """Return the variables of a device type, ``"cpu"``, ``"cuda"`` or ``"rocm"``, by name.

        Example:
            >>> Environment(environment_variables={"cpu": ("OMP_NUM_THREADS=1",)}).variables("cpu")
            {'OMP_NUM_THREADS': '1'}
        """
        pairs = (pair.partition("=") for pair in self.environment_variables.get(device, ()))
        return {name: value for name, _, value in pairs}
