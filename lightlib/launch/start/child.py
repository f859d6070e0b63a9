"""Child: a process that runs this program again, and its output."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import dataclass

from lightlib.launch.environment.detect import LAUNCHED, PARENT
from lightlib.launch.environment.environment import Environment
from lightlib.launch.start.output import Output

INTERRUPTED = (130, 143, -signal.SIGINT)


def following(variable: str, words: str = "[sys.executable, *sys.argv[1:]]") -> str:
    """Return the source of a program that becomes another one, which is killed when the parent dies.

    It asks Linux for that. Python's `preexec_fn` could ask as well, but runs Python code after a fork, which is not
    safe with other threads.

    Args:
        variable: Of the environment, with the process id of the parent.
        words: The source of the command line of the other program.
    """
    return (
        "import os, sys\n"
        "try:\n"
        "    import ctypes\n"
        f"    ctypes.CDLL(None).prctl(1, {int(getattr(signal, 'SIGKILL', 9))})\n"
        "except (ImportError, OSError, AttributeError): pass\n"
        f"if os.getppid() != int(os.environ['{variable}']): os._exit(1)\n"
        f"words = {words}\n"
        "os.execvp(words[0], words)"
    )


FOLLOW_PARENT = following(PARENT)


@dataclass
class Child:
    """A process that was started, and its output."""

    rank: int
    process: subprocess.Popen[bytes]
    outputs: tuple[Output, Output]  # the readers of its stdout and stderr
    ended: float = 0.0  # when it was found to have ended, on the monotonic clock; 0 while it runs
    reported: bool = False  # whether its end was reported, or need not be

    @classmethod
    def start(cls, command: list[str], environment: Environment, folder: str) -> Child:
        """Start a process with this command in this folder."""
        parent = str(os.getpid())
        variables = {"PYTHONUNBUFFERED": "1", **os.environ, **environment.export(), LAUNCHED: parent, PARENT: parent}
        process = subprocess.Popen(  # noqa: S603  the command runs this very program
            command,
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        tag = f"[rank {environment.rank}] "
        outputs = Output(process.stdout, tag, "stdout"), Output(process.stderr, tag, "stderr")
        for output in outputs:
            output.start()
        return cls(environment.rank, process, outputs)

    @property
    def tail(self) -> str:
        """The last lines of its stderr."""
        return "\n".join(self.outputs[1].tail)

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C, or an end that all ranks agreed on, has ended it."""
        return self.process.returncode in INTERRUPTED

    def check(self, drain: float) -> None:
        """If it has ended, wait at most `drain` seconds for the rest of its output and set `ended`."""
        if self.ended or self.running:
            return
        noticed = time.monotonic()
        for output in self.outputs:
            output.join(timeout=drain)  # a process that it started may keep the pipe open
        self.ended = noticed

    def silence(self) -> None:
        """Pass on no more of its output."""
        for output in self.outputs:
            output.silence()

    def settle(self, seconds: float) -> None:
        """Pass on a line without an end once nothing has followed for so many seconds."""
        for output in self.outputs:
            output.settle(seconds)

    def set_reported(self) -> None:
        """Note that its end was reported, or need not be."""
        self.reported = True


def how_it_ended(code: int) -> str:
    """Return an exit code in words.

    Example:
        >>> how_it_ended(-9), how_it_ended(3)
        ('was killed by SIGKILL (often: out of memory)', 'ended with exit code 3')
    """
    if code >= 0:
        return f"ended with exit code {code}"
    name = next((number.name for number in signal.Signals if number == -code), f"signal {-code}")
    causes = {"SIGKILL": "often: out of memory", "SIGSEGV": "a crash in native code", "SIGBUS": "often: /dev/shm full"}
    return f"was killed by {name}" + (f" ({causes[name]})" if name in causes else "")
