"""The rank and the number of processes: from every launcher's variables, or from the request."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import sys
from contextlib import closing
from importlib.metadata import EntryPoint

import pytest
from torch.distributed import TCPStore

from lightlib import registry
from lightlib.errors import ArgumentTypeError, LightlibError, MisconfigurationException, UnknownNameError
from lightlib.launch.environment import environment as place
from lightlib.launch.environment.detect import detect, started
from lightlib.launch.environment.environment import Environment, HeldPort, free_port
from lightlib.report import PossibleUserWarning
from tests.processes.programs import interpreter

BY_HAND = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "there", "MASTER_PORT": "1234"}
TORCHRUN = {
    **BY_HAND,
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
}
BATCH = {
    "SLURM_JOB_ID": "712345",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_NNODES": "2",
    "SLURM_JOB_NODELIST": "node[03-05,7],login",
}
SRUN = {**BATCH, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
PMI = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
PALS = {"PALS_RANKID": "3", "PMI_RANK": "3", "PMI_SIZE": "4", "PALS_LOCAL_RANKID": "1", "PALS_LOCAL_SIZE": "2"}
PALS |= {"PALS_NODEID": "1", "MASTER_ADDR": "there"}
MVAPICH = {
    "MV2_COMM_WORLD_RANK": "0",
    "MV2_COMM_WORLD_SIZE": "2",
    "MV2_COMM_WORLD_LOCAL_RANK": "0",
    "MV2_COMM_WORLD_LOCAL_SIZE": "2",
}
JSRUN = {
    "JSM_NAMESPACE_RANK": "2",
    "JSM_NAMESPACE_SIZE": "4",
    "JSM_NAMESPACE_LOCAL_RANK": "0",
    "JSM_NAMESPACE_LOCAL_SIZE": "2",
    "LSB_JOBID": "77",
    "LSB_MCPU_HOSTS": "batch 1 a01 42 a02 42",
}
RAY = {"RAY_JOB_ID": "01000000", "RANK": "2", "WORLD_SIZE": "3", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
RAY |= {"NODE_RANK": "1", "MASTER_ADDR": "there", "MASTER_PORT": "1234"}
BY_TCP = {name: value for name, value in RAY.items() if "MASTER" not in name}
KUBEFLOW = {**BY_HAND, "KUBERNETES_SERVICE_HOST": "10.0.0.1"}


def places(environment):
    """The place as one tuple."""
    e = environment
    return (e.rank, e.world_size, e.local_rank, e.local_size, e.node_rank, e.num_nodes, e.address, e.port)


@pytest.mark.parametrize(
    ("name", "variables", "expected"),
    [
        ("torchrun", TORCHRUN, (5, 8, 1, 4, 1, 2, "there", 1234)),
        ("variables", BY_HAND, (1, 2, 1, 2, 0, 1, "there", 1234)),
        ("variables", {**BY_HAND, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}, (1, 2, 0, 1, 1, 2, "there", 1234)),
        ("variables", {"RANK": "0", "WORLD_SIZE": "1"}, (0, 1, 0, 1, 0, 1, "127.0.0.1", 0)),
        ("variables", {**BY_HAND, "WORLD_SIZE": "1", "RANK": "0"}, (0, 1, 0, 1, 0, 1, "there", 1234)),
        ("variables", {**KUBEFLOW, "LOCAL_RANK": "1"}, (1, 2, 1, 2, 0, 1, "there", 1234)),
        ("kubeflow", KUBEFLOW, (1, 2, 0, 1, 1, 2, "there", 1234)),
        ("ray", {**RAY, "KUBERNETES_SERVICE_HOST": "10.0.0.1"}, (2, 3, 0, 1, 1, 3, "there", 1234)),
        ("ray", BY_TCP, (2, 3, 0, 1, 1, 3, "127.0.0.1", 0)),
        ("local", {"RAY_JOB_ID": "01000000"}, (0, 1, 0, 1, 0, 1, "127.0.0.1", 0)),  # a task or the driver
        ("slurm", SRUN, (2, 4, 0, 2, 1, 2, "node03", 22345)),
        ("slurm", {**SRUN, "SLURM_STEP_ID": "3"}, (2, 4, 0, 2, 1, 2, "node03", 25345)),
        ("slurm", {**SRUN, "MASTER_ADDR": "x", "MASTER_PORT": "9"}, (2, 4, 0, 2, 1, 2, "x", 9)),
        ("slurm", {**SRUN, "WORLD_SIZE": "4"}, (2, 4, 0, 2, 1, 2, "node03", 22345)),
        ("slurm", {**SRUN, "SLURM_STEP_TASKS_PER_NODE": "1,3"}, (2, 4, 0, 3, 1, 2, "node03", 22345)),
        ("slurm", {**SRUN, "SLURM_JOB_NODELIST": "a1,a2"}, (2, 4, 0, 2, 1, 2, "a1", 22345)),
        ("slurm", {**SRUN, "SLURM_JOB_NODELIST": "r[1-2]n[7,9]"}, (2, 4, 0, 2, 1, 2, "r1n7", 22345)),
        ("slurm", {**BATCH, "SLURM_STEP_ID": "0", "SLURM_NTASKS_PER_NODE": "2"}, (2, 4, 0, 2, 1, 2, "node03", 22345)),
        ("mpi", OPEN_MPI, (1, 2, 1, 2, 0, 1, "127.0.0.1", 29500)),
        ("mpi", {**OPEN_MPI, "PMIX_NAMESPACE": "prterun-a@1"}, (1, 2, 1, 2, 0, 1, "127.0.0.1", 29739)),
        ("mpi", {**SRUN, **OPEN_MPI}, (1, 2, 1, 2, 0, 1, "127.0.0.1", 29500)),
        ("mpi", {**SRUN, **PMI}, (1, 2, 1, 2, 0, 1, "127.0.0.1", 29500)),
        ("slurm", {**SRUN, "PMI_RANK": "2", "PMI_SIZE": "4"}, (2, 4, 0, 2, 1, 2, "node03", 22345)),
        ("mpi", PMI, (1, 2, 1, 2, 0, 1, "127.0.0.1", 29500)),
        ("mpi", PALS, (3, 4, 1, 2, 1, 2, "there", 29500)),
        ("mpi", MVAPICH, (0, 2, 0, 2, 0, 1, "127.0.0.1", 29500)),
        ("lsf", JSRUN, (2, 4, 0, 2, 1, 2, "a01", 20077)),
        ("local", {}, (0, 1, 0, 1, 0, 1, "127.0.0.1", 0)),
    ],
)
def test_reads_what_a_launcher_has_left(name, variables, expected):
    environment = detect(None, variables=variables)
    assert (environment.name, environment.launched) == (name, name != "local")
    assert places(environment) == expected


@pytest.mark.parametrize(
    "variables",
    [
        {**BATCH, "SLURM_JOB_NAME": "bash"},
        {**SRUN, "SLURM_STEP_NUM_TASKS": "1"},
        {**BATCH, "SLURM_JOB_NAME": "interactive", "SLURM_STEP_ID": "0"},
        {**BATCH, "SLURM_STEP_ID": "0", "SLURM_PTY_PORT": "4000"},
        {"PMI_RANK": "0", "PMI_SIZE": "1"},
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
        {"MASTER_ADDR": "there", "MASTER_PORT": "1"},
        {"SLURM_JOB_ID": "1"},
    ],
)
def test_a_shell_or_a_single_task_is_no_launch(variables):
    assert detect(2, variables=variables) == Environment(world_size=2, local_size=2)


def test_slurm_without_srun_is_told():
    with pytest.warns(PossibleUserWarning, match=r"granted 4 tasks \(SLURM_NTASKS=4\).*without srun.*`srun python"):
        assert not detect(1, variables={**BATCH, "SLURM_JOB_NAME": "train"}).launched


def test_a_shell_within_slurm_may_use_srun():
    assert detect(None, variables={**SRUN, "SLURM_JOB_NAME": "bash"}).name == "slurm"


def test_lsf_reads_the_hosts_of_the_job_and_leaves_out_the_one_of_the_batch_script(tmp_path):
    ranks = tmp_path / "ranks"
    ranks.write_text("batch\nb01\nb01\nb02\nb02\n")
    assert detect(None, variables={**JSRUN, "LSB_DJOB_RANKFILE": str(ranks)}).address == "b01"


@pytest.mark.parametrize(
    ("variables", "devices", "num_nodes", "text"),
    [
        (
            TORCHRUN,
            2,
            1,
            r"devices=2, but torchrun has started 4 .*\(LOCAL_WORLD_SIZE=4, WORLD_SIZE=8\)(.|\n)*nproc-per-node=2\.",
        ),
        (TORCHRUN, 4, 3, None),
        (
            {**TORCHRUN, "GROUP_WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"},
            2,
            3,
            r"num_nodes=3, but torchrun has started processes on 4 \(8 processes\)(.|\n)*torchrun --nnodes=3",
        ),
        (SRUN, 4, 2, r"devices=4, but SLURM has started 2 (.|\n)*TASKS_PER_NODE=2\(x2\)(.|\n)*--ntasks-per-node=4"),
        (SRUN, 2, 4, r"num_nodes=4, but SLURM has started processes on 2 \(4 processes\)(.|\n)*--nodes=4"),
        (OPEN_MPI, 4, 1, r"devices=4, but mpirun \(Open MPI\) has started 2 (.|\n)*mpirun -npernode 4"),
        (KUBEFLOW, 2, 1, r"devices=2, but Kubeflow has started 1 process on this machine"),
        (RAY, 2, 1, r"devices=2, but Ray Train has started 1 process (.|\n)*or ScalingConfig\(num_workers=2\)"),
        ({"RANK": "0", "WORLD_SIZE": "1"}, 2, 1, r"WORLD_SIZE=1 was found.*devices=2(.|\n)*unset RANK and WORLD_SIZE"),
        (
            {**BY_HAND, "WORLD_SIZE": "3"},
            2,
            1,
            r"WORLD_SIZE=3 was found.*devices=2 and num_nodes=1(.|\n)*= devices x num_nodes, or LOCAL_WORLD_SIZE",
        ),
        ({**BY_HAND, "WORLD_SIZE": "3"}, None, 2, r"WORLD_SIZE=3 was found.*the Trainer has num_nodes=2"),
        (
            {"WORLD_SIZE": "2"},
            None,
            1,
            r"WORLD_SIZE=2 is set in the environment, but RANK is not(.|\n)*unset WORLD_SIZE",
        ),
        ({"RANK": "1"}, None, 1, r"RANK=1 is set in the environment, but WORLD_SIZE is not"),
        ({**BY_HAND, "RANK": "2"}, None, 1, r"RANK=2 and WORLD_SIZE=2(.|\n)*RANK from 0 to WORLD_SIZE - 1"),
        ({**BY_HAND, "RANK": "-1"}, None, 1, r"RANK=-1 and WORLD_SIZE=2"),
        ({**BY_HAND, "RANK": "one"}, None, 1, r"RANK='one' was found(.|\n)*a whole number"),
        ({**BY_HAND, "MASTER_PORT": "http"}, None, 1, r"MASTER_PORT='http' was found"),
        (
            {key: value for key, value in BY_HAND.items() if key != "MASTER_ADDR"},
            None,
            1,
            r"MASTER_ADDR is not set.*started by the variables RANK(.|\n)*export MASTER_ADDR=<host of rank 0>",
        ),
        ({**BY_HAND, "MASTER_PORT": ""}, None, 1, r"MASTER_PORT is not set(.|\n)*export MASTER_PORT=29500"),
        ({**BY_HAND, "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "2"}, None, 1, r"LOCAL_RANK=3 was found(.|\n)*are 2 proc"),
        ({**BY_HAND, "LOCAL_WORLD_SIZE": "4"}, None, 1, r"LOCAL_WORLD_SIZE=4 and WORLD_SIZE=2 were found"),
        (
            {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0"},
            None,
            1,
            r"MASTER_ADDR is not set in the environment, but the processes are started by mpirun",
        ),
    ],
)
def test_what_disagrees_is_refused_with_the_variable_and_its_value(variables, devices, num_nodes, text):
    if text is None:  # elastic: a run with fewer machines than requested is valid
        with pytest.warns(PossibleUserWarning, match="num_nodes=3, but torchrun has started processes on 2"):
            assert detect(devices, num_nodes, variables=variables).num_nodes == 2
        return
    with pytest.raises(MisconfigurationException, match=text):
        detect(devices, num_nodes, variables=variables)


def test_several_machines_without_a_launcher_are_told_apart_by_hand():
    variables = {"NODE_RANK": "1", "MASTER_ADDR": "there", "MASTER_PORT": "1234"}
    environment = detect(2, 3, variables=variables)
    assert (environment.name, environment.launched) == ("local", False)
    assert places(environment) == (2, 6, 0, 2, 1, 3, "there", 1234)
    with pytest.raises(MisconfigurationException, match="NODE_RANK=3, but the Trainer has num_nodes=3"):
        detect(2, 3, variables={**variables, "NODE_RANK": "3"})
    with pytest.raises(MisconfigurationException, match=r"MASTER_ADDR is not set.*once on each machine"):
        detect(2, 3, variables={"NODE_RANK": "1"})


RENDEZVOUS = {"MASTER_ADDR": "there", "MASTER_PORT": "1234"}


@pytest.mark.parametrize("more", [{}, {"WORLD_SIZE": "4"}])
class TestOneProgramPerMachine:
    """As on Lightning's page for a cluster without a scheduler: NODE_RANK, and no RANK."""

    @pytest.mark.parametrize("node", [0, 1])
    def test_lightlib_starts_the_processes_of_the_machine(self, node, more):
        environment = detect(2, 2, variables={**RENDEZVOUS, **more, "NODE_RANK": str(node)})
        assert (environment.name, environment.launched) == ("local", False)
        assert places(environment) == (2 * node, 4, 0, 2, node, 2, "there", 1234)
        assert started({**RENDEZVOUS, **more, "NODE_RANK": str(node)})

    @pytest.mark.parametrize(("devices", "automatic"), [(2, 1), (None, 2)])
    def test_the_user_starts_each_process(self, devices, automatic, more):
        variables = {**RENDEZVOUS, **more, "NODE_RANK": "1", "LOCAL_RANK": "1"}
        environment = detect(devices, 2, variables=variables, automatic=automatic)
        assert environment.launched
        assert not environment.is_local
        assert places(environment) == (3, 4, 1, 2, 1, 2, "there", 1234)
        assert environment.describe() == "4 processes on 2 nodes by NODE_RANK and LOCAL_RANK, rank 0 at there:1234"

    def test_no_such_local_rank(self, more):
        with pytest.raises(MisconfigurationException, match=r"LOCAL_RANK=2 is set .* devices=2\."):
            detect(2, 2, variables={**RENDEZVOUS, **more, "NODE_RANK": "1", "LOCAL_RANK": "2"})


def test_each_process_of_one_machine_started_by_the_user():
    assert places(detect(2, variables={**RENDEZVOUS, "LOCAL_RANK": "1"})) == (1, 2, 1, 2, 0, 1, "there", 1234)
    assert detect(1, variables={**RENDEZVOUS, "LOCAL_RANK": "1"}) == Environment()  # nothing to join


@pytest.mark.parametrize(
    ("size", "devices", "num_nodes", "fix"),
    [("4", 2, 1, r"Trainer\(num_nodes=2\), or unset"), ("5", 2, 2, "correct WORLD_SIZE"), ("2", 2, 2, "correct")],
)
def test_a_world_size_that_is_not_devices_x_num_nodes(size, devices, num_nodes, fix):
    with pytest.raises(MisconfigurationException, match=rf"WORLD_SIZE={size} is set(.|\n)*{fix}"):
        detect(devices, num_nodes, variables={**RENDEZVOUS, "WORLD_SIZE": size, "NODE_RANK": "0"})


OWN = {**BY_HAND, "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "0"}


class TestOurOwn:
    @pytest.mark.parametrize(
        "mark", [{"LIGHTLIB_LAUNCHED": "1", "LIGHTLIB_PARENT": "parent"}, {"LIGHTLIB_LAUNCHED": "self"}]
    )
    def test_children_know_their_place(self, mark):
        mark = {k: v.replace("parent", str(os.getppid())).replace("self", str(os.getpid())) for k, v in mark.items()}
        environment = detect(2, variables={**OWN, **TORCHRUN, **OWN, **mark})
        assert (environment.name, environment.launched, environment.is_local) == ("local", True, True)
        assert places(environment) == (1, 2, 1, 2, 0, 1, "there", 1234)

    def test_a_program_that_a_child_starts_is_not_a_child(self):
        variables = {**OWN, "LIGHTLIB_LAUNCHED": "1", "LIGHTLIB_PARENT": "1"}
        assert detect(1, variables=variables) == Environment()

    @pytest.mark.parametrize("devices", [None, 1, 3])
    def test_another_number_of_processes_is_refused(self, devices):
        variables = {**OWN, "LIGHTLIB_LAUNCHED": str(os.getpid())}
        text = rf"devices={devices or 1}, but lightlib has started 2 processes(.|\n)*same `devices` for every Trainer"
        with pytest.raises(MisconfigurationException, match=text):
            detect(devices, variables=variables)
        assert detect(None, variables=variables, automatic=2).rank == 1

    def test_what_was_given_does_not_hide_them(self):
        variables = {**OWN, "LIGHTLIB_LAUNCHED": str(os.getpid())}
        for given in ("local", Environment(world_size=2, local_size=2), "torchrun"):
            assert detect(2, given=given, variables=variables).rank == 1
        outer = Environment("mine", world_size=2, local_size=2, launched=True)
        assert detect(2, given=outer, variables=variables) is outer


class TestGiven:
    def test_a_name_is_looked_for_alone(self):
        assert detect(None, given="slurm", variables={**TORCHRUN, **SRUN}).name == "slurm"
        assert detect(2, given="local", variables=TORCHRUN) == Environment(world_size=2, local_size=2)
        assert detect(None, given="kubeflow", variables=BY_HAND).local_size == 1
        assert detect(None, given="variables", variables=KUBEFLOW).local_size == 2

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("slurm", r"'slurm' was requested, but SLURM has not started(.|\n)*SLURM_PROCID and SLURM_NTASKS"),
            ("torchrun", r"'torchrun' was requested(.|\n)*RANK and WORLD_SIZE(.|\n)*start the program with torchrun"),
            ("mpi", r"OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE or PALS_RANKID"),
        ],
    )
    def test_a_name_that_is_not_there_is_refused(self, name, text):
        with pytest.raises(MisconfigurationException, match=text):
            detect(None, given=name, variables={})

    def test_an_unknown_name_is_refused(self):
        with pytest.raises(UnknownNameError, match=r"Unknown environment 'slrum'. Did you mean 'slurm'"):
            detect(None, given="slrum", variables={})

    def test_an_instance_is_taken(self):
        given = Environment("mine", rank=1, world_size=4, local_rank=1, local_size=2, num_nodes=2, launched=True)
        assert detect(2, 2, given, TORCHRUN) is given
        with pytest.raises(MisconfigurationException, match="devices=4, but the environment 'mine' has started 2"):
            detect(4, given=given, variables={})

    def test_a_third_partys_name(self, monkeypatch):
        point = EntryPoint("theirs", "tests.launch.test_environment:theirs", "lightlib.environments")
        monkeypatch.setattr(registry, "entry_points", lambda group: [point])
        assert detect(2, given="theirs", variables={}).describe() == "2 processes by theirs, rank 0 at 127.0.0.1:7"

    def test_lightnings_interface(self):
        class Cluster:
            creates_processes_externally = True
            main_address, main_port = "there", 55

            world_size, global_rank = (lambda self: 4), (lambda self: 3)
            local_rank, node_rank = (lambda self: 1), (lambda self: 1)

        environment = detect(2, 2, Cluster(), {})
        assert (environment.name, environment.launched) == ("Cluster", True)
        assert places(environment) == (3, 4, 1, 2, 1, 2, "there", 55)

    @pytest.mark.parametrize("given", [5, Environment, object()])
    def test_something_else_is_refused(self, given):
        with pytest.raises(
            ArgumentTypeError, match=r"The environment is .*(.|\n)*a name, a lightlib.launch.Environment"
        ):
            detect(None, given=given, variables={})


def theirs():
    return Environment("theirs", world_size=2, local_size=2, port=7, launched=True)


class TestEnvironment:
    @pytest.mark.parametrize(
        ("arguments", "error", "text"),
        [
            ({"rank": 2, "world_size": 2}, MisconfigurationException, r"Environment\(rank=2, world_size=2\)"),
            ({"rank": -1}, MisconfigurationException, "rank from 0 to world_size - 1"),
            ({"local_rank": 1}, MisconfigurationException, "local_rank=1, local_size=1"),
            ({"world_size": "2"}, ArgumentTypeError, r"world_size='2' \(str\)"),
            ({"rank": True}, ArgumentTypeError, "an int"),
            ({"local_size": 2}, MisconfigurationException, "as many processes on this machine as in all"),
        ],
    )
    def test_numbers_that_contradict_each_other(self, arguments, error, text):
        with pytest.raises(error, match=text):
            Environment(**arguments)

    def test_goes_out_as_variables_and_comes_back(self):
        environment = detect(None, variables=TORCHRUN)
        assert environment.export() == {
            "RANK": "5",
            "WORLD_SIZE": "8",
            "LOCAL_RANK": "1",
            "LOCAL_WORLD_SIZE": "4",
            "NODE_RANK": "1",
            "MASTER_ADDR": "there",
            "MASTER_PORT": "1234",
        }
        assert places(detect(None, variables=environment.export())) == places(environment)

    def test_the_places_of_a_machine(self):
        first = detect(2, 2, variables={"NODE_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "5"})
        assert [(e.rank, e.local_rank, e.launched) for e in (first.at(0), first.at(1))] == [(2, 0, True), (3, 1, True)]
        assert first.at(1).at(0, port=9) == first.at(0, port=9)

    @pytest.mark.parametrize(
        ("variables", "text"),
        [
            (TORCHRUN, "8 processes on 2 nodes by torchrun, rank 0 at there:1234"),
            (SRUN, "4 processes on 2 nodes by SLURM, rank 0 at node03:22345"),
            (BY_HAND, "2 processes by RANK and WORLD_SIZE, rank 0 at there:1234"),
            ({}, "1 process by lightlib"),
        ],
    )
    def test_describes_itself(self, variables, text):
        assert detect(None, variables=variables).describe() == text


@pytest.mark.processes
def test_a_free_port_can_be_used():
    with socket.socket() as used:
        used.bind(("127.0.0.1", free_port()))


@pytest.mark.processes
def test_a_free_port_is_none_that_the_system_gives_to_others():
    with socket.socket() as any_one:
        any_one.bind(("127.0.0.1", 0))
        assert free_port() < 30000 < any_one.getsockname()[1]


@pytest.fixture
def three_ports(monkeypatch):
    """Three free ports that only this test uses; a choice always starts with the last one."""
    for number in itertools.count(os.getpid()):  # each test process starts its search at another port
        first = 30000 + 3 * (number % 900)  # above those that tests hold, below those that the system gives
        ports = range(first, first + 3)
        monkeypatch.setattr(place, "_PORTS", ports)
        with contextlib.suppress(LightlibError), contextlib.ExitStack() as held:
            for _ in ports:
                held.enter_context(closing(HeldPort()))
            break
    monkeypatch.setattr(place.random.SystemRandom, "randrange", lambda self, size: size - 1)
    return ports


@pytest.mark.processes
def test_a_free_port_is_not_in_use(three_ports):
    with socket.socket() as first, socket.socket() as second:
        taken = free_port()
        first.bind(("127.0.0.1", taken))
        second.bind(("", free_port()))
        third = free_port()
        assert {taken, second.getsockname()[1], third} == {*three_ports}
        with socket.socket() as last:
            last.bind(("", third))
            said = rf"All ports from {three_ports[0]} to {three_ports[-1]}(.|\n)*MASTER_PORT"
            with pytest.raises(LightlibError, match=said):
                free_port()


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="a port is held on Linux only")
def test_a_port_that_is_held_is_not_chosen_again(three_ports):
    """Two runs that start at once would share a port, and the ranks of one would join the other."""
    with closing(HeldPort()) as first, closing(HeldPort()) as second:
        third = HeldPort()
        assert {first.port, second.port, third.port} == {*three_ports}
        with pytest.raises(LightlibError, match=f"All ports from {three_ports[0]}"):
            HeldPort()
        third.close()
        assert free_port() == third.port


@pytest.mark.processes
def test_a_port_that_is_held_lets_the_store_of_the_run_in(three_ports):
    with closing(HeldPort()) as held:
        store = TCPStore("127.0.0.1", held.port, 1, is_master=True, wait_for_workers=False)
        assert free_port() != held.port
    assert free_port() != held.port
    store.set("name", "value")
    assert TCPStore("127.0.0.1", held.port, 1, is_master=False, wait_for_workers=False).get("name") == b"value"


@pytest.mark.processes
def test_a_port_that_was_given_is_taken_as_it_is():
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        given = used.getsockname()[1]
        assert HeldPort(given).port == given


def test_threads_are_shared_unless_their_number_is_set(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [place.threads_per_process(size) for size in (1, 3, 8, 16)] == [8, 2, 1, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert place.threads_per_process(2) is None


@pytest.mark.processes
def test_detection_costs_no_import_of_torch():
    code = "import sys, lightlib.launch.environment.detect; sys.exit('torch' in sys.modules)"
    assert interpreter("-c", code).returncode == 0
