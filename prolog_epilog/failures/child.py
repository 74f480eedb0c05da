"""The process that reads an ended job's logs, started by the agent as root: it becomes the job's user before it looks.

It reads one line, a `Question`; loads the signatures and writes an empty line; gives up all that is root's; reads and
classifies; writes one line, a `Finding`; and ends. What it cannot see it says in `unseen`. It opens nothing of the
user's as root. From the moment it reads, nobody has to believe it: what a log can make of it is an answer that is no
answer, or a wrong finding about its own writer's job.
"""

from __future__ import annotations

import codecs
import errno
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from profiler.findings import Evidence, Finding
from profiler.logs import one_line
from prolog_epilog.failures import privileges
from prolog_epilog.failures.logfiles import OTHERS, Surroundings, named_in
from prolog_epilog.failures.question import Question
from prolog_epilog.failures.taxonomy import NO_SIGNATURE

if TYPE_CHECKING:
    from prolog_epilog.failures.reading import Unseen
    from prolog_epilog.failures.text import LogText

__all__ = ["Reader", "investigate", "main"]

HEAD: Final = 4 << 20
TAIL: Final = 12 << 20
"""Bytes that are read of each end of the job's own output and error streams."""
_OF_OTHERS: Final = 16 << 20  # bytes that are read of all other logs together
_LEAST_OF_OTHERS: Final = 128 << 10  # of each
_NAMED_WITHIN: Final = 64 << 10  # bytes of each end in which names of other logs are looked for
_SECONDS: Final = 6.0  # for reading: the rest of the agent's deadline is for classifying
_CODECS: Final = ("latin-1", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")
_OFTEN_OWN: Final = ("/tmp/", "/var/tmp/", "/dev/shm/")  # noqa: S108 - where a job may have a folder of its own
_LATE: Final = 60.0  # seconds after a job's end from which on a log is not changed by that job
_MOST_QUESTION: Final = 1 << 20
_MOST_UNSEEN: Final = 32
_WIDEST: Final = 600

Classify: TypeAlias = "Callable[[Sequence[LogText]], Finding]"


def investigate(question: Question, classify: Classify) -> Finding:
    """Read the logs of a question with the rights that we have, and say what they tell."""
    reader = Reader(question)
    reader.read_all()
    try:
        finding = classify(reader.logs)
    except MemoryError:
        reader.unseen.append("the logs were too much to be classified in the memory there is for it")
        finding = Finding(NO_SIGNATURE)
    if question.not_begun and not reader.logs:
        finding = next(filter(None, map(_no_place, question.files)), finding)
    unseen = _sentences((*question.unseen, *reader.unseen, *finding.unseen))
    remarks = _sentences((*finding.remarks, *reader.remarks))[:16]
    return msgspec.structs.replace(finding, unseen=unseen, remarks=remarks)


@dataclass(slots=True)
class Reader:
    """Reads a job's logs, within bounds: `logs` is what there is, `unseen` what there is not."""

    question: Question
    logs: list[LogText] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    _files: set[tuple[int, int]] = field(default_factory=set)  # by device and inode: each is read once
    _until: float = 0.0

    def read_all(self) -> None:
        """The job's own streams, then what they name, then what lies beside them."""
        asked = self.question
        self._until = time.monotonic() + _SECONDS
        around = Surroundings(asked.uid, asked.ids, asked.since)
        folders, named = self._read_own()
        # what cannot be said in a finding is not read
        others = [path for path in named if path.isprintable() and around.counts(path)]
        for folder in folders:
            others += around.below(folder)
        for path in asked.files:
            others += around.beside(path)
        self._read_others([path for path in dict.fromkeys(others) if path not in asked.files])
        self.unseen += around.unseen

    def _read_own(self) -> tuple[list[str], list[str]]:
        folders: list[str] = []
        files: list[str] = []
        for path in dict.fromkeys(self.question.files):
            log = self._read(path, HEAD, TAIL, follow_links=True)
            if log is None:
                continue
            self._mark_late(log)
            data = bytes(log.data[:_NAMED_WITHIN]) + b"\n" + bytes(log.data[-_NAMED_WITHIN:])
            more_folders, more_files = named_in(data)
            base = self.question.work_dir or os.path.dirname(path)  # noqa: PTH120 - a user's text
            folders += [os.path.join(base, folder) for folder in more_folders]  # noqa: PTH118
            files += more_files
        return list(dict.fromkeys(folders)), list(dict.fromkeys(files))

    def _read_others(self, paths: list[str]) -> None:
        if len(paths) > OTHERS:
            self.unseen.append(f"of {len(paths)} logs of its other processes {OTHERS} were read")
        paths = paths[:OTHERS]
        each = max(_OF_OTHERS // max(len(paths), 1), _LEAST_OF_OTHERS)
        for path in paths:
            self._read(path, min(each // 4, HEAD), min(each - each // 4, TAIL), follow_links=False)

    def _read(self, path: str, head: int, tail: int, *, follow_links: bool) -> LogText | None:
        from prolog_epilog.failures.reading import Unseen, read_log

        if (left := self._until - time.monotonic()) <= 0:
            self.unseen.append(f"{path} was not read: the time for reading was up")
            return None
        try:
            state = Path(path).stat()
        except (OSError, ValueError):
            pass  # `read_log` says why
        else:
            if (key := (state.st_dev, state.st_ino)) in self._files:
                return None
            self._files.add(key)
        try:
            log = read_log(path, head=head, tail=tail, seconds=left, follow_links=follow_links)
        except MemoryError:
            self.unseen.append(f"{path} was not read: it needs more memory than there is for it")
            return None
        if isinstance(log, Unseen):
            self.unseen.append(f"{log}{_hint(log)}")
            return None
        self.logs.append(log)
        return log

    def _mark_late(self, log: LogText) -> None:
        """A requeued job's next attempt may write to the same file."""
        late = log.base - self.question.until
        if late > _LATE:
            self.remarks.append(
                f"{log.name} was changed {late:.0f} s after the end: that may be of a later attempt."
            )


def _no_place(path: str) -> Finding | None:
    """Why Slurm, which opens an output as the user, too, could not open this one; None: that cannot be seen."""
    from prolog_epilog.failures.classify import fingerprint

    folder = os.path.dirname(path)  # noqa: PTH120 - a user's text
    error = _trouble(path)
    if error == errno.ENOENT and _trouble(folder) == errno.ENOENT:
        reason, said = "output_error", "does not exist"
        advice = "Make the folder before the job is submitted: this Slurm makes none."
    elif error == errno.EACCES or (error == errno.ENOENT and not os.access(folder, os.W_OK | os.X_OK)):
        reason, said = "permission_error", "is closed to its user"
        advice = "Give a file in a folder of your own as --output, or have this one opened to you."
    else:
        return None
    said = one_line(f"The folder {folder} {said}: Slurm could not open the output there.", _WIDEST)
    evidence = Evidence(said, one_line(path, 4096))
    mark = fingerprint(reason, said)
    return Finding(reason, 0.9, "explicit", (evidence,), advice, "slurm-output-folder", mark)


def _trouble(path: str) -> int | None:
    """What is wrong with a path, by errno; None if it leads somewhere."""
    try:
        os.stat(path)  # noqa: PTH116 - a user's text
    except OSError as error:
        return error.errno
    except ValueError:  # a NUL in it
        return errno.EINVAL
    return None


def _hint(log: Unseen) -> str:
    """Why a log that is not there for us may have been there for the job."""
    own = log.path.startswith(_OFTEN_OWN)
    return "; a job may have a folder of its own in that place" if own and "not there" in log.why else ""


def main() -> None:
    """Answer one question on standard input and output."""
    answers = os.fdopen(1, "wb", closefd=False)
    sys.stdout = sys.stderr  # others' chatter is no answer
    try:
        privileges.die_with(os.getppid())
        question = msgspec.json.decode(sys.stdin.buffer.readline(_MOST_QUESTION), type=Question)
        privileges.bound()
        unseen = [*question.unseen]
        classify = _classifier(question, unseen)
        question = msgspec.structs.replace(question, unseen=tuple(unseen))
        answers.write(b"\n")
        answers.flush()
        answer = msgspec.json.encode(_as_user(question, classify))
    except privileges.PrivilegeError as error:
        answer = _nothing(f"the logs were not read: {error}")
    except Exception as error:  # a fault of ours: its place is in the agent's journal, by way of the finding
        answer = _nothing(f"the logs were not classified: {type(error).__name__} in the reader")
    answers.write(answer + b"\n")
    answers.flush()


def _classifier(question: Question, unseen: list[str]) -> Classify:
    """All that is to be imported and loaded, while we may read it: a site's signatures may be root's alone."""
    from prolog_epilog.failures import reading  # noqa: F401 - loaded now
    from prolog_epilog.failures.classify import classify
    from prolog_epilog.failures.signature import SignatureError, load

    # Python imports each when it is first used, and may itself lie where only root gets
    for codec in _CODECS:
        codecs.lookup(codec)
    try:
        rules = load(question.signatures)
    except (SignatureError, OSError) as error:  # changed since it was checked, or not on this node
        rules = load()
        unseen.append(f"the site's own signatures were not used: {error}".partition("\n")[0])
    # The logs' own word: what Slurm knows of the end the service joins with it, when Slurm has made up its mind
    return lambda logs: classify(logs, rules=rules)


def _as_user(question: Question, classify: Classify) -> Finding:
    gid, groups = privileges.groups_of(question.uid, question.gid)
    privileges.close_others()
    privileges.become(question.uid, gid, groups)
    return investigate(question, classify)


def _nothing(why: str) -> bytes:
    return msgspec.json.encode(Finding(NO_SIGNATURE, unseen=_sentences((why,))))


def _sentences(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(one_line(each, _WIDEST) for each in dict.fromkeys(texts))[:_MOST_UNSEEN]


if __name__ == "__main__":
    main()
