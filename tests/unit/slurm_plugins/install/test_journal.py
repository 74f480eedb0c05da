"""The journal: what it remembers, and that it is whole whenever we are killed."""

from __future__ import annotations

from pathlib import Path

from slurm_plugins.install.journal import ABSENT, Journal, State, followed, state_of
from tests.unit.slurm_plugins.install.fakes import FakeHost

KEEP = Path("/var/lib/gsub-install")
CONF = Path("/etc/slurm.conf")


def journal(host: FakeHost) -> Journal:
    return Journal(host, KEEP, lambda: 1.5)


def test_what_was_first_is_the_original():
    host = FakeHost()
    host.put(CONF, b"one")
    first = journal(host)
    for content in (b"two", b"three"):
        before = first.keep(CONF)
        host.put(CONF, content)
        first.add("doing", "change", path=str(CONF), before=before, after=state_of(host, CONF))
        first.add("done", "change")
    again = journal(host)
    original = again.originals()[CONF]
    assert again.copy(original) == b"one"
    assert again.is_ours(CONF, state_of(host, CONF))
    host.put(CONF, b"somebody else's")
    assert not again.is_ours(CONF, state_of(host, CONF))


def test_what_was_changed_together_is_open_until_it_is_proven_or_taken_back():
    host = FakeHost()
    book = journal(host)
    for closing in ("proven", "taken back"):
        book.add("doing", "change", path=str(CONF), before=ABSENT, after=State("file", "a"), together=True)
        book.add("doing", "apart", path="/b", before=ABSENT, after=State("file", "b"))
        assert list(journal(host).unproven()) == [CONF]
        book.add(closing)
        assert not journal(host).unproven()


def test_a_line_of_a_later_version_is_kept_and_passed_over():
    host = FakeHost()
    host.folder("/var/lib")
    book = journal(host)
    book.add("begun", "install", version="1")
    text = host.read(KEEP / "journal.jsonl") or b""
    host.put(KEEP / "journal.jsonl", b'{"event":"dreamt of"}\n' + text)
    again = journal(host)
    assert [entry.event for entry in again.entries] == ["begun"]
    again.add("done")
    assert (host.read(KEEP / "journal.jsonl") or b"").startswith(b'{"event":"dreamt of"}\n')


def test_a_copy_that_was_changed_is_no_copy():
    host = FakeHost()
    host.put(CONF, b"one")
    state = journal(host).keep(CONF)
    host.put(KEEP / "copies" / state.sha, b"another")
    assert journal(host).copy(state) is None


def test_it_is_roots_alone():
    host = FakeHost()
    host.put(CONF, b"one")
    book = journal(host)
    book.keep(CONF)
    book.add("begun", "install")
    tree = host.tree()
    assert tree[str(KEEP)][2] == tree[f"{KEEP}/copies"][2] == 0o700
    assert {
        mode for path, (kind, _, mode, *_) in tree.items() if path.startswith(str(KEEP)) and kind == "file"
    } == {0o600}


def test_links_are_followed_to_what_a_write_would_change():
    host = FakeHost()
    host.put("/shared/slurm.conf", b"x", mode=0o640)
    host.put_link(CONF, "../shared/slurm.conf")
    host.put_link("/a", "b")
    host.put_link("/b", "a")
    assert state_of(host, CONF).mode == 0o640
    assert state_of(host, CONF, follow=False) == State("link", target="../shared/slurm.conf")
    assert followed(host, Path("/a")) == Path("/a")
