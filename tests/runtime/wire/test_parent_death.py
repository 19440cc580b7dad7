"""Who ends with whom: a parent that is killed, before, after and while its children are stopped."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.ends import readable

LIMIT_S = 60.0

HEAD = """
import os, signal, subprocess, sys, threading
from polyrhythm.runtime.wire.parent_death import dies_with_us, tie_forks

said, heard = int(sys.argv[1]), int(sys.argv[2])

def fork(body):
    pid = os.fork()
    if not pid:
        body()
        os._exit(0)
    return pid

def say(word):
    os.write(said, word.encode())

def answer():
    while os.read(heard, 1):
        say("!")

def end():
    os.close(said)
    signal.pause()

def stop():
    os.kill(os.getpid(), signal.SIGSTOP)

"""

FORKED = """
tie_forks()
fork(lambda: (say("+"), answer()))
end()
"""

STOPPED = """
tie_forks()
os.waitpid(fork(stop), os.WUNTRACED)
say("+")
end()
"""

ORPHANED_BEFORE = """
os.register_at_fork(after_in_child=lambda: (say("+"), os.read(heard, 1)))
tie_forks()
fork(answer)
end()
"""

GRANDCHILD = """
tie_forks()
fork(lambda: fork(lambda: (say("+"), answer())))
os.wait()
end()
"""

COMMAND = """
command = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"]
child = subprocess.Popen(command, pass_fds=[said], preexec_fn=dies_with_us())
os.waitpid(child.pid, os.WUNTRACED)
say("+")
end()
"""

COMMAND_BEFORE = """
bind = dies_with_us()
fork(lambda: (say("+"), os.read(heard, 1), bind(), answer()))
end()
"""

THREAD = """
tie_forks()
thread = threading.Thread(target=fork, args=[lambda: (say("+"), answer())])
thread.start()
thread.join()
end()
"""

DAEMON = """
tie_forks()

def daemonise():
    os.setsid()
    fork(lambda: (say("+"), answer()))

fork(daemonise)
os.wait()
end()
"""

PROGRAM = """
tie_forks()
code = "import os, sys; os.write({0}, b'+'); [os.write({0}, b'!') for _ in iter(lambda: os.read({1}, 1), b'')]"
command = [sys.executable, "-c", code.format(said, heard)]
child = subprocess.Popen(command, pass_fds=[said, heard], preexec_fn=os.setsid)
end()
"""

REUSED = """
tie_forks()

def child():
    for number in {*range(3, 100)} - {said, heard}:
        try:
            os.close(number)
        except OSError:
            pass
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(50)]
    fork(lambda: (say("+" if all(map(os.fstat, opened)) else "-"), answer()))

fork(child)
os.wait()
end()
"""

GRACEFUL = """
code = "import os, signal, sys; signal.signal(15, lambda *_: (os.write({0}, b'='), sys.exit())); os.write({0}, b'+')"
command = [sys.executable, "-c", code.format(said) + "; signal.pause()"]
child = subprocess.Popen(command, pass_fds=[said], preexec_fn=dies_with_us(signal.SIGTERM))
end()
"""


@dataclass
class Family:
    """A parent in a process of its own, and a pipe each way with its children, whose end of file is their end."""

    script: str
    said: tuple[int, int] = field(default_factory=os.pipe)
    heard: tuple[int, int] = field(default_factory=os.pipe)

    def __post_init__(self) -> None:
        theirs = (self.said[1], self.heard[0])
        command = [sys.executable, "-c", HEAD + self.script, *map(str, theirs)]
        self.parent = subprocess.Popen(command, pass_fds=theirs)
        for end in theirs:
            os.close(end)

    def listen(self) -> bytes:
        """The next word of a child; nothing once all have ended."""
        assert readable(self.said[0], LIMIT_S), "neither a word nor an end"
        return os.read(self.said[0], 1)

    def ask(self) -> bytes:
        os.write(self.heard[1], b"?")
        return self.listen()

    def kill(self) -> None:
        self.parent.kill()
        self.parent.wait()

    def close(self) -> None:
        self.kill()
        os.close(self.heard[1])
        os.close(self.said[0])


@pytest.fixture
def family(request: pytest.FixtureRequest) -> Iterator[Family]:
    made = Family(request.param)
    yield made
    made.close()


@pytest.mark.parametrize(
    "family",
    [FORKED, STOPPED, GRANDCHILD, COMMAND],
    ids=["forked", "stopped", "grandchild", "stopped command"],
    indirect=True,
)
def test_a_child_ends_with_its_parent(family: Family) -> None:
    assert family.listen() == b"+"
    family.kill()
    assert family.listen() == b""


@pytest.mark.parametrize("family", [ORPHANED_BEFORE, COMMAND_BEFORE], ids=["forked", "command"], indirect=True)
def test_a_parent_that_is_gone_before_is_noticed(family: Family) -> None:
    assert family.listen() == b"+"
    family.kill()
    os.write(family.heard[1], b"?")
    assert family.listen() == b""


@pytest.mark.parametrize("family", [THREAD], ids=["thread"], indirect=True)
def test_a_thread_that_forked_may_end(family: Family) -> None:
    assert family.listen() == b"+"
    assert family.ask() == b"!"
    family.kill()
    assert family.listen() == b""


@pytest.mark.parametrize("family", [DAEMON, PROGRAM, REUSED], ids=["daemon", "program", "closed"], indirect=True)
def test_who_lets_go_on_purpose_stays(family: Family) -> None:
    assert family.listen() == b"+"
    family.kill()
    assert family.ask() == b"!"


@pytest.mark.parametrize("family", [GRACEFUL], ids=["launcher"], indirect=True)
def test_a_launcher_may_still_end_in_good_order(family: Family) -> None:
    assert family.listen() == b"+"
    family.kill()
    assert [family.listen(), family.listen()] == [b"=", b""]
