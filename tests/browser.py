"""A headless Chromium, driven over its DevTools pipe: no driver, no websocket, nothing but the browser itself."""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.servers.builds import CHROMIUM
from tests.waiting import wait_until

TIMEOUT_S = 60.0
_FONTS = "<fontconfig><dir>{build}/usr/share/fonts</dir><cachedir>{profile}/fonts</cachedir></fontconfig>"


class Browser:
    """One browser with one page. `problems` holds what its console, its security policy and its loads complained of.

    Args:
        profile: a folder of its own.

    Raises:
        NotBuilt: there is no Chromium.
    """

    def __init__(self, profile: Path) -> None:
        build = CHROMIUM.folder()
        profile.mkdir(exist_ok=True)
        fonts = profile / "fonts.conf"
        fonts.write_text(_FONTS.format(build=build, profile=profile))
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        arguments = [
            str(build / "usr/lib/chromium/chromium"),
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--no-first-run",
            "--no-proxy-server",
            "--hide-scrollbars",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE evil.test",
            f"--user-data-dir={profile}",
            "--remote-debugging-pipe",
            "about:blank",
        ]

        def place_pipes() -> None:
            os.dup2(to_browser, 3)
            os.dup2(from_browser, 4)

        # The pipes' numbers may be 3 or 4 themselves: duplicates far above are placed.
        to_browser, from_browser = (_moved_up(descriptor) for descriptor in (to_browser, from_browser))
        self._process = subprocess.Popen(
            arguments, close_fds=False, preexec_fn=place_pipes, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**CHROMIUM.environment(), "FONTCONFIG_FILE": str(fonts)},
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self._rest = b""
        self._number = 0
        self.problems: list[str] = []
        self.requests: list[str] = []
        targets = self._call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self._call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def _call(self, method: str, session: str | None = None, **params: object) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            data = os.read(self._in, 1 << 20)
            assert data, "the browser has ended"
            self._rest += data
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(params["exceptionDetails"])[:500])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.problems.append(json.dumps(params["args"])[:500])
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def call(self, method: str, **params: object) -> dict[str, Any]:
        """Call a method of the page."""
        return self._call(method, self._session, **params)

    def look_like(self, width: int, height: int, scheme: str) -> None:
        """Set the size of the window, and ``light`` or ``dark``."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def run(self, script: str) -> Any:
        """Return the value of an expression of the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, script: str) -> None:
        """Wait until an expression of the page is true."""
        wait_until(lambda: self.run(f"Boolean({script})"), lambda: f"{script} in {self.text()}", pause_seconds=0.02)

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def text(self) -> str:
        return str(self.run("document.body ? document.body.innerText : ''"))

    def press(self, key: str, code: int, text: str = "") -> None:
        """Press a key as a person does."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, text=text)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(data))


def _moved_up(number: int) -> int:
    import fcntl

    moved = fcntl.fcntl(number, fcntl.F_DUPFD, 64)
    os.close(number)
    os.set_inheritable(moved, True)
    return moved
