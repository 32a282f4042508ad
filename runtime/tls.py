"""TLS of the connections that this process opens: what their files hold now."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from ssl import SSLContext, get_default_verify_paths


class Tls:
    """What connections need for TLS. It is set up again only if one of the files has changed: with the certificates of
    the system, that takes 50 ms, the event loop stands still meanwhile, and while a server cannot be reached there are
    several attempts a second.
    """

    def __init__(self, files: Iterable[object], create: Callable[[], SSLContext]) -> None:
        """`files` are those that `create` reads besides the certificates of the system: paths, or None."""
        self._paths = [Path(str(path)) for path in (*files, get_default_verify_paths().cafile) if path]
        self._create = create
        self._ready: tuple[object, SSLContext] | None = None

    def files(self) -> object:
        """Returns a value that differs from those before as soon as one of the files has changed."""
        return [_identity(path) for path in self._paths]

    def context(self) -> SSLContext:
        """Returns what a connection needs, from the files as they are now. Raises what `create` raises."""
        files = self.files()
        if self._ready is None or self._ready[0] != files:
            self._ready = files, self._create()
        return self._ready[1]


def _identity(path: Path) -> tuple[int, int, int] | None:
    with suppress(OSError):
        found = path.stat()
        return found.st_ino, found.st_size, found.st_mtime_ns
    return None
