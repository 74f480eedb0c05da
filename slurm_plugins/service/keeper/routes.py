"""All that the keeper answers: each question of the table, what nodes and users bring, and what anybody may look at."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from profiler.answers import BadNodes, Sign
from profiler.records import JobEnded, JobFinding, JobStarted
from profiler.store import CursorError
from slurm_plugins.service.keeper.app import Answer, Endpoint, Request
from slurm_plugins.service.keeper.bad_nodes import Assessing
from slurm_plugins.service.keeper.clearing import CLEAR, clearer
from slurm_plugins.service.keeper.collect import Collector, count
from slurm_plugins.service.keeper.counts import Counts
from slurm_plugins.service.keeper.forgetting import FORGET, forgetter
from slurm_plugins.service.keeper.learning import Learning
from slurm_plugins.service.keeper.parameters import read_path, read_query
from slurm_plugins.service.keeper.pending_queue import PendingQueue
from slurm_plugins.service.keeper.points import POINTS, Often, points_taker
from slurm_plugins.service.keeper.questions import NODE, QUESTIONS, Asked, Question
from slurm_plugins.service.keeper.refusal import RefusedError
from slurm_plugins.service.keeper.storing import Storing
from slurm_plugins.service.keeper.whence import ElsewhereError
from slurm_plugins.service.metrics import CONTENT_TYPE

__all__ = ["RECORDS", "endpoints"]

RECORDS: Final = "/v1/records"
_PATIENCE: Final = 6.0
"""Seconds that a batch may wait for its turn: nodes wait 10 s for an answer."""


def endpoints(
    cluster: str,
    storing: Storing,
    collector: Collector,
    counts: Counts,
    *,
    document: Callable[[], str],
    news: Callable[[], object] = lambda: None,
    assessing: Assessing | None = None,
    learning: Learning | None = None,
    pending: Callable[[], PendingQueue | None] = lambda: None,
) -> tuple[Endpoint, ...]:
    """All that the keeper answers.

    `document` makes the OpenAPI document's text; `news` is called when a node has told of a job's start, end, failure;
    `assessing` weighs what speaks against nodes; `learning` makes curves of what runs measured; `pending` has the queue
    of the last look at Slurm.
    """

    def suspected() -> BadNodes:
        return (assessing and assessing.current) or BadNodes()

    asked = (
        Endpoint(
            "GET",
            one.route,
            _asker(
                one,
                cluster,
                storing,
                collector.heard,
                suspected=suspected,
                learning=learning,
                pending=pending,
            ),
        )
        for one in QUESTIONS
    )
    return (
        Endpoint("POST", RECORDS, _taker(storing, collector, counts, news)),
        Endpoint("POST", CLEAR, clearer(assessing, NODE)),
        Endpoint("POST", POINTS, points_taker(cluster, storing, learning, Often())),
        Endpoint("POST", FORGET, forgetter(cluster, storing, learning, Often())),
        *asked,
        Endpoint("GET", "/v1/openapi.json", _page(lambda: (200, document(), _JSON)), open=True),
        Endpoint("GET", "/healthz", _page(lambda: _health(storing)), open=True),
        Endpoint("GET", "/metrics", _page(lambda: (200, counts.registry.text(), CONTENT_TYPE)), open=True),
    )


_JSON: Final = "application/json"


def _asker(
    question: Question,
    cluster: str,
    storing: Storing,
    heard: Mapping[str, Sign],
    *,
    suspected: Callable[[], BadNodes],
    learning: Learning | None,
    pending: Callable[[], PendingQueue | None],
) -> Callable[[Request], Awaitable[Answer]]:
    async def answer(request: Request) -> Answer:
        who = request.proven()
        path = read_path(request.values, question.path)
        query = read_query(request.query, question.query)
        if question.operators and not who.sees_all:
            raise RefusedError(
                403, "this is for operators", "They are named in the site file: operators = [...]."
            )
        asked = Asked(cluster, who, path, query, heard, suspected(), learning, pending())
        if question.settles and learning is not None:
            await learning.settle(who.uid)

        def read() -> bytes:
            try:
                return msgspec.json.encode(question.answer(storing.store, asked))
            except CursorError as error:
                raise RefusedError(400, str(error), "Take `next` of the page before as it is.") from None

        return Answer(200, await storing.read(read, who.uid))

    return answer


def _taker(
    storing: Storing, collector: Collector, counts: Counts, news: Callable[[], object]
) -> Callable[[Request], Awaitable[Answer]]:
    async def answer(request: Request) -> Answer:
        began = time.monotonic()
        if not request.proven().writes:
            raise RefusedError(403, "only root may bring records", "gsub-noded does, on each node.")
        read_query(request.query, ())
        request.want_json("records come", "them")
        try:
            collected = await storing.write(
                "take",
                lambda: collector.collect(request.body, time.time(), request.peer),
                patience=_PATIENCE,
            )
        except ElsewhereError:
            counts.batches.add("other")
            raise
        count(counts, collected, time.time())
        counts.batch_seconds.add(time.monotonic() - began)
        if any(isinstance(record, JobStarted | JobEnded | JobFinding) for record in collected.records):
            news()
        return Answer(200, msgspec.json.encode(collected.taken))

    return answer


def _page(make: Callable[[], tuple[int, str, str]]) -> Callable[[Request], Awaitable[Answer]]:
    async def answer(request: Request) -> Answer:
        read_query(request.query, ())
        status, text, kind = make()
        return Answer(status, text.encode(), kind)

    return answer


def _health(storing: Storing) -> tuple[int, str, str]:
    well = storing.ready and storing.well and not storing.failing
    state = {"ready": storing.ready, "store_ok": well}
    return 200 if well else 503, msgspec.json.encode(state).decode() + "\n", _JSON
