"""What the documents say holds: every link leads somewhere, every command runs."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.paths import REPOSITORY

DOCUMENTS = sorted(
    [REPOSITORY / "README.md", *REPOSITORY.glob("docs/*.md"), *REPOSITORY.glob("examples/*/README.md")]
)
_LINK = re.compile(r"\[[^]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
_CONSOLE = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^\$ (.*?)(?:\s+#.*)?$", re.MULTILINE)
_EXIT = re.compile(r"#\s*exit (\d+)\s*$")


@dataclass(frozen=True)
class Command:
    """One `$ ` line of a document; `# exit N` at its end says that it fails on purpose."""

    document: Path
    line: str
    exit_code: int


def commands(document: Path) -> Iterator[Command]:
    for block in _CONSOLE.findall(document.read_text()):
        for match in _COMMAND.finditer(block):
            code = _EXIT.search(match[0])
            yield Command(document, match[1], int(code[1]) if code else 0)


def needs_agents(command: Command) -> bool:
    """Whether it shows a record, which only nodes with agents make: tests/slurm/record runs these."""
    return "gsub usage $job" in command.line


def test_documents_are_found():
    assert {"README.md", "user-guide.md", "devcluster.md", "site-file.md"} <= {
        path.name for path in DOCUMENTS
    }
    assert sum(len(list(commands(document))) for document in DOCUMENTS) > 20


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document):
    broken = [
        link
        for link in _LINK.findall(document.read_text())
        if not link.startswith(("https://", "http://", "mailto:")) and not (document.parent / link).exists()
    ]
    assert broken == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_make_targets_exist(document):
    """`make` lines: .ci/run runs demo, test, bench and cluster-down themselves; here their targets are resolved."""
    for command in commands(document):
        if command.line.startswith("make"):
            done = subprocess.run(
                ["make", "-n", *command.line.split()[1:]], cwd=REPOSITORY, capture_output=True, text=True
            )
            assert done.returncode == 0, f"{command.line}: {done.stderr}"


def test_no_document_or_source_names_a_machine_of_ours():
    """Paths and hosts of where this was written mean nothing to a reader."""
    shown = subprocess.run(["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True).stdout.split()
    for name in shown:
        text = (REPOSITORY / name).read_bytes()
        assert b"/wo" + b"rk/" not in text, name
