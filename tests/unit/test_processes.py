"""Which processes run, for tests that start some and end them."""

import os
import signal
import subprocess
import sys

import pytest

from tests.harness.processes import descendants, is_alive
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.heavy


def test_a_child_that_was_killed_does_not_run_although_nobody_has_waited_for_it() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()", "a-word"], stdin=subprocess.PIPE) as child:
        wait_until(lambda: descendants(os.getpid(), "a-word") == {child.pid}, "it has its command line")
        assert is_alive(child.pid)
        child.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert descendants(os.getpid(), "a-word") == set()
        assert not is_alive(child.pid)
    assert not is_alive(child.pid)
