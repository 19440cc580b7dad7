"""Tells Kubeflow's TrainJob how far the job is (KEP-2779), where its controller has set the variables for that.

https://github.com/kubeflow/trainer/tree/master/docs/proposals/2779-trainjob-progress
"""

import http.client
import math
import os
import ssl
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from polyrhythm.lines import say
from polyrhythm.live.model import JobView
from polyrhythm.runtime.launch.watch import TRAINJOB_URL
from polyrhythm.runtime.wire.connection import is_loopback
from polyrhythm.runtime.wire.control_protocol import FINISHED, JobEvent, Status

CA_CERT = "KUBEFLOW_TRAINER_STATUS_CA_CERT"
TOKEN = "KUBEFLOW_TRAINER_STATUS_TOKEN"
"""Variables with the paths of the controller's certificate and of this pod's token, which is renewed now and then."""

PERIOD_S = 5.0
"""Between two messages: the controller limits their rate."""

PATIENCE_S = 5.0
"""How long one may take."""

MOST_SAID = 200
"""Characters of what a server may have said."""


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """Makes an error of a redirect: urllib would take the token along to wherever it leads."""

    def redirect_request(self, *_: object) -> None:
        return None


class TrainJobStatus:
    """Sends the latest state from a thread of its own; what cannot be sent is said once, and tried again."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._url, self._token = environment[TRAINJOB_URL], environment.get(TOKEN, "")
        self._certificate = environment.get(CA_CERT) or None
        self._latest: JobView | None = None
        self._over, self._failed = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="polyrhythm-trainjob", daemon=True)
        self._thread.start()

    def see(self, status: Status, view: JobView, events: Sequence[JobEvent]) -> None:
        self._latest = view

    def close(self) -> None:
        """Send the last state."""
        self._over.set()
        self._thread.join(2 * PATIENCE_S)

    def _run(self) -> None:
        while not self._over.wait(PERIOD_S):
            self._send()
        self._send()

    def _send(self) -> None:
        view, self._latest = self._latest, None
        if view is None:
            return
        try:
            self._post(msgspec.json.encode({"trainerStatus": trainer_status(view, time.time())}))
        except (OSError, ValueError, http.client.HTTPException) as error:
            if not self._failed:
                self._failed = True
                said = " ".join(str(error).split())[:MOST_SAID]
                say(f"TrainJob status at {self._url}: {said or type(error).__name__}")

    def _post(self, body: bytes) -> None:
        parts = urlsplit(self._url)
        if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname or "")):
            raise ValueError("it is not https, and nothing is sent")
        headers = {"Authorization": f"Bearer {read_token(self._token)}", "Content-Type": "application/json"}
        with opener(parts.scheme, self._certificate).open(
            urllib.request.Request(self._url, body, headers), timeout=PATIENCE_S
        ):
            pass


def read_token(path: str) -> str:
    """The token in a file; `http.client` would print one that is no header in its error."""
    with open(path, encoding="utf-8") as file:
        token = file.read().strip()
    if not (token.isascii() and token.isprintable()):
        raise ValueError(f"{path} ({TOKEN}) is no token: one line of ASCII characters")
    return token


def opener(scheme: str, certificate: str | None) -> urllib.request.OpenerDirector:
    """Follows no redirect, and sends nothing that is not encrypted to a proxy."""
    if scheme == "http":
        return urllib.request.build_opener(NoRedirect, urllib.request.ProxyHandler({}))
    context = ssl.create_default_context(cafile=certificate)
    return urllib.request.build_opener(NoRedirect, urllib.request.HTTPSHandler(context=context))


def trainer_status(view: JobView, at_s: float) -> dict[str, Any]:
    """The job as the controller wants it: whole numbers, and metrics as text.

    Args:
        view: of the job.
        at_s: when that was, in seconds since 1970.
    """
    finished = view.ended == FINISHED
    known: dict[str, float | None] = {"loss": view.loss, **view.figures, "samples_per_s": view.samples_per_s}
    metrics = {name: f"{value:.6g}" for name, value in known.items() if value is not None}
    metrics |= {"currentEpoch": str(view.epoch + 1), "workers": str(len(view.workers)), "policy": view.policy}
    if view.epochs:
        metrics["totalEpochs"] = str(view.epochs)
    status: dict[str, Any] = {
        "metrics": [{"name": name, "value": value} for name, value in metrics.items()],
        "lastUpdatedTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at_s)),
    }
    if finished or view.share is not None:
        status["progressPercentage"] = 100 if finished else math.floor(100 * (view.share or 0.0))
    if finished or view.remaining_s is not None:
        status["estimatedRemainingSeconds"] = 0 if finished else min(2**31 - 1, math.ceil(view.remaining_s or 0.0))
    return status
