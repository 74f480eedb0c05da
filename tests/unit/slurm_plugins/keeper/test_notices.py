"""Mail about what followed failures: off unless the site wants it, and once a decision."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from profiler.resubmissions import Resubmission
from site_configs.site import parse_site
from site_configs.site_model import Receipt, Resubmit, Site
from slurm_plugins.service.keeper.notices import Notices
from tests.unit.slurm_plugins.keeper.again import NOW, Again, a_failed_job
from tests.unit.slurm_plugins.keeper.mailserver import MailServer, mail_server

SITE = parse_site('cluster = "lab"\n[policy]\nmode = "enforce"\n')


@pytest.fixture
def server() -> Iterator[MailServer]:
    with mail_server() as found:
        yield found


@pytest.fixture
def again(tmp_path: Path) -> Iterator[Again]:
    one = Again(tmp_path, a_failed_job(), a_failed_job(9))
    yield one
    one.close()


def notices(again: Again, server: MailServer, *, wanted: bool = True) -> Notices:
    receipt = Receipt(mail_server=server.address, mail_domain="example.org", mail_from="gsub@example.org")
    site: Site = replace(SITE, receipt=receipt, resubmit=Resubmit(mail=wanted))
    return Notices(site, again.folder / "notices.json")


def text(server: MailServer, place: int = -1) -> str:
    return str(server.took[place][1].get_content())


def test_what_is_tried_again_is_told_once(again: Again, server: MailServer) -> None:
    one = notices(again, server)
    again.fail(8, "core_dump")
    again.settle()
    one.decided(again.told)
    assert one.run_once(again.store, NOW + 60) == 1
    ((address, message),) = server.took
    assert address == "ada@example.org" and message["Subject"] == "[lab] job 8 is tried again: train"
    assert again.row().why in " ".join(text(server).split()) and "gsub why 8" in text(server)
    one.decided(again.told)
    assert one.run_once(again.store, NOW + 3600) == 0, "once a decision"
    assert notices(again, server).run_once(again.store, NOW + 3600) == 0, "over restarts too"


def test_several_are_one_mail_with_what_to_type(again: Again, server: MailServer) -> None:
    one = notices(again, server)
    del again.world.slurm.known_jobs["9"]
    again.fail(8, "core_dump")
    again.fail(9, "core_dump")
    again.settle()
    one.decided(again.told)
    assert one.run_once(again.store, NOW + 60) == 1
    assert server.took[0][1]["Subject"] == "[lab] 2 jobs have failed"
    assert "gsub resubmit 9" in text(server) and "job 8 (core_dump)" in text(server)


def test_two_users_have_a_mail_each(again: Again, server: MailServer) -> None:
    one = notices(again, server)
    again.fail(8, "core_dump")
    again.fail(9, "core_dump", uid=2000, user="bob")
    again.settle()
    one.decided(again.told)
    assert one.run_once(again.store, NOW + 60) == 2
    assert sorted(address for address, _ in server.took) == ["ada@example.org", "bob@example.org"]
    by_user = {address: str(message.get_content()) for address, message in server.took}
    assert "job 9" not in by_user["ada@example.org"] and "job 8" not in by_user["bob@example.org"]


@pytest.mark.parametrize("stop", ["never", "off", "mode", "moved_on", "confidence"])
def test_of_what_was_not_to_be_done_nothing_is_told(again: Again, server: MailServer, stop: Any) -> None:
    one = notices(again, server)
    again.fail(8, "core_dump")
    again.settle()
    row: Resubmission = msgspec.structs.replace(again.row(), state="stopped", stop=stop)
    one.decided([row])
    assert one.waiting == 0


def test_a_site_that_does_not_want_it_sends_none(again: Again, server: MailServer) -> None:
    one = notices(again, server, wanted=False)
    again.fail(8, "core_dump")
    again.settle()
    one.decided(again.told)
    assert not one.on and one.run_once(again.store, NOW + 60) == 0 and server.took == []


def test_names_are_kept_on_one_line(again: Again, server: MailServer) -> None:
    one = notices(again, server)
    again.fail(8, "core_dump", name="a\r\nBcc: eve@example.org\x1b[31m")
    again.settle()
    one.decided(again.told)
    assert one.run_once(again.store, NOW + 60) == 1
    ((_, message),) = server.took
    assert message["Bcc"] is None and "\x1b" not in str(message["Subject"])
