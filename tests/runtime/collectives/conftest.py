"""Where members meet."""

import pytest
from torch._C._distributed_c10d import TCPStore


@pytest.fixture
def store() -> TCPStore:
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
