"""A JupyterLab of its own and a headless Chromium that looks at it."""

from __future__ import annotations

import json
import os
import secrets
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

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import BrowserContext, Page, sync_playwright

from branchkit.process import spawn

START_TIMEOUT_S = 40.0
PAGE_TIMEOUT_MS = 20_000
CHROMIUM_ARGUMENTS = [
    "--no-sandbox",
    "--headless=new",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
CHROMIUM_NAMES = ("chromium", "google-chrome", "google-chrome-stable", "chromium-browser")
NOTEBOOK = "notebooks/tutorial/quickstart.ipynb"
THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}


class Lab(NamedTuple):
    """A running server. ``folder`` is what it shows, ``settings`` where the user's settings lie."""

    url: str
    token: str
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


class Place(NamedTuple):
    """Where the browser goes, and what it may leave behind."""

    server: Lab
    browser: BrowserContext
    notebook: Path


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
    token = secrets.token_hex(16)
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    command += [f"--ServerApp.port={port}", "--ServerApp.port_retries=0"]
    command += ["--ServerApp.ip=127.0.0.1", f"--IdentityProvider.token={token}"]
    command += [f"--notebook-dir={folder}", "--LabApp.news_url="]
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
        yield Lab(url, token, folder, settings)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/api", timeout=5):
            return True
    except (URLError, OSError):
        return False


def browser_program() -> str:
    """The path of Chromium. Fails with how to install it."""
    asked = os.environ.get("BRANCHKIT_CHROMIUM")
    found = next((path for name in CHROMIUM_NAMES if (path := shutil.which(name))), None)
    program = asked or found
    assert program, "no browser: apt-get install chromium, or BRANCHKIT_CHROMIUM=/path/to/it"
    assert Path(program).exists(), f"BRANCHKIT_CHROMIUM={program} does not exist"
    return program


@contextmanager
def chromium(profile: Path) -> Iterator[BrowserContext]:
    """The system's Chromium with a profile that is thrown away."""
    program = browser_program()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch_persistent_context(
            profile,
            executable_path=program,
            args=CHROMIUM_ARGUMENTS,
            viewport={"width": 1100, "height": 1300},
        )
        try:
            yield browser
        finally:
            browser.close()


def opened(
    browser: BrowserContext, server: Lab, notebook: str, *, workspace: str, kernelspecs: str = ""
) -> Page:
    """A page with the notebook open, in a Lab workspace of its own.

    In the same one the last page's tabs would come back, and with them its kernel. ``kernelspecs``
    is told to the page instead of what the server has.
    """
    page = browser.new_page()
    if kernelspecs:
        json_type = "application/json"
        page.route(
            "**/api/kernelspecs*",
            lambda route: route.fulfill(body=kernelspecs, content_type=json_type),
        )
    page.set_default_timeout(PAGE_TIMEOUT_MS)
    page.goto(f"{server.url}/lab/workspaces/{workspace}/tree/{notebook}?token={server.token}")
    page.locator(".jp-Notebook .jp-Cell").first.wait_for()
    return page


def violations(page: Page, within: str) -> list[str]:
    """What axe finds wrong within a CSS selector: roles, names, contrast, reach by keyboard."""
    found = Axe().run(page, context=within).response["violations"]
    return [f"{one['id']}: {[node['html'][:120] for node in one['nodes'][:3]]}" for one in found]
