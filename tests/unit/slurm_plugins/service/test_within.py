"""Waiting with a time limit: what is told to end does end, whenever it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from slurm_plugins.service.within import is_set_within, within

LONG = 3600.0


@pytest.mark.parametrize("turns", range(8))
def test_a_loop_that_is_told_to_end_as_its_news_come_ends(turns: int) -> None:
    async def looping(news: asyncio.Event) -> None:
        while True:
            news.clear()
            await is_set_within(news, LONG)

    async def run() -> bool:
        news = asyncio.Event()
        task = asyncio.ensure_future(looping(news))
        await some(5)
        news.set()
        await some(turns)
        task.cancel()
        await some(20)
        ended = task.cancelled()
        task.cancel()
        return ended

    assert asyncio.run(run())


@pytest.mark.parametrize("turns", range(8))
def test_so_does_one_that_waits_for_an_answer(turns: int) -> None:
    async def run() -> bool:
        answer = asyncio.get_running_loop().create_future()

        async def ask() -> None:
            await within(asyncio.shield(answer), LONG)
            await asyncio.Event().wait()

        task = asyncio.ensure_future(ask())
        await some(5)
        answer.set_result(1)
        await some(turns)
        task.cancel()
        await some(20)
        return task.cancelled()

    assert asyncio.run(run())


async def some(turns: int) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


def test_what_takes_too_long_is_cancelled_and_has_ended() -> None:
    async def run() -> list[str]:
        said = []

        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                said.append("ended")

        with pytest.raises(asyncio.TimeoutError):
            await within(work(), 0.01)
        said.append("told")
        return said

    assert asyncio.run(run()) == ["ended", "told"]


def test_work_is_cancelled_with_its_waiter() -> None:
    async def run() -> bool:
        work = asyncio.ensure_future(asyncio.sleep(LONG))
        waiter = asyncio.ensure_future(within(work, LONG))
        await some(3)
        waiter.cancel()
        await some(5)
        return work.cancelled() and waiter.cancelled()

    assert asyncio.run(run())


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_no_time_is_a_time_limit_too(seconds: float) -> None:
    async def run() -> tuple[bool, bool]:
        event = asyncio.Event()
        never = await is_set_within(event, seconds)
        event.set()
        return never, await is_set_within(event, seconds)

    assert asyncio.run(run()) == (False, True)


@pytest.mark.parametrize("wait", [within, asyncio.wait_for])
def test_values_and_errors_come_as_from_the_standard_library(
    wait: Callable[[Awaitable[int], float], Awaitable[int]],
) -> None:
    async def fails() -> int:
        raise LookupError

    async def gives() -> int:
        return 3

    async def run() -> int:
        with pytest.raises(LookupError):
            await wait(fails(), LONG)
        return await wait(gives(), LONG)

    assert asyncio.run(run()) == 3
