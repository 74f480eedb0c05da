"""The paths that an error message names: only where its form says for certain where the path begins and ends."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import Final

from prolog_epilog.failures.mask import MASK

__all__ = ["absolute", "named", "word_of"]

# Up to the quote that ends it, and that is the last one: neither Python nor coreutils put the same quote within
_QUOTED: Final = r"(?P<quote>['\"])(?P<path>(?:(?!(?P=quote))[^\\])+)(?P=quote)(?=$|[\s,;:)\]}])"
_FORMS: Final = (
    # Python: [Errno 2] No such file or directory: 'data/x.csv'
    re.compile(r"(?:No such file or directory|Is a directory|Permission denied|No space left on device|Not a directory"
               r"|Disk quota exceeded|Read-only file system): " + _QUOTED),
    # coreutils: cannot open 'x' for reading: No such file or directory
    re.compile(r"cannot (?:open|access|stat|create (?:directory|regular file)|touch) " + _QUOTED),
    re.compile(r"cannot (?:open|access|stat|create (?:directory|regular file)|touch) ‘(?P<path>[^‘’]+)’(?=$|[\s,;:])"),
    # bash: slurm_script: line 12: data/x.csv: No such file or directory; cat: data/x.csv: No such file or directory
    re.compile(r"(?:line \d+|[\w.+-]*(?:sh|cat|cp|mv|ls|tar|unzip|head|tail)): (?:(?:line )?\d+: )?"
               r"(?P<path>[^\s:'\"][^:'\"]*): (?:No such file or directory|Permission denied|Is a directory"
               r"|No space left on device|Disk quota exceeded|bad interpreter|not found$)"),
    # python3: can't open file '/home/ada/tran.py': [Errno 2] No such file or directory
    re.compile(r"can't open file " + _QUOTED),
)  # fmt: skip
_LETTER: Final = r"[\w./~+@%-]"
_ODD: Final = re.compile(r"[\x00-\x1f\x7f]|://")


def named(evidence: Sequence[str]) -> Iterator[str]:
    """The paths in lines of evidence, as they stand there, the deciding line's first, each once.

    >>> list(named(["FileNotFoundError: [Errno 2] No such file or directory: 'data/x.csv'"]))
    ['data/x.csv']
    >>> list(named(["slurm_script: line 3: ./run.sh: Permission denied", "cat: a b.txt: No such file or directory"]))
    ['./run.sh', 'a b.txt']
    """
    seen = set()
    for line in evidence:
        for form in _FORMS:
            found = form.search(line)
            if found is None:
                continue
            path = found["path"].strip()
            if path and path not in seen and MASK not in path and not _ODD.search(path):
                seen.add(path)
                yield path
            break


def absolute(path: str, folder: str) -> str:
    """The path as a job sees it that runs in `folder`; "~" is nothing that a program understands."""
    return os.path.normpath(os.path.join(folder, path))  # noqa: PTH118 - text as the job wrote it


def word_of(path: str) -> re.Pattern[str]:
    """Finds the path where it stands by itself in a text, and not as a part of a longer one.

    >>> word_of("x.csv").sub("y.csv", "cat x.csv data/x.csv x.csv2 --in=x.csv")
    'cat y.csv data/x.csv x.csv2 --in=y.csv'
    """
    return re.compile(rf"(?<!{_LETTER}){re.escape(path)}(?!{_LETTER})")
