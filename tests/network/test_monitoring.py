"""What examples/monitoring says, against Debian's Prometheus: rules, one scrape of a real job, one alert that fires."""

import json
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.live.jobs import fetch, followed

MONITORING = Path(__file__).parents[2] / "examples" / "monitoring"
LIMIT_S = 120.0


@pytest.mark.parametrize(
    "words", [("check", "config", "prometheus.yml"), ("test", "rules", "polyrhythm.rules.test.yml")], ids=" ".join
)
def test_configuration_and_rules_are_right(words: tuple[str, ...]) -> None:
    done = subprocess.run(["promtool", *words], cwd=MONITORING, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout


def test_board_and_rules_name_metrics_that_there_are() -> None:
    from polyrhythm.live.metrics import exposition
    from tests.live.test_metrics import FULL

    there = exposition(FULL, 0.0, {"death": 1}).decode()
    for file in ("grafana-board.json", "polyrhythm.rules.yml"):
        text = (MONITORING / file).read_text(encoding="utf-8")
        named = set(re.findall(r"polyrhythm_[a-z_]+", text))
        assert named
        assert {name for name in named if name not in there} == set()
    board = json.loads((MONITORING / "grafana-board.json").read_text(encoding="utf-8"))
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"]) > 10


def asked_by_the_board() -> list[str]:
    """What its panels ask of a Prometheus, about every instance."""
    board = json.loads((MONITORING / "grafana-board.json").read_text(encoding="utf-8"))
    targets = (target["expr"] for panel in board["panels"] for target in panel.get("targets", ()))
    return [expression.replace("$instance", ".*") for expression in targets]


@contextmanager
def prometheus(folder: Path, target: str, rule: str) -> Iterator[str]:
    """Address of a Prometheus that scrapes the target, with one rule beside ours."""
    scrape = {"job_name": "polyrhythm", "static_configs": [{"targets": [target]}]}
    rules = folder / "quick.rules.yml"
    rules.write_text(json.dumps({"groups": [{"name": "quick", "rules": [{"alert": "Quick", "expr": rule}]}]}))
    config = folder / "prometheus.yml"
    every = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    files = [str(rules), str(MONITORING / "polyrhythm.rules.yml")]
    config.write_text(json.dumps({"global": every, "rule_files": files, "scrape_configs": [scrape]}))
    words = ("--web.listen-address=127.0.0.1:0", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}")
    process = subprocess.Popen(["prometheus", *words], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        address = next(found[1] for line in process.stderr if (found := re.search(r"Listening.*address=(\S+)", line)))
        yield f"http://{address}/api/v1"
    finally:
        process.kill()
        process.communicate()


def until(url: str, holds: Any) -> Any:
    """The data of an answer of Prometheus that is like this."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        status, text = fetch(url)  # it is busy with its start for a while
        data = json.loads(text)["data"] if status == 200 else None
        if data and holds(data):
            return data
        time.sleep(0.2)
    raise AssertionError(f"{url} has {data} after {LIMIT_S:g} s")


def test_a_job_is_scraped_and_an_alert_fires(tmp_path: Path) -> None:
    with followed(tmp_path, "--policy", "asp", "--metrics-port", "0") as job:
        target = job.metrics.split("/")[2]
        with prometheus(tmp_path, target, 'polyrhythm_policy_info{policy="asp"} == 1') as api:
            until(
                f"{api}/query?query=sum(polyrhythm_steps_total)",
                lambda d: d["result"] and d["result"][0]["value"][1] != "0",
            )
            fired = until(f"{api}/alerts", lambda d: d["alerts"] and d["alerts"][0]["state"] == "firing")
            assert fired["alerts"][0]["labels"]["alertname"] == "Quick"
            rules = json.loads(fetch(f"{api}/rules")[1])["data"]["groups"]
            assert {group["name"] for group in rules} == {"quick", "polyrhythm"}
            assert all(rule["health"] != "err" for group in rules for rule in group["rules"])
            for expression in asked_by_the_board():
                status, text = fetch(f"{api}/query?{urlencode({'query': expression})}")
                assert status == 200, text
        said = job.end()
        assert job.process.returncode == 0, said
