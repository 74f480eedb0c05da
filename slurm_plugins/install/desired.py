"""What is to lie on a host, by its roles: folders and files. Pure: from the wish and from slurm.conf's words."""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

from site_configs import placing
from site_configs.site import SiteError, parse_site
from site_configs.site_model import Site
from slurm_plugins.install.facts import Facts, Seen, Wish, units_of
from slurm_plugins.install.layout import HOOKS, SHIM, part
from slurm_plugins.install.steps import Folder, Owner, Put

__all__ = [
    "GSUB",
    "Hooked",
    "bare",
    "desired",
    "hooked",
    "hooks",
    "is_strange",
    "ports",
    "shim",
    "site_of",
    "site_text",
    "topology_files",
    "unit",
    "ways",
]

GSUB: Final = Owner("gsub")
_OURS: Final = "90-gsub"
_LETTERS: Final = {"Prolog": "z", "Epilog": "y"}
"""The last letter of our hook's name beside a site's program; not the same: one program may be both."""
_SIGN: Final = b"GSUB_HOOK="
"""What every hook of ours that leaves a file has in it."""
_PORT: Final = 6831
_OPT: Final = "/opt/gsub/bin/"
_MAGIC: Final = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class Hooked:
    """How Slurm comes to run a hook.

    Parameters
    ----------
    how: `alone`: the site has none; `beside`: it has one program; `among`: it has a pattern; `not`: it cannot be done
        unasked, and `why`.
    lines: the key's values in slurm.conf; empty: they stay as they are.
    file: where a second copy of the hook goes, which Slurm's pattern finds; None: nowhere.
    """

    key: str
    how: Literal["alone", "beside", "among", "not"]
    lines: tuple[str, ...] = ()
    file: Path | None = None
    why: str = ""


def hooked(key: str, values: tuple[str, ...], libexec: Path, *, true: str = "") -> Hooked:
    """How a hook is put beside what the site's slurm.conf says.

    A pattern that fits nothing drains the node, as a program that is missing does (seen on 22.05, 24.11 and 26.05). So
    the site's own program stays in the pattern under its own name, and ours lies beside it under a name that differs
    in the last letter: on a node without gsub the pattern fits the site's alone, and nothing is lost. Where the site
    has none, `true` takes its place, which every host has and which does nothing; empty: the pattern fits ours alone.

    >>> hooked("Prolog", ("/etc/slurm/prolog.sh",), Path("/usr/libexec/gsub")).lines
    ('/etc/slurm/prolog.s[hz]',)
    """
    name = HOOKS[key]
    if any(value.startswith(f"{libexec}/") for value in values):
        return Hooked(key, "among")  # by hand, before
    if not values and not true:
        return Hooked(key, "alone", lines=(bare(libexec / name),))
    values = values or (true,)
    patterns = [Path(value) for value in values if value.startswith("/") and _MAGIC.search(Path(value).name)]
    for path in patterns:
        fits = next((one for one in (_OURS, f"{_OURS}.sh") if fnmatch.fnmatchcase(one, path.name)), None)
        if fits is not None and not _MAGIC.search(str(path.parent)):
            return Hooked(key, "among", file=path.parent / fits)
    letter = _LETTERS[key]
    for at, value in enumerate(values):
        # Ours comes first when its name is the later one: Slurm runs them in reverse order.
        # A ! or ^ would turn the pattern's meaning around, a backslash take the letter behind it away.
        plain = re.fullmatch(r"/[^*?\[\\]*[A-Za-z0-9_]", value)
        if plain and value[-1] < letter:
            lines = (*values[:at], f"{value[:-1]}[{value[-1]}{letter}]", *values[at + 1 :])
            return Hooked(key, "beside", lines=lines, file=Path(value[:-1] + letter))
    said = ", ".join(f"{key}={value}" for value in values)
    why = f"{said} is left alone: have it run {libexec / name} too, or from Slurm 24.05 on add a line {key}="
    return Hooked(key, "not", why=f"{why}{bare(libexec / name)}")


def is_strange(put: Put, wish: Wish, seen: Seen | None) -> bool:
    """Whether a file that is not ours lies where a hook is to go, in a folder of the site's own."""
    if seen is None or seen.content is None or put.path.parent == wish.layout.libexec or not put.shipped:
        return False
    return _SIGN not in seen.content


def bare(program: Path) -> str:
    """A pattern that fits this one program.

    >>> bare(Path("/usr/libexec/gsub/prolog"))
    '/usr/libexec/gsub/prolo[g]'
    """
    return f"{program.parent}/{program.name[:-1]}[{program.name[-1]}]"


def shim() -> dict[str, bytes]:
    """The shim's files of this version, by name."""
    return {name: part("slurm_plugins", f"lua/{name}") for name in (*SHIM, "chain.lua")}


def hooks(wish: Wish) -> dict[str, bytes]:
    """The hooks of this version, by name, with this layout's folders in them."""
    layout = wish.layout
    return {
        name: placing.hook(
            part("prolog_epilog", name).decode(), spool=str(layout.spool), run=str(layout.run_noded)
        ).encode()
        for name in HOOKS.values()
    }


def unit(name: str, wish: Wish) -> bytes | None:
    """A unit with this environment's programs; None: this version has none of that name."""
    try:
        text = part("site_configs", f"systemd/{name}")
    except FileNotFoundError:
        return None
    return text.replace(_OPT.encode(), f"{wish.bin}/".encode())


def desired(wish: Wish, facts: Facts) -> Iterator[Folder | Put]:
    """All that is to be there before Slurm hears of it, in order; `Put.before` is not known here."""
    layout = wish.layout
    yield Folder(layout.keep, 0o700, why="the journal of what is changed here, and copies of what was")
    yield Folder(
        layout.libexec, 0o755, why="what Slurm runs: copies, which an upgrade of the package leaves alone"
    )
    if "node" in wish.roles:
        yield from _of_node(wish)
    yield from _beside(wish, facts)
    if "controller" in wish.roles:
        yield from _of_controller(wish, facts)
    yield Folder(layout.etc, 0o755, why="the site file", exact=False)
    if (text := site_text(wish, facts)) is not None:
        yield Put(layout.site, text, 0o644, why="observe: gsub decides and records, and changes no job")
    if facts.systemd:
        yield from _units(wish, facts)


def _of_node(wish: Wish) -> Iterator[Folder | Put]:
    layout = wish.layout
    for name, content in hooks(wish).items():
        yield Put(layout.libexec / name, content, 0o755, why="hook", shipped=True)
    for folder, mode in ((layout.spool, 0o700), (layout.run_noded, 0o755)):
        yield Folder(folder, mode, why="where hooks leave word for the agent")
        yield Folder(folder / "new", 0o700)


def _beside(wish: Wish, facts: Facts) -> Iterator[Put]:
    """The hooks beside the site's own; by the controller too, where its folder is there: nodes may not write to it."""
    ours = hooks(wish)
    for way in ways(wish, facts):
        if way.file is None or ("node" not in wish.roles and not facts.folders.get(way.file.parent)):
            continue
        why = f"gsub's {HOOKS[way.key]}, where a pattern in slurm.conf finds it"
        yield Put(way.file, ours[HOOKS[way.key]], 0o755, why=why, shipped=True)


def ways(wish: Wish, facts: Facts) -> tuple[Hooked, ...]:
    """How prolog and epilog come to be run at this site."""
    found = []
    for key in ("Prolog", "Epilog"):
        values = facts.values(key)
        # Before 24.05 of several lines the last counts.
        values = values if facts.several else values[-1:]
        found.append(hooked(key, values, wish.layout.libexec, true=facts.true))
    return tuple(found)


def _of_controller(wish: Wish, facts: Facts) -> Iterator[Folder | Put]:
    layout = wish.layout
    for name, content in shim().items():
        yield Put(layout.libexec / name, content, 0o644, why="shim", shipped=True)
    yield Folder(layout.state, 0o750, GSUB, why="gsubd's records and the store")
    if not facts.systemd:  # which makes it at each start
        yield Folder(layout.run, 0o755, GSUB, why="the decision socket")


def _units(wish: Wish, facts: Facts) -> Iterator[Put]:
    for name in units_of(wish.roles):
        if name not in facts.packaged and (content := unit(name, wish)) is not None:
            yield Put(wish.layout.units / name, content, 0o644, why="unit")
    tmpfiles = "gsub-noded.tmpfiles.conf"
    if "node" in wish.roles and "gsub-noded.service" not in facts.packaged:
        content = part("site_configs", f"systemd/{tmpfiles}")
        yield Put(
            Path("/etc/tmpfiles.d/gsub-noded.conf"), content, 0o644, why="the agent's folders at each boot"
        )


# --- the site file ----------------------------------------------------------------------------------------------------


def topology_files(wish: Wish) -> tuple[Path, ...]:
    """Where Slurm has the network's shape, if anywhere."""
    return tuple(wish.layout.slurm_conf.with_name(name) for name in ("topology.yaml", "topology.conf"))


def site_text(wish: Wish, facts: Facts) -> bytes | None:
    """A site file from what slurm.conf says, the same on each host of the cluster; None: it says too little."""
    layout, cluster = wish.layout, facts.value("ClusterName").lower()
    controllers = facts.controllers()
    url = wish.service_url or (f"http://{controllers[0][1]}:{_PORT}" if controllers else "")
    if not cluster or not url:
        return None
    lines = [
        "# gsub's site file; each key is told in docs/site-file.md. The same on every host.",
        f"cluster = {_toml(cluster)}",
    ]
    slurm = {} if layout.slurm_conf == Path("/etc/slurm/slurm.conf") else {"conf": str(layout.slurm_conf)}
    if found := re.search(r"(?:^|,)socket=([^,\s]+)", facts.value("AuthInfo")):
        slurm["munge_socket"] = found[1]
    lines += _table("slurm", slurm)
    if facts.value("TopologyPlugin").lower().startswith(("topology/tree", "topology/block")):
        there = [path for path in topology_files(wish) if (seen := facts.seen.get(path)) and seen.content]
        lines += _table("topology", {"file": str(there[0])} if there else {})
    lines += _table("policy", {"mode": "observe"})
    service = {"url": url}
    if wish.prefixed:
        service["socket"] = str(layout.run / "decision.sock")
    lines += _table("service", service)
    if wish.prefixed:
        lines += _table("store", {"url": f"sqlite:///{layout.state}/store.db"})
        lines += _table("agent", {"spool": str(layout.spool)})
    text = "\n".join(lines) + "\n"
    try:
        parse_site(text, str(layout.site))
    except SiteError:
        return None
    return text.encode()


def _table(name: str, keys: dict[str, str]) -> list[str]:
    if not keys:
        return []
    return ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in keys.items())]


def _toml(text: str) -> str:
    return json.dumps(text)  # which is a basic string of TOML too


def site_of(wish: Wish, facts: Facts) -> Site | None:
    """The site as it is on this host, else as it will be; None: there is none, or it is broken."""
    seen = facts.seen.get(wish.layout.site)
    text = seen.content if seen and seen.content is not None else site_text(wish, facts)
    try:
        return parse_site(text.decode(), str(wish.layout.site)) if text is not None else None
    except (SiteError, UnicodeDecodeError):
        return None


def ports(site: Site | None) -> tuple[int, int]:
    """gsubd's ports: of its metrics, which say how it is, and of its API."""
    try:
        port = urlsplit(site.service.url).port if site else None
    except ValueError:
        port = None
    return (port or _PORT) - 1, port or _PORT
