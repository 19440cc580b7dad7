import socket
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from polyrhythm.training.data.tasks import download
from polyrhythm.training.data.tasks.download import download_if_reached, reached


@pytest.fixture(autouse=True)
def switch(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Of the client."""
    client = SimpleNamespace(HF_HUB_OFFLINE=False)
    monkeypatch.setitem(sys.modules, "huggingface_hub.constants", client)
    monkeypatch.delitem(sys.modules, "datasets.config", raising=False)
    monkeypatch.setattr(download, "getproxies", dict)
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    return client


@pytest.mark.parametrize("there", [True, False])
def test_nothing_is_asked_of_who_cannot_be_reached(
    there: bool, switch: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "reached", lambda: there)
    with download_if_reached():
        assert switch.HF_HUB_OFFLINE is not there
    assert switch.HF_HUB_OFFLINE is False


def test_data_come_from_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    def connect(address: tuple[str, int], timeout: float) -> Any:
        asked.append(address)
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", connect)
    assert not reached()
    for mirror in ("http://mirror.example:8080", "http://mirror.example"):
        monkeypatch.setenv("HF_ENDPOINT", mirror)
        assert not reached()
    assert asked == [("huggingface.co", 443), ("mirror.example", 8080), ("mirror.example", 80)]


def test_what_is_behind_a_proxy_the_client_finds_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "getproxies", lambda: {"https": "http://proxy.example"})
    assert reached()


def test_who_listens_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{listener.getsockname()[1]}")
        assert reached()
