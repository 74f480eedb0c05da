"""A healthy site for doctor to look at: files as the development cluster writes them, and Slurm's recorded answers."""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from site_configs.devcluster import agents, config, gsubd
from site_configs.devcluster.spec import ClusterSpec, Paths
from site_configs.site_model import Site
from slurm_plugins.install.doctor import Question, diagnose
from slurm_plugins.install.doctor.net import NetError, Page
from slurm_plugins.install.finding import Finding
from slurm_plugins.install.host import Ran
from slurm_plugins.install.layout import HOOKS, SHIM, Layout, part
from tests.unit.slurm_plugins.client.recording import DATA, RELEASES
from tests.unit.slurm_plugins.install.fakes import FakeHost

__all__ = ["NAME", "RELEASES", "ROOT", "FakeNet", "Scene", "elf", "healthy"]

NAME = "doctor"
ROOT = "/srv/lab"
SLURM, GSUB = 64030, 990
CREDENTIAL = "MUNGE:AwQDAAD:\n"


@dataclass
class FakeNet:
    """The service as the test says; what is not there is refused."""

    pages: dict[str, Page] = field(default_factory=dict)
    answers: dict[str, Page] = field(default_factory=dict)
    unbelieved: NetError | None = None

    def page(self, url: str, timeout: float) -> Page:
        if url not in self.pages:
            raise NetError("unreachable", "[Errno 111] Connection refused")
        return self.pages[url]

    def ask(self, site: Site, target: str, timeout: float) -> Page:
        if self.unbelieved is not None:
            raise self.unbelieved
        path = target.partition("?")[0]
        if path not in self.answers:
            raise NetError("unreachable", "[Errno 111] Connection refused")
        return self.answers[path]


@dataclass
class Scene:
    """A site that can be made ill. `at` is the time; `root` the installation's folder."""

    host: FakeHost
    net: FakeNet
    layout: Layout
    question: Question
    release: str
    paths: Paths
    gsubd: str
    keeper: str

    def diagnose(self, **options: Any) -> tuple[Finding, ...]:
        return diagnose(self.host, self.layout, self.question, net=self.net, **options)

    def edit(self, path: Path, old: str, new: str, *, count: int = 0) -> None:
        """Change a file's text; what is to be changed must be there."""
        entry = self.host.entries[path]
        text, times = re.subn(old, lambda _: new, entry.content.decode(), count=count, flags=re.MULTILINE)
        assert times, f"{old} is not in {path}"
        entry.content = text.encode()

    def config(self, key: str, value: str | None) -> None:
        """Have slurmctld say another value of a key, and slurm.conf too; None: not set."""
        said = self.host.answers["scontrol", "show", "config"]
        assert isinstance(said, Ran)
        shown = "(null)" if value is None else value
        out, times = re.subn(rf"(?m)^({key}(?:\[0\])?\s*=).*$", lambda m: f"{m[1]} {shown}", said.out)
        if not times:
            out += f"{key} = {shown}\n"
        self.host.answers["scontrol", "show", "config"] = replace(said, out=out)
        file = self.host.entries[self.layout.slurm_conf]
        kept = [
            line
            for line in file.content.decode().splitlines()
            if not line.lower().startswith(key.lower() + "=")
        ]
        bare = (value or "").removesuffix(" sec")
        file.content = "\n".join([*kept, *([f"{key}={bare}"] if value is not None else []), ""]).encode()

    def nodes(self, old: str, new: str) -> None:
        """Change what slurmctld says of its nodes."""
        asked = ("scontrol", "--oneliner", "--all", "show", "node")
        said = self.host.answers[asked]
        assert isinstance(said, Ran)
        out, times = re.subn(old, new, said.out)
        assert times, f"{old} is not in the nodes"
        self.host.answers[asked] = replace(said, out=out)

    def metric(self, name: str, value: float | None) -> None:
        """Change one of gsubd's metrics; None: there is no such."""
        page = self.net.pages[f"{self.gsubd}/metrics"]
        lines = [line for line in page.body.decode().splitlines() if not line.startswith(name + " ")]
        if value is not None:
            lines.append(f"{name} {value}")
        self.net.pages[f"{self.gsubd}/metrics"] = Page(200, "\n".join(lines).encode())

    def told_nodes(self, nodes: list[dict[str, object]]) -> None:
        """What the service tells of nodes."""
        self.net.answers["/v1/nodes"] = Page(200, json.dumps({"nodes": nodes}).encode())


def queue_page(seconds: float) -> Page:
    """The keeper's metrics, with what reading the queue took."""
    return Page(200, f"gsub_keeper_queue_seconds {seconds}\ngsub_keeper_queue_limit_seconds 30\n".encode())


def healthy(release: str) -> Scene:
    """The development cluster of a release as it comes up, on one host: controller and node n1."""
    kept = json.loads((DATA / release / "doctor.json").read_text(encoding="utf-8"))
    said = {call["asked"]: call for call in kept["calls"]}
    paths, ports = Paths(Path(ROOT)), config.Ports(kept["port"])
    spec = ClusterSpec(name=NAME, nodes=2, gpus=2)
    layout = Layout(
        slurm_conf=paths.slurm_conf,
        libexec=paths.libexec,
        etc=paths.etc,
        keep=paths.root / "install",
        state=paths.gsub_state,
        spool=paths.agent_spool("n1"),
        run_noded=paths.agent_run("n1"),
        run=paths.run / "gsub",
        units=paths.root / "units",
    )
    host = FakeHost(name=kept["host"])
    for asked, call in said.items():
        program = asked.split()[0]
        if program not in ("ask", "page"):
            host.answer(asked, Ran(call["code"], call["out"], call["err"]))
    host.says("munge", CREDENTIAL)
    host.answer("unmunge", lambda argv, stdin: _opened(stdin))
    host.account("slurm", SLURM)
    host.account("munge", 101)
    host.account("gsub", GSUB, "gsub", "slurm")
    host.put("/etc/group", f"root:x:0:\nslurm:x:{SLURM}:gsub\ngsub:x:{GSUB}:\n")
    for number, name in enumerate(("slurmctld", "slurmd", "gsubd", "gsub-noded", "munged", "bash"), 100):
        host.put(f"/proc/{number}/comm", f"{name}\n")
    _slurm(host, spec, paths, ports, kept["host"])
    _plugin(host, said["scontrol show config"]["out"])
    _gsub(host, paths, layout)
    gsubd_url, keeper = f"http://127.0.0.1:{ports.gsubd}", f"http://127.0.0.1:{ports.api}"
    net = FakeNet(
        {
            f"{gsubd_url}/healthz": _page(said["page gsubd/healthz"]),
            f"{gsubd_url}/metrics": _page(said["page gsubd/metrics"]),
            f"{keeper}/healthz": _page(said["page keeper/healthz"]),
            f"{keeper}/metrics": queue_page(0.2),
        },
        {"/v1/nodes": _page(said["ask /v1/nodes"]), "/v1/jobs": _page(said["ask /v1/jobs"])},
    )
    at = float(re.findall(r"\((\d{9,})\)", said["sdiag"]["out"])[0])
    question = Question(
        node="n1", metrics=gsubd_url, programs=Path("/opt/gsub"), release="1.0", clock=lambda: at
    )
    return Scene(host, net, layout, question, release, paths, gsubd_url, keeper)


def _slurm(host: FakeHost, spec: ClusterSpec, paths: Paths, ports: config.Ports, hostname: str) -> None:
    who = config.Identity(hostname, "slurm", "root")
    host.put(paths.slurm_conf, config.slurm_conf(spec, paths, ports, who))
    host.put(paths.etc / "gres.conf", config.gres_conf(spec, paths))
    host.put(paths.etc / "topology.conf", config.topology_conf(spec))
    host.put(paths.site, config.site_toml(spec, paths, ports))
    for number in range(spec.gpus):
        host.put(paths.dev / f"nvidia{number}")


def _plugin(host: FakeHost, said: str) -> None:
    found = re.search(r"(?m)^PluginDir\s*= (\S+)", said)
    assert found is not None
    host.put(f"{found[1]}/job_submit_lua.so", elf("libc.so.6", "liblua5.4.so.0"), mode=0o644)
    host.put("/usr/lib/x86_64-linux-gnu/lua/5.4/posix.so")
    host.says("luac5.4 -p")


def _gsub(host: FakeHost, paths: Paths, layout: Layout) -> None:
    for name in SHIM:
        host.put(layout.libexec / name, part("slurm_plugins", f"lua/{name}"))
    for name in HOOKS.values():
        host.put(layout.libexec / name, agents.hook(name, paths), mode=0o755)
    host.put(layout.job_submit, gsubd.job_submit_lua(paths))
    host.folder(layout.run, uid=GSUB, gid=GSUB)
    host.put_socket(paths.decision_socket, mode=0o660, uid=GSUB, gid=SLURM)
    host.folder(layout.state, uid=GSUB, gid=GSUB)
    host.put(layout.state / "store.db", b"SQLite format 3\0", mode=0o600, uid=GSUB, gid=GSUB)
    for folder in agents.folders(paths, "n1"):
        host.folder(folder, mode=0o700)
    host.put("/opt/gsub/bin/gsub", mode=0o755)
    host.put("/opt/gsub/lib/python3.11/site-packages/gsub/__init__.py")


def _opened(stdin: str) -> Ran:
    if stdin != CREDENTIAL:
        return Ran(15, "STATUS:          Invalid credential (8)\n")
    return Ran(0, "STATUS:          Success (0)\nUID:             root (0)\n")


def _page(call: dict[str, Any]) -> Page:
    return Page(call["code"], call["out"].encode())


def elf(*names: str, wide: bool = True, order: str = "<") -> bytes:
    """An ELF file that needs these libraries, and holds nothing else."""
    strings = b"\0" + b"".join(name.encode() + b"\0" for name in names)
    places = [strings.index(b"\0" + name.encode() + b"\0") + 1 for name in names]
    word = "Q" if wide else "I"
    head, entry = (64, 56) if wide else (52, 32)
    at = head + 2 * entry
    dynamic = b"".join(struct.pack(order + 2 * word, 1, place) for place in places)
    size = len(dynamic) + 2 * struct.calcsize(order + 2 * word)
    shift = 0x1000  # addresses are no offsets
    dynamic += struct.pack(order + 2 * word, 5, at + size + shift) + struct.pack(order + 2 * word, 0, 0)
    total = at + size + len(strings)

    def segment(kind: int, offset: int, length: int) -> bytes:
        if wide:
            return struct.pack(order + "IIQQQQQQ", kind, 4, offset, offset + shift, 0, length, length, 1)
        return struct.pack(order + "IIIIIIII", kind, offset, offset + shift, 0, length, length, 4, 1)

    ident = b"\x7fELF" + bytes([2 if wide else 1, 1 if order == "<" else 2, 1]) + bytes(9)
    rest = struct.pack(order + "HHI" + 3 * word + "IHHHHHH", 3, 62, 1, 0, head, 0, 0, head, entry, 2, 0, 0, 0)
    return ident + rest + segment(1, 0, total) + segment(2, at, size) + dynamic + strings
