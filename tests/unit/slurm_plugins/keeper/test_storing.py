"""The store off the event loop: what hangs is seen, what fails is said once."""

from __future__ import annotations

import asyncio
import threading

import pytest

from profiler.store.errors import StoreError
from slurm_plugins.service.keeper import storing
from slurm_plugins.service.keeper.counts import Counts
from slurm_plugins.service.keeper.refusal import RefusedError
from slurm_plugins.service.keeper.storing import Storing
from tests.unit.slurm_plugins.keeper.door import PATIENCE
from tests.waiting import wait_until


def down() -> None:
    raise StoreError("unreachable", "Records cannot be written.", "as the test wants", "")


def test_a_write_that_hangs_stops_the_heart(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(storing, "_STUCK", 0.05)
    one, free = Storing(Counts()), threading.Event()

    async def hang() -> None:
        assert one.well
        write = asyncio.ensure_future(one.write("test", lambda: free.wait(PATIENCE)))
        await asyncio.to_thread(wait_until, lambda: not one.well, PATIENCE, "the heart's stop", 0.01)
        free.set()
        await write
        assert one.well

    asyncio.run(asyncio.wait_for(hang(), PATIENCE))
    one.close()


def test_trouble_is_said_once_and_its_end_too(caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO")
    one = Storing(Counts())

    async def fail() -> None:
        for _ in range(5):
            with pytest.raises(StoreError):
                await one.write("take", down)
        assert one.failing
        await one.write("take", lambda: None)
        assert not one.failing

    asyncio.run(fail())
    one.close()
    assert caplog.text.count("the store fails") == 1 and caplog.text.count("answers again") == 1


def test_a_read_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(storing, "_READ_SECONDS", 0.05)
    one, free = Storing(Counts()), threading.Event()

    async def slow() -> None:
        with pytest.raises(RefusedError) as raised:
            await one.read(lambda: free.wait(PATIENCE))
        assert raised.value.status == 503
        free.set()

    asyncio.run(slow())
    one.close()


def test_one_who_asks_without_end_leaves_room_for_the_others():
    one, free = Storing(Counts()), threading.Event()

    async def crowd() -> None:
        reads = [asyncio.ensure_future(one.read(lambda: free.wait(PATIENCE), 1000)) for _ in range(100)]
        await asyncio.sleep(0)
        other = asyncio.ensure_future(one.read(lambda: "an answer", 1001))
        await asyncio.sleep(0)
        free.set()
        assert await other == "an answer"
        ends = await asyncio.gather(*reads, return_exceptions=True)
        assert [type(end) for end in ends] == [bool] * 8 + [RefusedError] * 92
        assert await one.read(lambda: "again", 1000) == "again"

    asyncio.run(asyncio.wait_for(crowd(), PATIENCE))
    one.close()


@pytest.mark.case("A6")
def test_long_questions_of_one_user_leave_readers_to_the_others():
    one, free = Storing(Counts()), threading.Event()

    async def crowd() -> None:
        reads = [asyncio.ensure_future(one.read(lambda: free.wait(PATIENCE), 1000)) for _ in range(8)]
        await asyncio.sleep(0.05)
        for uid in (1001, 1002, None):
            assert await one.read(lambda: "an answer", uid) == "an answer"
        assert not any(read.done() for read in reads)
        free.set()
        assert all(await asyncio.gather(*reads)) and not one._turns

    asyncio.run(asyncio.wait_for(crowd(), PATIENCE))
    one.close()


def test_before_it_is_open_it_says_so():
    one = Storing(Counts())
    assert not one.ready
    with pytest.raises(RefusedError) as raised:
        _ = one.store
    assert raised.value.status == 503
    one.close()
