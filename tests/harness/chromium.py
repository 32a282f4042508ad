"""Chromium, driven over its debugging pipe: the DevTools protocol as JSON, without a library.

Every page starts with a fresh profile. What the page logs, throws or may not load (its Content-Security-Policy) is kept
in `complaints`.
"""

import base64
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from devstack.child import Child
from tests.harness.waiting import wait_until

_QUIET = (
    "--headless=new",
    "--no-sandbox",  # containers have no user namespaces; the pages are our own
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
    "--js-flags=--expose-gc",
)


class Held(NamedTuple):
    """What a page holds: the bytes of its scripts, the nodes of its documents (also those that are not shown any more),
    and the listeners of events.
    """

    heap: int
    nodes: int
    listeners: int


class Page:
    """A page in Chromium."""

    def __init__(self, chromium: Child) -> None:
        self._writes, self._reads = chromium.pipes
        self._rest = b""
        self._number = 0
        self._session = ""
        self.complaints: list[str] = []
        self.requested: list[str] = []
        """The addresses of everything that the page has asked for, and the bodies that it has sent."""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Performance"):
            self._call(f"{domain}.enable")

    def open(self, url: str) -> None:
        """Open an address. Returns when the document is there, and its scripts have begun."""
        self._call("Page.navigate", url=url)
        wait_until(lambda: self.do("document.readyState") == "complete", f"{url} is loaded")

    def do(self, script: str) -> Any:
        """Returns the value of an expression or of a promise. Raises AssertionError if it throws."""
        done = self._call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def text(self, selector: str) -> str:
        """Returns the text of an element; an empty text if there is none."""
        return str(self.do(f"document.querySelector({orjson.dumps(selector).decode()})?.innerText ?? ''"))

    def wait_for(self, selector: str, *words: str) -> str:
        """Wait until all of these words are in the text of an element. Returns it."""
        last = ""

        def is_said() -> bool:
            nonlocal last
            last = self.text(selector)
            return all(word in last for word in words) and bool(last)

        wait_until(is_said, lambda: f"{selector} says {words}; it says {last!r}, and {self.complaints}")
        return last

    def size(self, width: int, *, dark: bool = False) -> None:
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])

    def press(self, key: str, code: int) -> None:
        """Press a key, such as Tab, with its Windows key code."""
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self._call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def hover(self, selector: str) -> None:
        script = "scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect();"
        middle = "[b.x + b.width / 2, b.y + b.height / 2]"
        box = self.do(
            f"(() => {{ const e = document.querySelector({orjson.dumps(selector).decode()});"
            f" e.{script} return {middle} }})()"
        )
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])

    def screenshot(self, path: Path, until: str = "") -> None:
        """Write a picture of the page, in the format that the name of the file says: PNG or WebP. It ends before the
        element `until`, if one is named.
        """
        size = self._call("Page.getLayoutMetrics")["cssContentSize"]
        height = self.do(f"document.querySelector('{until}').offsetTop") if until else size["height"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": height, "scale": 1}
        form = {"format": "webp", "quality": 85} if path.suffix == ".webp" else {"format": "png"}
        taken = self._call("Page.captureScreenshot", **form, clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(taken["data"]))

    def held(self) -> Held:
        """Returns what the page holds after a collection."""
        self._call("HeapProfiler.collectGarbage")
        found = {each["name"]: int(each["value"]) for each in self._call("Performance.getMetrics")["metrics"]}
        return Held(found["JSHeapUsedSize"], found["Nodes"], found["JSEventListeners"])

    def _call(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._writes.write(orjson.dumps(message) + b"\0")
        self._writes.flush()
        while True:
            found = self._next()
            if found.get("id") == self._number:
                assert "error" not in found, (method, found["error"])
                return found["result"]
            self._note(found.get("method", ""), found.get("params", {}))

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            chunk = os.read(self._reads.fileno(), 1 << 16)
            assert chunk, "Chromium has ended"
            self._rest += chunk
        message, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = orjson.loads(message)
        return found

    def _note(self, method: str, parameters: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.complaints.append(str(parameters["exceptionDetails"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning"):
            self.complaints.append(str(parameters["args"]))
        elif method == "Network.requestWillBeSent":
            request = parameters["request"]
            self.requested.append(f"{request['method']} {request['url']} {request.get('postData', '')}".strip())


@contextmanager
def open_page(directory: Path) -> Iterator[Page]:
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert program, "Chromium is not installed (Debian: apt install chromium)"
    # Chromium reads commands from descriptor 3, and writes to 4. What it prints goes to its log.
    shell = 'exec 3<&0 4>&1 0</dev/null 1>&2; exec "$@"'
    command = [program, *_QUIET, f"--user-data-dir={directory / 'profile'}", "about:blank"]
    with Child(["/bin/bash", "-c", shell, "bash", *command], log=directory / "chromium.log", piped=True) as chromium:
        yield Page(chromium)
