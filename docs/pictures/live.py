"""Photographs the live pages for the documentation: ``python docs/pictures/live.py``; needs chromium and chromedriver.

It runs the first job of ``make demo`` and looks at its page shortly before its end, then at the page of a search, from
figures that are written down here. Measured times differ from run to run, so no test holds the pictures.
"""

import base64
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

from polyrhythm.live.work.board import WorkBoard
from polyrhythm.live.work.page import WorkPage

HERE = Path(__file__).parent
JOB = (
    *("run", "--ui", "--job", "digits", "--nproc-per-node", "4", "--policy", "switch:bsp@0.5,asp"),
    *(str(HERE.parents[1] / "examples" / "train_digits.py"), "--epochs", "16", "--uneven", "8"),
)
WIDTH = 1200
QUALITY = 60
ALMOST = 0.85
"""Share of the job after which its picture is taken."""

LIMIT_S = 600.0


@contextmanager
def browser() -> Iterator[Chrome]:
    options = ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for argument in ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"):
        options.add_argument(argument)
    driver = Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    try:
        yield driver
    finally:
        driver.quit()


def wait(driver: Chrome, script: str) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not driver.execute_script(f"return {script}"):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{script} does not hold within {LIMIT_S:g} s")
        time.sleep(0.1)


def photograph(driver: Chrome, name: str, height: int) -> None:
    size = {"width": WIDTH, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    time.sleep(1.0)  # until the page is drawn at that size
    shot = driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "webp", "quality": QUALITY})
    (HERE / name).write_bytes(base64.b64decode(shot["data"]))


def of_a_job(driver: Chrome) -> None:
    with subprocess.Popen([sys.executable, "-m", "polyrhythm", *JOB], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        address = next(found[0] for line in process.stderr if (found := re.search(r"http://\S+/$", line)))
        driver.get(address)
        wait(driver, f"view !== null && view.share > {ALMOST}")
        photograph(driver, "live-job.webp", 1150)
        process.stderr.read()


def of_a_search(driver: Chrome) -> None:
    heads = ("candidate", "run", "accuracy", "training", "verdict")
    board = WorkBoard("search on stragglers-moderate", "polyrhythm search stragglers-moderate --ui", heads)
    board.begin("trials, at most", 18)
    trials = [("switch:bsp@1,asp", 0.976, "baseline"), ("switch:bsp@0.5,asp", 0.975, "trial")]
    for number, (spec, accuracy, verdict) in enumerate(trial for trial in trials for _ in range(3)):
        board.row(spec, str(number % 3), f"{accuracy + number % 3 / 2000:.4f}", "52.0 s", verdict)
        board.point("accuracy of the trials", number + 1, accuracy + number % 3 / 2000)
    board.row("switch:bsp@0.5,asp", "all", "", "", "accepted")
    best = "switch:bsp@0.5,asp, 1.21x as fast as switch:bsp@1,asp"
    board.advance(6, now="switch:bsp@0.25,asp, run 0", best=best)
    page = WorkPage(board)
    page.start()
    driver.get(page.address)
    wait(driver, "work !== null")
    photograph(driver, "live-search.webp", 950)
    page.stop()


if __name__ == "__main__":
    with browser() as chromium:
        of_a_search(chromium)
        of_a_job(chromium)
