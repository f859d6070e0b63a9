"""Network: on which interfaces the processes of a run listen, and over which they reach the others."""

from __future__ import annotations

import contextlib
import os
import socket
import struct

from lightlib import report
from lightlib.launch.environment.environment import Environment

__all__ = ["choose_interface", "interface_to", "listening_socket"]

_GLOO = "GLOO_SOCKET_IFNAME"
_CHOSEN = "LIGHTLIB_GLOO_SOCKET_IFNAME"  # what this file has set, so that it is not taken for the user's choice
_ANYWHERE = "192.0.2.1"  # nobody's: it asks for the route to the world
_ADDRESS_OF = 0x8915  # SIOCGIFADDR of Linux
_LOCALHOST = "127.0.0.1"


def listening_socket(environment: Environment) -> socket.socket | None:
    """Return a socket that listens at the address of rank 0 alone; None where torch has to choose: on all interfaces.

    That is where the address is a name, which may lead elsewhere on other machines, or is none of this machine's, as
    behind a router; and where somebody listens already, which torch reports.
    """
    address = _LOCALHOST if environment.address == "localhost" else environment.address
    try:
        found = socket.getaddrinfo(address, environment.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except OSError:
        return None
    family, kind, protocol, _, place = found[0]
    made = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":  # elsewhere it would let two listen at one port
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(place)
        made.listen(socket.SOMAXCONN)
    except OSError:
        made.close()
        return None
    return made


def choose_interface(environment: Environment) -> None:
    """Set GLOO_SOCKET_IFNAME where gloo's own choice is too wide, or leads nowhere.

    Gloo listens at the address that the machine's own name has. If rank 0 is to be met at 127.0.0.1, all processes are
    on this machine, and nobody else needs to reach them. On several machines, with a line such as ``127.0.1.1 myhost``
    in /etc/hosts, as many systems have it, nobody would.
    """
    if os.environ.get(_GLOO) != os.environ.get(_CHOSEN):
        return  # the user's choice
    for variable in (_GLOO, _CHOSEN):  # of a run that has started this program
        os.environ.pop(variable, None)
    if environment.num_nodes == 1:
        name = interface_to(_LOCALHOST) if environment.address in (_LOCALHOST, "localhost", "::1") else None
        if name is not None:
            os.environ |= {_GLOO: name, _CHOSEN: name}
        return
    if not _leads_to_itself(socket.gethostname()):
        return
    targets = [_ANYWHERE] if _leads_to_itself(environment.address) else [environment.address, _ANYWHERE]
    found = next((name for name in map(interface_to, targets) if name is not None), None)
    if found is not None:
        os.environ |= {_GLOO: found, _CHOSEN: found}
        report.info(f"The name of this machine leads to itself only: {_GLOO}={found} is set to reach the others.")


def interface_to(address: str) -> str | None:
    """Return the name of the network interface that leads to an address, or None where that cannot be told."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))  # nothing is sent
        own = probe.getsockname()[0]
        return next((name for _, name in socket.if_nameindex() if _address_of(name) == own), None)
    return None


def _address_of(interface: str) -> str | None:
    try:
        import fcntl  # optional: not on Windows
    except ImportError:
        return None
    request = struct.pack("256s", interface.encode()[:15])
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        return socket.inet_ntoa(fcntl.ioctl(asked.fileno(), _ADDRESS_OF, request)[20:24])
    return None


def _leads_to_itself(host: str) -> bool:
    try:
        return socket.gethostbyname(host).startswith("127.")
    except OSError:
        return True  # gloo takes the loopback then
