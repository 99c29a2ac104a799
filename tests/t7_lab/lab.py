"""A JupyterLab of its own and a headless Chromium that looks at it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.error import URLError

from playwright.sync_api import Browser, Page, sync_playwright

from branchkit.process import spawn

START_TIMEOUT_S = 40.0
PAGE_TIMEOUT_MS = 60_000
CHROMIUM_ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}


class Lab(NamedTuple):
    """A running server. ``folder`` is what it shows, ``settings`` where the user's settings lie."""

    url: str
    folder: Path
    settings: Path

    def theme(self, name: str) -> None:
        """What pages that are opened from now on look like."""
        place = self.settings / "@jupyterlab" / "apputils-extension"
        place.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"theme": THEMES[name]})
        (place / "themes.jupyterlab-settings").write_text(text, encoding="utf-8")
        # A first visit asks about news in a pop-up that lies over the page.
        (place / "notification.jupyterlab-settings").write_text('{"fetchNews": "false"}', "utf-8")


@contextmanager
def lab(folder: Path, state: Path) -> Iterator[Lab]:
    """A JupyterLab on ``folder``, whose settings, store and runtime files stay in ``state``."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = state / "settings"
    names = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
    own = {name: str(state / name.lower()) for name in names}
    own |= {"JUPYTERLAB_SETTINGS_DIR": str(settings), "CI": "1"}
    own |= {"JUPYTERLAB_WORKSPACES_DIR": str(state / "workspaces")}
    own |= {"BRANCHKIT_STORE": str(state / "store")}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    command += [
        f"--ServerApp.port={port}",
        "--ServerApp.port_retries=0",
        "--ServerApp.ip=127.0.0.1",
    ]
    command += ["--IdentityProvider.token=", "--ServerApp.password=", f"--notebook-dir={folder}"]
    command += ["--LabApp.news_url="]
    url = f"http://127.0.0.1:{port}"
    with (
        (state / "lab.log").open("wb") as log,
        spawn(command, env=os.environ | own, stdout=log, stderr=log) as child,
    ):
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _answers(url):
            log_text = (state / "lab.log").read_text(errors="replace")[-2000:]
            assert child.poll() is None, f"JupyterLab ended:\n{log_text}"
            assert time.monotonic() < deadline, f"JupyterLab does not answer:\n{log_text}"
            time.sleep(0.1)
        yield Lab(url, folder, settings)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/api", timeout=5):
            return True
    except (URLError, OSError):
        return False


@contextmanager
def chromium() -> Iterator[Browser]:
    """The system's Chromium; a missing one fails with how to install it."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    assert program, "no Chromium here: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=CHROMIUM_ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


def opened(browser: Browser, server: Lab, notebook: str, *, kernel: bool = True) -> Page:
    """A page with the notebook open; without ``kernel`` none is started."""
    page = browser.new_page(viewport={"width": 1100, "height": 1300})
    page.set_default_timeout(PAGE_TIMEOUT_MS)
    # A workspace of its own: the last page's tabs would come back, and with them its kernel.
    page.goto(f"{server.url}/lab/workspaces/{'with' if kernel else 'without'}/tree/{notebook}")
    page.locator(".jp-Notebook .jp-Cell").first.wait_for()
    return page
