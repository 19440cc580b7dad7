import pytest

from polyrhythm.rl.instances import FAMILIES, Family


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Family:
    """Jobs of a few dozen mini-batches."""
    family = Family("tiny", hidden=(0,), learning_rate=0.6, target=0.6, workers=(3,))
    monkeypatch.setitem(FAMILIES, family.name, family)
    return family
