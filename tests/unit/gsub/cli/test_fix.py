"""`gsub fix`: each fixer offers the one exact change where it is sure, and nothing where it is not."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from gsub.commands.fix import _may_write, _Mended
from gsub.errors import UserError
from gsub.fixes import FIXERS, fixes_for
from gsub.fixes.applying import applied, inserted, options_of
from gsub.fixes.module import PACKAGES
from gsub.fixes.paths import named, word_of
from gsub.fixes.values import Case, Fix
from gsub.resubmission.change import Change
from gsub.resubmission.kept import Kept
from gsub.resubmission.original import Original, _text
from gsub.resubmission.proposal import Proposal
from gsub.resubmission.submit_line import read_words
from gsub.sbatch_options import Table
from profiler.findings import Evidence, Finding
from profiler.resubmissions import Resubmission
from prolog_epilog.failures.taxonomy import REASONS
from slurm_plugins.client.values import Job, JobState

HOME = "/home/ada/run"


@dataclass
class FakeFiles:
    """Files by their path and text; folders are those above them. `shut` may not be written to."""

    files: Mapping[str, str] = field(default_factory=dict)
    shut: frozenset[str] = frozenset()
    executable: frozenset[str] = frozenset()
    space: tuple[int, int, int] | None = None

    def kind(self, path: str) -> Literal["file", "folder", ""]:
        if path in self.files:
            return "file"
        folders = {HOME, "/", "/home", "/home/ada"}
        for name in self.files:
            while name != "/":
                name = posixpath.dirname(name)
                folders.add(name)
        return "folder" if path in folders else ""

    def names(self, folder: str) -> tuple[str, ...]:
        inside = [name[len(folder) + 1 :] for name in self.files if name.startswith(folder + "/")]
        return tuple(sorted({name.split("/")[0] for name in inside}))

    def may(self, path: str, what: str) -> bool:
        if what == "execute":
            return path in self.executable
        return path not in self.shut

    def free(self, path: str) -> tuple[int, int, int] | None:
        return self.space

    def text(self, path: str) -> str:
        return self.files.get(path, "")


def a_case(reason: str, *evidence: str, **more: object) -> Case:
    known: dict[str, object] = {
        "shown": "7", "finding": Finding(reason, 0.95, "explicit", tuple(Evidence(line) for line in evidence)),
        "evidence": evidence, "row": None,
        "script": "#!/bin/bash\n#SBATCH -N2\npython train.py --data data/trian.csv\n",
        "wrap": None, "words": (), "folder": HOME, "output": "", "files": FakeFiles(), "asks": lambda name: None,
        "exclude": lambda avoid: Change("exclude", ",".join(sorted(avoid)), "", ""),
        "more_memory": lambda mib, per, why: Change("mem", f"{mib}M", "", why),
    }  # fmt: skip
    return Case(**(known | more))  # type: ignore[arg-type]


def row(state: str = "planned", **more: object) -> Resubmission:
    return Resubmission("lab", 7, 0, "cpu_oom", "more_memory", state, 0.0, "", **more)  # type: ignore[arg-type]


DATA = FakeFiles({f"{HOME}/data/train.csv": "", f"{HOME}/data/test.csv": "", f"{HOME}/data/fold1.csv": ""})
SHUT = FakeFiles(shut=frozenset({HOME, "/"}))
MISSING = "FileNotFoundError: [Errno 2] No such file or directory: '{}'"

SURE = [
    ("memory", a_case("cpu_oom", "MemoryError", row=row(memory_mib=49152, memory_per="node"), peak_mib=40960),
     Fix("Ask for 48G for each node.", "The host's memory was not enough: its peak was 40G.",
         options=(Change("mem", "49152M", "", "its peak was 40G"),))),
    ("time", a_case("time_limit", time_limit=3600, most_time=86400),
     Fix("Ask for 2 h.", "It had 1 h, and how long it needs is not known: this is twice as much.",
         options=(Change("time", "2:00:00", "", "the time was up"),))),
    ("time, all of it", a_case("time_limit", time_limit=3600, most_time=5400, asks=lambda name: "60"),
     Fix("Ask for 1 h 30 min (the most that its partition gives).",
         "It had 1 h, and how long it needs is not known: this is more.",
         options=(Change("time", "1:30:00", "60", "the time was up"),))),
    ("nodes", a_case("gpu_hardware", "Xid 79", row=row(avoid=("n17",))),
     Fix("Keep off n17.", "A GPU or its links are broken: it failed there.",
         options=(Change("exclude", "n17", "", ""),))),
    ("path", a_case("missing_input", MISSING.format("data/trian.csv"), files=DATA),
     Fix("Did you mean data/train.csv?", "data/trian.csv is not there, and data/train.csv is.",
         replace=(("data/trian.csv", "data/train.csv"),))),
    ("path, a folder", a_case("missing_input", MISSING.format("./dta/train.csv"), files=DATA,
                              wrap="cat ./dta/train.csv"),
     Fix("Did you mean ./data/train.csv?", "./dta/train.csv is not there, and ./data/train.csv is.",
         replace=(("./dta/train.csv", "./data/train.csv"),))),
    ("path, an argument", a_case("missing_input", MISSING.format(f"{HOME}/data/Train.csv"), files=DATA,
                                 words=(f"--data={HOME}/data/Train.csv",)),
     Fix(f"Did you mean {HOME}/data/train.csv?", f"{HOME}/data/Train.csv is not there, and {HOME}/data/train.csv is.",
         replace=((f"{HOME}/data/Train.csv", f"{HOME}/data/train.csv"),))),
    ("folder", a_case("output_error", MISSING.replace("'", '"').format("out/it's/m.pt")),
     Fix("Make out/it's before the run.", "out/it's/m.pt could not be written: there is no folder out/it's.",
         insert="mkdir -p -- 'out/it'\"'\"'s'")),
    ("folder, no shell", a_case("checkpoint_error", MISSING.format("ckpt/m.pt"), script="#!/usr/bin/env python3\n"),
     Fix("Make ckpt before the run.", "ckpt/m.pt could not be written: there is no folder ckpt.",
         folders=(f"{HOME}/ckpt",))),
    ("folder of the output", a_case("output_error", "Slurm: FAILED, reason JobLaunchFailure, signal 53",
                                    output=f"{HOME}/logs/7.out"),
     Fix(f"Make {HOME}/logs before the submission.", "Slurm could not write the job's output: it makes no folders.",
         folders=(f"{HOME}/logs",))),
    ("bit", a_case("permission_error", "slurm_script: line 3: ./run it.sh: Permission denied",
                   files=FakeFiles({f"{HOME}/run it.sh": "#!/bin/sh\n"})),
     Fix("Make ./run it.sh executable.", "./run it.sh is a program without its executable bit.",
         typed=(f"chmod u+x '{HOME}/run it.sh'",))),
    ("line ends", a_case("environment_error", "./run.sh: line 2: $'\\r': command not found",
                         files=FakeFiles({f"{HOME}/run.sh": "#!/bin/sh\r\n\r\n"})),
     Fix("Give ./run.sh the line ends of Unix.",
         "./run.sh has the line ends of DOS, and the shell takes them for part of its words.",
         typed=(f"sed -i 's/\\r$//' {HOME}/run.sh",))),
    ("module", a_case("import_error", "ModuleNotFoundError: No module named 'cv2'"),
     Fix("Install opencv-python-headless in the environment that the job uses.",
         "The Python of the job has no module cv2.",
         typed=("python3 -m pip install opencv-python-headless",))),
    ("space", a_case("no_space", "OSError: [Errno 28] No space left on device: 'out/m.pt'",
                     files=FakeFiles({f"{HOME}/out/a": ""}, space=(1 << 20, 1 << 40, 1000))),
     Fix(f"Free space in {HOME}/out.", "Its disk has 1M left of 1T.",
         typed=(f"df -h {HOME}/out", f"du -xsh {HOME}/out/* | sort -h | tail"))),
]  # fmt: skip


@pytest.mark.parametrize(("case", "fix"), [one[1:] for one in SURE], ids=[one[0] for one in SURE])
def test_what_is_sure_is_offered(case: Case, fix: Fix) -> None:
    assert fixes_for(case) == fix


UNSURE = [
    ("memory that the node has not", a_case("cpu_oom", row=row("stopped", stop="limit"))),
    ("memory of which nothing is known", a_case("cpu_oom")),
    ("all of the time", a_case("time_limit", time_limit=3600, most_time=3600)),
    ("a checkpoint to go on from", a_case("time_limit", time_limit=3600, row=row())),
    ("no time limit", a_case("time_limit")),
    ("no node to blame", a_case("gpu_hardware", row=row())),
    ("a job that asks for that node", a_case("gpu_hardware", row=row(avoid=("n1",)), exclude=lambda avoid: None)),
    ("a file that is there", a_case("missing_input", MISSING.format("data/train.csv"), files=DATA)),
    ("nothing alike", a_case("missing_input", MISSING.format("data/labels.csv"), files=DATA)),
    ("another number", a_case("missing_input", MISSING.format("data/fold2.csv"), files=DATA)),
    ("two alike", a_case("missing_input", MISSING.format("data/trin.csv"),
                         files=FakeFiles({f"{HOME}/data/{name}.csv": "" for name in ("train", "trains", "trn")}))),
    ("a name that a shell would run", a_case("missing_input", MISSING.format("data/training.csv"),
                                             files=FakeFiles({f"{HOME}/data/training$(x).csv": ""}))),
    ("a name with newline", a_case("missing_input", MISSING.format("data/training.csv"),
                                   files=FakeFiles({f"{HOME}/data/training\n.csv": ""}))),
    ("a masked path", a_case("missing_input", MISSING.format("data/****/train.csv"), files=DATA)),
    ("a URL", a_case("missing_input", MISSING.format("s3://bucket/trian.csv"), files=DATA)),
    ("a folder that is there", a_case("output_error", MISSING.format("data/new.csv"), files=DATA)),
    ("a folder that may not be made", a_case("output_error", MISSING.format("/etc/x/y"), files=SHUT)),
    ("in a folder that is shut", a_case("output_error", MISSING.format("out/x"), files=SHUT)),
    ("the output's folder has a pattern", a_case("output_error", "Slurm: FAILED, signal 53", output=f"{HOME}/%j/o")),
    ("another's program", a_case("permission_error", "bash: ./run.sh: Permission denied",
                                 files=FakeFiles({f"{HOME}/run.sh": "#!/bin/sh\n"}, frozenset({f"{HOME}/run.sh"})))),
    ("data, no program", a_case("permission_error", "bash: ./data.bin: Permission denied",
                                files=FakeFiles({f"{HOME}/data.bin": "x"}))),
    ("executable already", a_case("permission_error", "bash: ./run.sh: Permission denied",
                                  files=FakeFiles({f"{HOME}/run.sh": "#!"}, executable=frozenset({f"{HOME}/run.sh"})))),
    ("a program without DOS", a_case("environment_error", "./run.sh: line 2: $'\\r': command not found",
                                     files=FakeFiles({f"{HOME}/run.sh": "#!/bin/sh\n"}))),
    ("a module that anybody may have named", a_case("import_error", "ModuleNotFoundError: No module named 'my_utils'")),
    ("a part of a package", a_case("import_error", "ModuleNotFoundError: No module named 'torch.nope'")),
    ("a module of one's own", a_case("import_error", "ModuleNotFoundError: No module named 'yaml'",
                                     files=FakeFiles({f"{HOME}/yaml.py": ""}))),
    ("space by now", a_case("no_space", "[Errno 28] No space left on device: 'out/m.pt'",
                            files=FakeFiles(space=(1 << 39, 1 << 40, 1000)))),
    ("a disk that is not named", a_case("no_space", "No space left on device", files=FakeFiles(space=(0, 1 << 40, 0)))),
    ("a reason that nobody can mend", a_case("syntax_error", "SyntaxError: invalid syntax")),
]  # fmt: skip


@pytest.mark.parametrize("case", [one[1] for one in UNSURE], ids=[one[0] for one in UNSURE])
def test_what_is_not_sure_is_not(case: Case) -> None:
    assert fixes_for(case) is None


def test_each_fixer_is_of_reasons_that_there_are() -> None:
    for fixer in FIXERS:
        assert fixer.reasons and fixer.reasons <= set(REASONS)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]+", package) for package in PACKAGES.values())


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("FileNotFoundError: [Errno 2] No such file or directory: 'a 'b'.csv'", None),
        ('FileNotFoundError: [Errno 2] No such file or directory: "it\'s.csv"', "it's.csv"),
        ("cp: cannot stat 'it'\\''s \"x\"': No such file or directory", None),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'a b.csv'", "a b.csv"),
        ("/var/spool/slurmd/job7/slurm_script: line 12: ./tran.sh: No such file or directory", "./tran.sh"),
        ("/bin/sh: 4: ./tran.sh: not found", "./tran.sh"),
        ("cat: data/trian.csv: No such file or directory", "data/trian.csv"),
        ("cp: cannot create regular file 'out/x': No such file or directory", "out/x"),
        ("cp: cannot stat ‘out/x’: No such file or directory", "out/x"),
        ("python3: can't open file '/h/tran.py': [Errno 2] No such file or directory", "/h/tran.py"),
        ("No such file or directory", None),
        ("it said: No such file or directory", None),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'a\x1b[31m'", None),
    ],
)
def test_a_path_is_read_only_where_its_ends_are_certain(line: str, path: str | None) -> None:
    assert list(named([line])) == ([path] if path else [])


def original(words: str, script: str = "#!/bin/sh\n", source: str = "file") -> Original:
    given = read_words(tuple(words.split(" ")), Table.of_all())
    job = Job(id=7, name="t", user="ada", state=JobState.FAILED)
    return Original("7", job, "", given, Table.of_all(), Kept(script, environment={}), HOME, source, script)  # type: ignore[arg-type]


def test_fixes_are_put_into_the_script_its_arguments_and_the_command_of_wrap() -> None:
    script = (
        "#!/bin/bash\n#SBATCH -N2 # two\n\n# go\npython t.py --in data/trian.csv --like data/trian.csv.bak\n"
    )
    fixes = (
        Fix("", "", replace=(("data/trian.csv", "data/tra\\1in.csv"),)),
        Fix("", "", insert="mkdir -p -- out", options=(Change("mem", "2G", "", ""),)),
    )
    after = applied(original("t.sh data/trian.csv x", script), fixes)
    assert after.script == (
        "#!/bin/bash\n#SBATCH -N2 # two\n\n# go\nmkdir -p -- out\n"
        "python t.py --in data/tra\\1in.csv --like data/trian.csv.bak\n"
    )
    assert after.source == "copy" and after.given.args == ("data/tra\\1in.csv", "x")
    assert [one.name for one in options_of(original("t.sh", script), fixes)] == ["mem"]
    wrapped = original("--wrap=cat data/trian.csv".replace(" ", "\t"), source="wrap")
    wrap = {one.name: one.value for one in options_of(wrapped, fixes)}["wrap"]
    assert wrap == "mkdir -p -- out; cat\tdata/tra\\1in.csv"
    assert applied(wrapped, fixes).script == wrapped.script


def test_a_line_goes_before_the_first_command_of_any_script() -> None:
    assert inserted("#!/bin/sh\nx\n", "y") == "#!/bin/sh\ny\nx\n"
    assert inserted("#!/bin/sh\n#SBATCH -N2\n#SBATCH -n2", "y") == "#!/bin/sh\n#SBATCH -N2\n#SBATCH -n2\ny"
    assert word_of("a+b").search("xa+b") is None


# --- on a real Slurm --------------------------------------------------------------------------------------------------


def _mended_in(folder: Path, *, kept: bool) -> _Mended:
    text = "#!/bin/bash\npython3 t.py > logs/out\n"
    (folder / "t.sh").write_text(text)
    given = read_words(("t.sh",), Table.of_all())
    job = Job(id=7, name="t", user="ada", uid=1, state=JobState.FAILED)
    known = Kept(text if kept else None, "Slurm" if kept else "", environment={})
    before = Original("7", job, "", given, Table.of_all(), known, str(folder), "file", text)
    fixes = (Fix("Make logs.", "It is not there.", insert="mkdir -p -- logs"),)
    return _Mended(before, applied(before, fixes), fixes, (), Proposal(given))


def test_a_file_is_written_only_where_it_is_known_to_be_what_ran(tmp_path: Path) -> None:
    _may_write(_mended_in(tmp_path, kept=True))
    with pytest.raises(UserError, match="cannot be written into a file") as refused:
        _may_write(_mended_in(tmp_path, kept=False))
    assert "not kept" in (refused.value.why or "")


def test_a_file_that_is_read_only_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mended = _mended_in(tmp_path, kept=True)
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may write to all
    with pytest.raises(UserError, match="cannot be written"):
        _may_write(mended)


def test_of_a_long_script_no_part_is_taken_for_the_whole(tmp_path: Path) -> None:
    (tmp_path / "long.sh").write_text("#!/bin/sh\n" + "#" * (4 << 20))
    (tmp_path / "short.sh").write_text("#!/bin/sh\n")
    assert _text(str(tmp_path / "long.sh")) is None
    assert _text(str(tmp_path / "short.sh")) == "#!/bin/sh\n"
