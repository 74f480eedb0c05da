"""The packages as files: the same bytes from the same wheels, the same files in .deb and .rpm."""

from __future__ import annotations

import hashlib
import stat
import subprocess
from pathlib import Path

import pytest

from tests.packages.bare import BareHost, bare_root
from tests.packages.conftest import Built, build
from tests.packages.test_on_bare import needs_chroots
from tests.requirements import require

TARGET = "bookworm"

pytestmark = pytest.mark.needs("dpkg")


def unpacked(package: Path, folder: Path) -> Path:
    subprocess.run(["dpkg-deb", "--extract", package, folder], check=True)
    return folder


def files_of(root: Path) -> set[str]:
    """Paths and content of the files below, without Python's release and what each kind of package has of its own."""
    return {
        f"{path.relative_to(root)} {hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ''}"
        for path in root.rglob("*")
        if (path.is_file() or path.is_symlink()) and path.name != "changelog.Debian.gz"
    }


def test_two_builds_are_the_same_to_the_byte(built, tmp_path):
    """Of the same wheels, by their hashes, whatever the umask of who builds."""
    first = built[TARGET]
    wheels = unpacked(first["gsub"], tmp_path / "gsub") / "usr/share/doc/gsub/wheels.txt"
    source = ("--source", str(built.source))
    second = build(tmp_path / "again", TARGET, *source, "--locked", str(wheels), umask=0o077)
    assert {path.name: path.read_bytes() for path in second} == {
        path.name: path.read_bytes() for path in first.values()
    }


def test_a_wheel_that_is_not_the_one_that_was_locked_is_refused(built, tmp_path):
    wheels = unpacked(built[TARGET]["gsub"], tmp_path / "gsub") / "usr/share/doc/gsub/wheels.txt"
    text = wheels.read_text()
    wrong = tmp_path / "wheels.txt"
    wrong.write_text(text.replace(text.partition("sha256:")[2][:64], "0" * 64, 1))
    with pytest.raises(AssertionError, match="pip download did not work"):
        build(tmp_path / "out", TARGET, "--locked", str(wrong))


def test_nothing_in_them_can_be_written_by_others_or_has_more_rights_than_its_caller(built, tmp_path):
    for name, package in built[TARGET].items():
        for path in unpacked(package, tmp_path / name).rglob("*"):
            mode = path.lstat().st_mode
            assert stat.S_ISLNK(mode) or stat.S_IMODE(mode) in (0o644, 0o755), path
        listed = subprocess.run(
            ["dpkg-deb", "--contents", package], capture_output=True, text=True, check=True
        )
        assert {line.split()[1] for line in listed.stdout.splitlines()} == {"root/root"}


@pytest.mark.parametrize("shell", ["dash", "bash"])
@pytest.mark.parametrize("script", ["postinst", "prerm", "postrm"])
def test_the_scripts_are_posix_sh(built, tmp_path, shell, script):
    for package in built[TARGET].values():
        control = tmp_path / package.stem
        subprocess.run(["dpkg-deb", "--control", package, control], check=True)
        options = ["--posix", "-n"] if shell == "bash" else ["-n"]
        done = subprocess.run([shell, *options, control / script], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture(scope="module")
def rpms(built: Built, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    require("rpm")
    made = build(tmp_path_factory.mktemp("rpm"), "el9", "--source", str(built.source))
    return {path.name.rsplit("-", 2)[0]: path for path in made}


def test_an_rpm_has_the_same_files_as_a_deb(built, rpms, tmp_path):
    assert rpms.keys() == built[TARGET].keys()  # both are for Python 3.11, so that the wheels are the same
    for name, rpm in rpms.items():
        folder = tmp_path / f"rpm-{name}"
        folder.mkdir()
        archive = subprocess.run(["rpm2cpio", rpm], capture_output=True, check=True).stdout
        subprocess.run(["cpio", "--quiet", "-id"], cwd=folder, input=archive, check=True)
        assert files_of(folder) == files_of(unpacked(built[TARGET][name], tmp_path / f"deb-{name}"))


@pytest.mark.root
@needs_chroots
def test_an_rpm_installs_refuses_to_go_while_slurm_names_it_and_goes(rpms, tmp_path):
    """By rpm itself, whose scriptlets run in the host's tree; a Debian, since it is what is here."""
    with BareHost("bookworm", tmp_path) as host:
        host.run("apt-get -q -y install python3 lua-posix")
        # rpm looks at every descriptor that it might have before each scriptlet
        rpm = ["prlimit", "--nofile=1024", "rpm", "--root", str(host.root), "--nodeps"]
        subprocess.run([*rpm, "-i", *rpms.values()], check=True)
        assert "gsub" in host.run("gsub --version").stdout
        assert "(gsub)" in host.run("id gsub").stdout
        assert host.run("/opt/gsub/bin/gsubd --help").returncode == 0
        (host.root / "usr/libexec/gsub").mkdir(exist_ok=True)
        conf = host.root / "etc/slurm/slurm.conf"
        conf.parent.mkdir(exist_ok=True)
        conf.write_text("Prolog=/usr/libexec/gsub/prolo[g]\n")
        refused = subprocess.run([*rpm, "-e", "gsub-node"], capture_output=True, text=True)
        assert refused.returncode != 0
        assert "gsub admin rollback" in refused.stderr
        assert (host.root / "usr/lib/systemd/system/gsub-noded.service").exists()
        conf.unlink()
        subprocess.run([*rpm, "-e", "gsub-node", "gsub-service", "gsub"], check=True)
        assert not (host.root / "opt/gsub").exists()
        assert not (host.root / "usr/bin/gsub").exists()


def test_the_bare_host_has_no_trace_of_gsub(tmp_path):
    if not needs_chroots.args[0]:
        found = [
            path
            for place in ("etc", "usr", "opt", "var/lib")
            for path in (bare_root(TARGET) / place).rglob("*gsub*")
        ]
        assert found == []
