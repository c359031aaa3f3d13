"""Shared by all tests: tiny models on one thread, and the real embedded pair where a test asks for it."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

# A shared machine stalls now and then; how long an example took says nothing about the code.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")

THREADS = torch.get_num_threads()


@pytest.fixture(autouse=True)
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """Starting a second thread costs more than a tiny model's whole pass."""
    torch.set_num_threads(THREADS if request.node.get_closest_marker("model") else 1)
    yield
    torch.set_num_threads(THREADS)
