"""What an installation is made of: steps, each a value that says what it does and why. `apply` does them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from slurm_plugins.install.host import Stat

__all__ = [
    "ROOT",
    "Answer",
    "Command",
    "Folder",
    "Owner",
    "Programs",
    "Prove",
    "Put",
    "Reconfigure",
    "Rehearse",
    "Remove",
    "Step",
    "Touch",
    "Wait",
]


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose a file is: a user with its first group, looked up when the step is done; or numbers as they were."""

    user: str = "root"
    numbers: tuple[int, int] | None = None

    @classmethod
    def of(cls, stat: Stat) -> Owner:
        """As the file has it now."""
        return cls("", (stat.uid, stat.gid))

    def __str__(self) -> str:
        return self.user or "as it is"


ROOT: Final = Owner()


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder with this mode and owner; made with its parents where it is not there.

    `exact`: one that is there already is given them, too.
    """

    path: Path
    mode: int
    owner: Owner = ROOT
    why: str = ""
    exact: bool = True

    def line(self) -> str:
        """What is done, on one line."""
        return f"folder {self.path} ({self.mode:04o}, {self.owner})"


@dataclass(frozen=True, slots=True)
class Put:
    """A file with this content, put in place at once.

    Parameters
    ----------
    before: its content when the plan was made; None: there was no file. Another content by now stops the step.
    together: changed together with the others of its kind: when one of them fails, all are taken back.
    shipped: it is gsub's own word for word, not made for this site.
    """

    path: Path
    content: bytes
    mode: int
    owner: Owner = ROOT
    why: str = ""
    before: bytes | None = None
    together: bool = False
    shipped: bool = False

    def line(self) -> str:
        """What is done, on one line."""
        word = "write" if self.before is None else "change" if self.before != self.content else "set right"
        return f"{word} {self.path} ({self.mode:04o}, {self.owner})"


@dataclass(frozen=True, slots=True)
class Touch:
    """A file's time is made a later second than it was: what makes slurmctld load job_submit.lua again."""

    path: Path
    why: str = ""

    def line(self) -> str:
        """What is done, on one line."""
        return f"touch {self.path}"


@dataclass(frozen=True, slots=True)
class Remove:
    """A file, a link, or a folder if it is empty by then."""

    path: Path
    why: str = ""
    folder: bool = False

    def line(self) -> str:
        """What is done, on one line."""
        return f"remove {'folder ' if self.folder else ''}{self.path}"


@dataclass(frozen=True, slots=True)
class Command:
    """A command that changes this machine.

    Parameters
    ----------
    undo: what takes it back, for rollback; empty: nothing does.
    fine: exit codes that are as good as 0, for what may be done already.
    must: whether a failure ends the whole; else it is told.
    """

    argv: tuple[str, ...]
    why: str = ""
    undo: tuple[str, ...] = ()
    fine: tuple[int, ...] = (0,)
    must: bool = True

    def line(self) -> str:
        """What is done, on one line."""
        return f"run {' '.join(self.argv)}"


@dataclass(frozen=True, slots=True)
class Answer:
    """Wait until gsubd says on `host`:`port` that it decides."""

    host: str
    port: int
    why: str = ""

    def line(self) -> str:
        """What is done, on one line."""
        return f"wait until gsubd answers on {self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Programs:
    """The programs of this version are started once, to see that they can be; nothing is changed by it."""

    paths: tuple[Path, ...]
    why: str = ""

    def line(self) -> str:
        """What is done, on one line."""
        return f"try {', '.join(path.name for path in self.paths)} of this version"


@dataclass(frozen=True, slots=True)
class Rehearse:
    """A slurmctld of its own loads what slurmctld would, before slurmctld does.

    Parameters
    ----------
    plugins: JobSubmitPlugins as it will be.
    job_submit: job_submit.lua as it will be.
    shim: the shim's files, by name, as they will be.
    """

    plugins: str
    job_submit: bytes
    shim: Mapping[str, bytes] = field(hash=False)
    why: str = ""

    def line(self) -> str:
        """What is done, on one line."""
        return "rehearse job_submit.lua in a slurmctld apart"


@dataclass(frozen=True, slots=True)
class Reconfigure:
    """`scontrol reconfigure`."""

    why: str = ""

    def line(self) -> str:
        """What is done, on one line."""
        return "run scontrol reconfigure"


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until every slurmd has the configuration that slurmctld has, as long as that takes at a site."""

    seconds: float
    why: str = ""

    def line(self) -> str:
        """What is done, on one line."""
        return f"wait {self.seconds:g} s for the nodes' slurmd"


@dataclass(frozen=True, slots=True)
class Prove:
    """slurmctld answers, has the configuration, and treats a submission as before.

    Parameters
    ----------
    shows: keys of `scontrol show config` -> a word that is to be in their value.
    hides: words that no value may have.
    shim: its log is to be without a complaint of the shim's.
    """

    shows: tuple[tuple[str, str], ...] = ()
    hides: tuple[str, ...] = ()
    shim: bool = True
    why: str = ""

    def line(self) -> str:
        """What is done, on one line."""
        return "prove: scontrol ping, scontrol show config, sbatch --test-only, slurmctld's log"


Step: TypeAlias = (
    Folder | Put | Touch | Remove | Command | Answer | Programs | Rehearse | Reconfigure | Wait | Prove
)
