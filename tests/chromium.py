"""A headless Chromium, spoken to over pipes: pages are loaded, and asked what they did."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


_NAMES = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome-headless-shell",
)
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--remote-debugging-pipe",
)
# Chromium reads commands from the first of these, and writes what happens to the other.
_COMMANDS, _REPLIES = 3, 4


def find() -> str | None:
    """The first Chromium on the path, None without one."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


class Browser:
    """One tab. Messages are JSON, each ended by a zero byte."""

    def __init__(self, commands: Any, replies: Any):
        self.commands, self.replies, self.buffer = commands, replies, b""
        self.number, self.session, self.events = 0, None, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """The answer to a command; events that come before it are kept."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session is not None:
            message["sessionId"] = self.session
        self.commands.write(json.dumps(message).encode() + b"\0")
        self.commands.flush()
        while (reply := self._read()).get("id") != self.number:
            self.events.append(reply)
        assert "error" not in reply, reply
        return reply["result"]

    def load(self, url: str, width: int, height: int) -> None:
        """Open a page in a window of this size, and wait until it has loaded."""
        phone = width < 600
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.events.clear()
        self.call("Page.navigate", url=url)
        while not any(e.get("method") == "Page.loadEventFired" for e in self.events):
            self.events.append(self._read())

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page, awaited if it is a promise."""
        options = {"returnByValue": True, "awaitPromise": True}
        answer = self.call("Runtime.evaluate", expression=expression, **options)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def errors(self) -> list[str]:
        """Scripts that failed and what was logged as an error since the page was opened."""
        found = []
        for event in self.events:
            details = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(str(details["exceptionDetails"]))
            elif event.get("method") == "Log.entryAdded":
                if details["entry"]["level"] == "error":
                    found.append(str(details["entry"]))
        return found

    def requests(self) -> list[str]:
        """What the page has asked for."""
        sent = [e for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def _read(self) -> Any:
        while b"\0" not in self.buffer:
            read = self.replies.read1()
            assert read, "Chromium has ended"
            self.buffer += read
        text, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(text)


@contextmanager
def browser(program: str, profile: Path) -> Iterator[Browser]:
    """A Chromium with a profile of its own, ended with the block."""
    (commands_end, commands), (replies, replies_end) = os.pipe(), os.pipe()
    ends = (commands_end, replies_end)
    places = f"{_COMMANDS}<&{commands_end} {_REPLIES}>&{replies_end}"
    line = f'exec "$@" {places}'
    process = subprocess.Popen(
        ["bash", "-c", line, "bash", program, *_FLAGS, f"--user-data-dir={profile}"],
        pass_fds=ends,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for end in ends:
        os.close(end)
    try:
        with os.fdopen(commands, "wb") as write, os.fdopen(replies, "rb") as read:
            yield Browser(write, read)
    finally:
        process.kill()
        process.wait()
