"""Network: the interface over which this machine reaches the others, where gloo does not find it."""

from __future__ import annotations

import contextlib
import os
import socket
import struct

from lightlib import report
from lightlib.launch.place import Environment

__all__ = ["choose_interface", "interface_to"]

_GLOO = "GLOO_SOCKET_IFNAME"
_ANYWHERE = "192.0.2.1"  # nobody's: it asks for the route to the world
_ADDRESS_OF = 0x8915  # SIOCGIFADDR of Linux


def choose_interface(environment: Environment) -> None:
    """Set GLOO_SOCKET_IFNAME for a run on several machines, when this machine's name leads to itself only.

    Gloo waits for the others at the address that the machine's own name has. With a line such as
    ``127.0.1.1 myhost`` in /etc/hosts, as many systems have it, nobody reaches it there.
    """
    if environment.num_nodes == 1 or _GLOO in os.environ or not _leads_to_itself(socket.gethostname()):
        return
    targets = [_ANYWHERE] if _leads_to_itself(environment.address) else [environment.address, _ANYWHERE]
    found = next((name for name in map(interface_to, targets) if name is not None), None)
    if found is not None:
        os.environ[_GLOO] = found
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
