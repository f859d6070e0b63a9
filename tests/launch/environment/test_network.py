"""The interface that leads to the other machines, and when gloo needs its name."""

from __future__ import annotations

import os
import socket
import sys

import pytest

from lightlib.launch.environment import network
from lightlib.launch.environment.environment import Environment, HeldPort

NAMES = {"here": "127.0.1.1", "elsewhere": "10.0.0.7", "10.0.0.9": "10.0.0.9"}


@pytest.fixture
def machine(monkeypatch):
    """A machine of the given name, with the interface eth1 to 10.0.0.9 and eth0 to the world."""
    for variable in ("GLOO_SOCKET_IFNAME", "LIGHTLIB_GLOO_SOCKET_IFNAME"):
        monkeypatch.setenv(variable, "so that it is put back")
        monkeypatch.delenv(variable)
    asked = []

    def addressed(host):
        if host not in NAMES:
            raise socket.gaierror(host)
        return NAMES[host]

    def interface(address):
        asked.append(address)
        return {"10.0.0.9": "eth1", "192.0.2.1": "eth0", "127.0.0.1": "lo"}.get(address)

    def choose(name, address="10.0.0.9", nodes=2):
        monkeypatch.setattr(socket, "gethostname", lambda: name)
        monkeypatch.setattr(socket, "gethostbyname", addressed)
        monkeypatch.setattr(network, "interface_to", interface)
        network.choose_interface(Environment(world_size=nodes, num_nodes=nodes, address=address, launched=True))
        return os.environ.get("GLOO_SOCKET_IFNAME"), asked

    return choose


@pytest.mark.parametrize(
    ("name", "address", "nodes", "expected"),
    [
        ("here", "10.0.0.9", 2, "eth1"),
        ("here", "here", 2, "eth0"),  # on rank 0's machine, given by its name: the interface to the world
        ("nobody", "10.0.0.9", 2, "eth1"),  # a name without an address
        ("elsewhere", "10.0.0.9", 2, None),  # gloo finds it by itself
        ("elsewhere", "127.0.0.1", 1, "lo"),  # all ranks are on this machine, and only they connect
        ("here", "localhost", 1, "lo"),
        ("here", "10.0.0.9", 1, None),  # as far as lightlib knows, there is only this machine
        ("elsewhere", "127.0.0.1", 2, None),
    ],
)
def test_gloo_is_told_where_its_own_choice_leads_nowhere(machine, name, address, nodes, expected):
    assert machine(name, address, nodes)[0] == expected


def test_what_the_user_has_set_stays(machine, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    chosen, asked = machine("here")
    assert (chosen, asked) == ("ib0", [])


def test_a_choice_for_an_outer_run_does_not_hold_for_another(machine):
    assert machine("elsewhere", "127.0.0.1", 1)[0] == "lo"
    assert machine("elsewhere", "10.0.0.9", 2)[0] is None
    assert machine("here", "10.0.0.9", 2)[0] == "eth1"
    assert machine("here", "10.0.0.9", 1)[0] is None


@pytest.mark.processes
@pytest.mark.parametrize(("address", "listens"), [("127.0.0.1", "127.0.0.1"), ("localhost", "127.0.0.1")])
def test_rank_0_listens_where_it_is_to_be_met(address, listens):
    with network.listening_socket(Environment(address=address)) as made:
        host, port = made.getsockname()
        assert host == listens
        socket.create_connection((host, port)).close()
        assert network.listening_socket(Environment(address=address, port=port)) is None  # a program listens there
    network.listening_socket(Environment(address=address, port=port)).close()


@pytest.mark.processes
def test_the_port_may_be_held():
    held = HeldPort()
    with network.listening_socket(Environment(port=held.port)) as made:
        assert made.getsockname() == ("127.0.0.1", held.port)
    held.close()


@pytest.mark.processes
@pytest.mark.parametrize("address", ["192.0.2.1", "a-name", socket.gethostname()])
def test_torch_chooses_where_the_address_is_not_known_to_be_that_of_this_machine(address):
    assert network.listening_socket(Environment(address=address)) is None


def test_it_is_said(machine, monkeypatch):
    said = []
    monkeypatch.setattr(network.report, "info", said.append)
    machine("here")
    text = (
        "The name of this machine resolves to a loopback address: GLOO_SOCKET_IFNAME=eth1 is set, so that other "
        "machines can reach it."
    )
    assert said == [text]


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")
def test_the_interface_to_this_very_machine():
    assert network.interface_to("127.0.0.1") == "lo"


def test_an_address_that_is_none():
    assert network.interface_to("no such host") is None
