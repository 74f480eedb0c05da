"""The fake client keeps the contract of all clients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.unit.slurm_plugins.client.contract import Bench, Contract
from tests.unit.slurm_plugins.client.fake import FakeClient


class TestFake(Contract):
    @pytest.fixture
    def bench(self) -> Bench:
        client = FakeClient()

        @contextmanager
        def down(daemon: str) -> Iterator[None]:
            client.down.add(daemon)
            yield
            client.down.discard(daemon)

        return Bench(client, client.user, "/home/user1", client.finish, down)
