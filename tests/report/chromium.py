"""A headless Chromium for tests, driven over its own pipe: no driver program, no port, no
library."""

from __future__ import annotations

import base64
import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

SECONDS = 40.0
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-extensions",
    "--disable-background-networking",
    "--hide-scrollbars",
    # A frame in a sandbox then stays in the page's process, where it can be asked.
    "--disable-features=IsolateSandboxedIframes",
    "--remote-debugging-pipe",
)


def installed() -> str:
    """The path of the browser; tests of pages mean nothing without it."""
    found = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    assert found, (
        "Chromium is not installed, and the report's page is tested in it: "
        "apt-get install -y chromium"
    )
    return found


class Tab:
    """One page: commands go in, events and answers come out."""

    def __init__(self, send: int, receive: int) -> None:
        self.send, self.receive = send, receive
        self.numbers = itertools.count(1)
        self.buffer = b""
        self.events: list[dict[str, Any]] = []
        self.session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        number = next(self.numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.send, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + SECONDS
        while True:
            answer = self._next(end)
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])
            self.events.append(answer)

    def _next(self, end: float) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.receive], [], [], max(end - time.monotonic(), 0))
            assert ready, "Chromium does not answer"
            part = os.read(self.receive, 1 << 20)
            assert part, "Chromium ended"
            self.buffer += part
        line, _, self.buffer = self.buffer.partition(b"\0")
        return dict(json.loads(line))

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def js(self, expression: str, context: int | None = None) -> Any:
        """The value of an expression, in the page or in one of its frames; promises are awaited."""
        where = {} if context is None else {"contextId": context}
        answer = self.call(
            "Runtime.evaluate",
            expression=expression,
            returnByValue=True,
            awaitPromise=True,
            **where,
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, expression: str, seconds: float = SECONDS) -> Any:
        """Wait for an expression to become true; its value."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with suppress(AssertionError):
                value = self.js(expression)
                if value:
                    return value
            time.sleep(0.1)
        raise AssertionError(
            f"never true: {expression}\n{self.js('document.body.innerText')[:2000]}"
        )

    def frame(self, expression: str, seconds: float = SECONDS) -> Callable[[str], Any]:
        """A way to ask the document, in any frame, of which an expression is true."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.js("1")
            made = [
                event["params"]
                for event in self.events
                if event.get("method") == "Runtime.executionContextCreated"
            ]
            for params in reversed(made):
                ask = partial(self.js, context=params["context"]["id"])
                with suppress(AssertionError):
                    if ask(expression):
                        return ask
            time.sleep(0.2)
        raise AssertionError(f"true in no frame: {expression}")

    def size(self, width: int, height: int, scale: float = 1, mobile: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=mobile,
        )

    def prefers(self, scheme: str) -> None:
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def drag(self, start: tuple[float, float], stop: tuple[float, float]) -> None:
        self.mouse("mouseMoved", *start)
        self.mouse("mousePressed", *start, button="left", clickCount=1)
        self.mouse(
            "mouseMoved",
            (start[0] + stop[0]) / 2,
            (start[1] + stop[1]) / 2,
            button="left",
            buttons=1,
        )
        self.mouse("mouseMoved", *stop, button="left", buttons=1)
        self.mouse("mouseReleased", *stop, button="left", clickCount=1)

    def key(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            text = {"text": key} if len(key) == 1 and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, **text)

    def screenshot(self, path: Path, whole: bool = False) -> None:
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(picture["data"]))

    def complaints(self) -> list[str]:
        """What the page's console has against it: errors, warnings, exceptions."""
        self.js("1")
        found = []
        for event in self.events:
            params = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(json.dumps(params["exceptionDetails"])[:500])
            elif event.get("method") == "Runtime.consoleAPICalled" and params["type"] in (
                "error",
                "warning",
            ):
                found.append(json.dumps(params["args"])[:500])
            elif event.get("method") == "Log.entryAdded" and params["entry"]["level"] in (
                "error",
                "warning",
            ):
                found.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        return found

    def requests(self) -> list[str]:
        """What the page asked the network for."""
        self.js("1")
        sent = [
            event for event in self.events if event.get("method") == "Network.requestWillBeSent"
        ]
        return [str(event["params"]["request"]["url"]) for event in sent]


@contextmanager
def tab(profile: Path) -> Iterator[Tab]:
    """A browser with one page, ended when it is done with."""
    here, there = pipe(), pipe()
    command = [installed(), *FLAGS, f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(3, 4),
        preexec_fn=joined(here[0], there[1]),
        # It would look into whatever browser the user has.
        env={**os.environ, "HOME": str(profile)},
    )
    os.close(here[0])
    os.close(there[1])
    try:
        yield Tab(here[1], there[0])
    finally:
        # Closing its end of the pipe is what Chromium takes for a goodbye.
        os.close(here[1])
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(there[0])


def pipe() -> tuple[int, int]:
    """A pipe whose ends are not 3 or 4, which the browser's ends must become."""
    low = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in low)
    for end in low:
        os.close(end)
    return high[0], high[1]


def joined(reads: int, writes: int) -> Callable[[], None]:
    """Run in the child: Chromium reads commands from 3 and writes answers to 4."""

    def join() -> None:
        os.dup2(reads, 3)
        os.dup2(writes, 4)

    return join
