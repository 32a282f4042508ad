"""One Apache Kafka for all processes of a test run: each of its own would cost seconds of a processor, and memory.

The first process that asks for it starts it, and stops it when no other process uses it any more.

directory/address    its addresses, while it runs
directory/users      locked by each process that uses it; exclusively, while it is being stopped
directory/starting   locked by the process that starts it
"""

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from devstack import topics
from devstack.apache_kafka import ApacheKafka, plain_login

USERS = {"crm": "right"}
"""The passwords of those who can sign in."""


@contextmanager
def shared_kafka(directory: Path, storage: Path) -> Iterator[tuple[str, str]]:
    """Yields two addresses of the broker: one for all, and one on which `USERS` sign in. `directory` is that of all
    processes, `storage` is for the broker if this process starts it. Raises JarsMissing.
    """
    directory.mkdir(exist_ok=True)
    address = directory / "address"
    with (directory / "users").open("w") as users, ExitStack() as started:
        fcntl.flock(users, fcntl.LOCK_SH)
        if not address.exists():
            fcntl.flock(users, fcntl.LOCK_UN)
            with (directory / "starting").open("w") as starting:
                fcntl.flock(starting, fcntl.LOCK_EX)
                fcntl.flock(users, fcntl.LOCK_SH)
                if not address.exists():
                    kafka = started.enter_context(ApacheKafka.start(storage, login=plain_login(USERS)))
                    topics.wait_for_groups(kafka.bootstrap_servers)
                    started.callback(address.unlink)
                    started.callback(fcntl.flock, users, fcntl.LOCK_EX)
                    address.write_text(f"{kafka.bootstrap_servers} {kafka.sasl_servers}")
        open_to_all, of_users = address.read_text().split()
        yield open_to_all, of_users
