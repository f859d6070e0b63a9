"""Network: the interfaces on which the processes of a run listen and connect."""

from __future__ import annotations

import contextlib
import os
import socket
import struct

from lightlib import report
from lightlib.launch.environment.environment import Environment

_GLOO = "GLOO_SOCKET_IFNAME"
_CHOSEN = "LIGHTLIB_GLOO_SOCKET_IFNAME"  # our choice, to distinguish it from the user's
_ANYWHERE = "192.0.2.1"  # an address for documentation: selects the default route
_ADDRESS_OF = 0x8915  # SIOCGIFADDR of Linux
_LOCALHOST = "127.0.0.1"


def listening_socket(environment: Environment) -> socket.socket | None:
    """Return a socket that listens only at the address of rank 0; None if torch has to listen on all interfaces.

    None if the address is a host name, which other machines may resolve differently; if it is not an address of this
    machine, as behind a router; and if the port is in use, which torch reports.
    """
    address = _LOCALHOST if environment.address == "localhost" else environment.address
    try:
        infos = socket.getaddrinfo(address, environment.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except OSError:
        return None
    family, kind, protocol, _, socket_address = infos[0]
    listening = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":  # on Windows two sockets could then listen at one port
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(socket_address)
        listening.listen(socket.SOMAXCONN)
    except OSError:
        listening.close()
        return None
    return listening


def choose_interface(environment: Environment) -> None:
    """Set GLOO_SOCKET_IFNAME if gloo's own choice is reachable from too far or not at all.

    Gloo listens at the address to which the machine's name resolves. If rank 0 is at 127.0.0.1, all processes are on
    this machine, and other machines need not reach them. With several machines and a line such as
    ``127.0.1.1 myhost`` in /etc/hosts, which is common, other machines could not reach gloo.
    """
    if os.environ.get(_GLOO) != os.environ.get(_CHOSEN):
        return  # the user's choice
    for variable in (_GLOO, _CHOSEN):  # inherited from a run that has started this program
        os.environ.pop(variable, None)
    if environment.num_nodes == 1:
        name = interface_to(_LOCALHOST) if environment.address in (_LOCALHOST, "localhost", "::1") else None
        if name is not None:
            os.environ.update({_GLOO: name, _CHOSEN: name})
        return
    if not _is_loopback(socket.gethostname()):
        return
    targets = [_ANYWHERE] if _is_loopback(environment.address) else [environment.address, _ANYWHERE]
    interface = next((name for name in map(interface_to, targets) if name is not None), None)
    if interface is not None:
        os.environ.update({_GLOO: interface, _CHOSEN: interface})
        report.info(
            f"The name of this machine resolves to a loopback address: {_GLOO}={interface} is set, so that other "
            "machines can reach it."
        )


def interface_to(address: str) -> str | None:
    """Return the name of the network interface that routes to an address, or None if it is unknown."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))  # nothing is sent
        local = probe.getsockname()[0]
        return next((name for _, name in socket.if_nameindex() if _address_of(name) == local), None)
    return None


def _address_of(interface: str) -> str | None:
    try:
        import fcntl  # optional: not on Windows
    except ImportError:
        return None
    request = struct.pack("256s", interface.encode()[:15])
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _ADDRESS_OF, request)[20:24])
    return None


def _is_loopback(host: str) -> bool:
    try:
        return socket.gethostbyname(host).startswith("127.")
    except OSError:
        return True  # then gloo uses the loopback interface
