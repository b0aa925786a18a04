"""Screenshots of the page at `/` of a server, into docs/screenshots: python docs/screenshots.py REPOSITORY PICTURE

REPOSITORY has at least two variants of one model of pictures, and PICTURE is one that they take. Needs playwright and a
Chromium or Chrome (extra `dev`).
"""

from __future__ import annotations

import argparse
import http.client
import io
import math
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from PIL import Image
from playwright.sync_api import Page, sync_playwright

HERE = Path(__file__).parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Of each: its width and height, the colours, and what it begins with; without that it is the whole page.
SHOTS = {
    "page-desktop": (1280, 860, "light", ""),
    "page-desktop-dark": (1280, 860, "dark", ""),
    "page-phone": (390, 844, "light", "header"),
    "page-phone-traffic": (390, 844, "light", "#traffic"),
    "page-phone-dark": (390, 844, "dark", "#try [role=region]"),
}
COLOURS = 160
TRAFFIC_S = 120


@contextmanager
def served(repository: Path) -> Iterator[str]:
    """A server's address, as long as it is needed."""
    command = [sys.executable, "-m", "penstock", "serve", str(repository), "--port", "0", "--grpc-port", "-1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        words = (word for line in process.stdout for word in line.split())
        yield next(word for word in words if word.startswith("http://"))
    finally:
        process.terminate()
        process.wait()


def traffic(url: str, names: list[str], picture: bytes, until: float) -> None:
    """Ask as a few clients do, more and less, with a bad request now and then."""

    def ask(seed: int) -> None:
        chance, connection = random.Random(seed), http.client.HTTPConnection(urlsplit(url).netloc)
        while time.monotonic() < until:
            for _ in range(chance.choice((1, 1, 2, 3, 6))):
                body = b"no picture" if chance.random() < 0.01 else picture
                connection.request("POST", f"/predict/{chance.choice(names)}", body, {"Content-Type": "image/png"})
                connection.getresponse().read()
            time.sleep(chance.random() * 0.05 * (1.4 + math.sin(time.monotonic() / 8)))

    for seed in range(6):
        threading.Thread(target=ask, args=(seed,), daemon=True).start()


def compare(page: Page, names: list[str], picture: Path) -> None:
    """Ask two variants for the picture."""
    page.select_option("#model", names[0])
    page.set_input_files("#picture", picture)
    page.select_option("#other", names[1])
    page.click("#try button[type=submit]")
    page.wait_for_selector("#try .answer:nth-of-type(2)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("repository", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--output", type=Path, default=HERE / "screenshots")
    parser.add_argument("--seconds", type=float, default=TRAFFIC_S, help="of traffic before they are taken")
    told = parser.parse_args()
    browser_path = next(filter(None, map(shutil.which, BROWSERS)), None)
    with served(told.repository) as url, sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser: Any = playwright.chromium.launch(executable_path=browser_path, args=arguments)
        pages = {name: opened(browser, url, *how[:3]) for name, how in SHOTS.items()}
        any_page = next(iter(pages.values()))
        shown = any_page.eval_on_selector_all("#model option", "options => options.map(({value}) => value)")
        names = sorted(shown, key=lambda name: (name.rpartition("-")[0] != shown[0].rpartition("-")[0], name))
        names = [name for name in names if name.startswith(shown[0].split("-")[0])]
        traffic(url, names, told.picture.read_bytes(), time.monotonic() + told.seconds + 60)
        any_page.wait_for_timeout(1000 * told.seconds)
        for name, page in pages.items():
            page.bring_to_front()
            for _ in range(2):  # the first is slow, as the first of anything is
                compare(page, names[-2:], told.picture)
            page.wait_for_timeout(2500)
            save(page, told.output / f"{name}.png", SHOTS[name][3])
        browser.close()


def save(page: Page, path: Path, begins: str) -> None:
    page.evaluate("scrollTo(0, 0)")
    if begins:
        page.eval_on_selector(begins, "element => scrollTo(0, element.getBoundingClientRect().top - 8)")
    shot = Image.open(io.BytesIO(page.screenshot(full_page=not begins)))
    shot.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


def opened(browser: Any, url: str, width: int, height: int, colours: str) -> Page:
    page: Page = browser.new_context(viewport={"width": width, "height": height}, color_scheme=colours).new_page()
    page.on("console", lambda message: print("console:", message.text))
    page.on("pageerror", lambda error: print("error:", error))
    page.goto(url)
    page.wait_for_selector("#model option", state="attached")
    return page


if __name__ == "__main__":
    main()
