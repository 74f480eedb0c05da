"""Run by the Python that a script would use, with -I -S: do files compile, are the modules that they import there?

Standard library only, for Python 3.6 and newer. Nothing is imported, and no code of a user's runs: files are compiled
and looked through, modules are looked up by importlib's finders, .pth files are read and not obeyed.

Standard input is a JSON object `{"file": path, "paths": [PYTHONPATH...], "home": folder, "most": files to read}`.
Standard output is one: `version`, `prefix`, `syntax` and `missing` (lists of [file, line, text]), and `loose`: true
where modules may come from places that cannot be seen this way.
"""

# ruff: noqa: UP031, PTH109, PTH110, PTH118, PTH120, PTH208, D102, PLW2901 - for old Pythons, paths are text

import ast
import json
import os
import re
import stat
import sys
from importlib.machinery import PathFinder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

MOST_BYTES = 1 << 20
HARMLESS = ("distutils-precedence.pth", "_virtualenv.pth", "a1_coverage.pth", "ruff_", "pywin32.pth")
LOOSE = re.compile(
    rb"sys\s*\.\s*path|from sys import|addsitedir|meta_path|path_hooks|sys\s*\.\s*modules"
    rb"|pip\b.{0,12}\binstall|__path__"
)
MAPPING = re.compile(r"^(MAPPING|NAMESPACES)\b[^=]*=\s*(\{.*?\})\s*$", re.MULTILINE)


def read(path: str) -> "bytes | None":
    """The text of a regular file, None for anything else."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        data = file.read(MOST_BYTES + 1)
    return data if len(data) <= MOST_BYTES else None


class World:
    """Where modules are looked for."""

    def __init__(self, asked: "dict[str, Any]") -> None:
        self.loose = False
        self.provided = set(sys.builtin_module_names) | set(getattr(sys, "stdlib_module_names", ()))
        self.local: list[str] = [os.path.dirname(os.path.realpath(asked["file"]))]
        self.local += [os.path.join(os.getcwd(), path) for path in asked["paths"] if path]
        self.prefix = sys.prefix
        self.sites: list[str] = []
        for folder in self.site_folders(asked["home"]):
            self.add_site(folder)
        self.path = self.local + sys.path + self.sites

    def site_folders(self, home: str) -> "Iterator[str]":
        version = "python%d.%d" % sys.version_info[:2]
        venv = os.path.dirname(os.path.dirname(sys.executable))
        said = read(os.path.join(venv, "pyvenv.cfg"))
        if said is not None:
            self.prefix = venv
            for lib in ("lib", "lib64"):
                yield os.path.join(venv, lib, version, "site-packages")
            if not re.search(
                rb"^include-system-site-packages\s*=\s*true", said, re.MULTILINE | re.IGNORECASE
            ):
                return
        yield os.path.join(home, ".local", "lib", version, "site-packages")
        for prefix in dict.fromkeys((sys.base_prefix, sys.base_exec_prefix, sys.prefix)):
            for lib in ("lib", "lib64", "local/lib"):
                for name in ("site-packages", "dist-packages"):
                    yield os.path.join(prefix, lib, version, name)
            yield os.path.join(prefix, "lib", "python3", "dist-packages")
        yield os.path.join("/usr/local/lib", version, "dist-packages")

    def add_site(self, folder: str) -> None:
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            return
        self.sites.append(folder)
        for name in names:
            if name.endswith(".pth") and not name.startswith("."):
                self.add_pth(folder, name)

    def add_pth(self, folder: str, name: str) -> None:
        data = read(os.path.join(folder, name))
        if data is None:
            self.loose = True
            return
        for line in data.decode("utf-8", "replace").splitlines():
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            if not line.startswith(("import ", "import\t")):
                self.sites.append(os.path.join(folder, line))
                continue
            if name == "distutils-precedence.pth":
                self.provided.add("distutils")
            finder = re.match(r"import (__editable___\w+_finder)\b", line)
            if finder:
                self.add_editable(folder, finder.group(1))
            elif not name.startswith(HARMLESS):
                self.loose = True

    def add_editable(self, folder: str, module: str) -> None:
        text = (read(os.path.join(folder, module + ".py")) or b"").decode("utf-8", "replace")
        found = MAPPING.findall(text)
        if not found:
            self.loose = True
        for _, value in found:
            try:
                self.provided.update(str(key).partition(".")[0] for key in ast.literal_eval(value))
            except (ValueError, SyntaxError):
                self.loose = True

    def find(self, name: str, path: "list[str] | None" = None) -> "str | None":
        """Where a module is: its file, "" for one without a file, None where there is none."""
        if path is None and name in self.provided and not self.beside(name):
            return ""
        try:
            spec = PathFinder.find_spec(name, self.path if path is None else path)
        except (ImportError, OSError, ValueError):
            self.loose = True
            return ""
        if spec is None:
            return None
        return spec.origin or ""

    def beside(self, name: str) -> bool:
        return any(os.path.exists(os.path.join(folder, name + ".py")) for folder in self.local)

    def is_local(self, origin: str) -> bool:
        return (
            origin.endswith(".py")
            and any(origin.startswith(folder.rstrip("/") + "/") for folder in self.local)
            and not any(origin.startswith(folder.rstrip("/") + "/") for folder in self.sites + sys.path)
        )


def imports(tree: ast.Module, main: bool) -> "Iterator[tuple[int, str, int, list[str]]]":
    """The imports that are run whenever the file is: (level, module, line)."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield 0, alias.name, node.lineno, []
        elif isinstance(node, ast.ImportFrom):
            if node.module == "__future__":
                continue
            if node.module:
                yield node.level, node.module, node.lineno, [alias.name for alias in node.names]
        elif isinstance(node, (ast.Try, ast.While)) or (isinstance(node, ast.If) and not main):
            continue
        elif isinstance(node, ast.Raise):
            return
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            name = getattr(node.value.func, "attr", getattr(node.value.func, "id", ""))
            if name in ("exit", "_exit", "quit", "execv", "execvp", "skip"):
                return


def check(asked: "dict[str, Any]") -> "dict[str, Any]":
    """All files from the first one on."""
    world = World(asked)
    syntax: list[list[Any]] = []
    missing: list[list[Any]] = []
    waiting = [(str(asked["file"]), True)]
    seen: set[str] = set()
    while waiting and len(seen) < asked["most"]:
        path, main = waiting.pop(0)
        if os.path.realpath(path) in seen:
            continue
        seen.add(os.path.realpath(path))
        data = read(path)
        if data is None:
            continue
        if LOOSE.search(data):
            world.loose = True
        try:
            tree = ast.parse(data, path)
            compile(tree, path, "exec", 0, True)
        except SyntaxError as error:
            syntax.append([path, error.lineno or 0, "%s: %s" % (type(error).__name__, error.msg)])
            continue
        except (ValueError, RecursionError, MemoryError, OverflowError):
            continue
        package = os.path.dirname(path)
        for level, module, line, names in imports(tree, main):
            first, _, rest = module.partition(".")
            if level > 1 or (level and main):
                continue
            origin = world.find(first, [package]) if level else world.find(first)
            if origin is None:
                missing.append([path, line, ("." if level else "") + first])
            elif origin and (level or world.is_local(origin)):
                waiting.append((origin, False))
                inside = [rest.partition(".")[0]] if rest else names
                for name in inside if origin.endswith("/__init__.py") else ():
                    inner = world.find(name, [os.path.dirname(origin)])
                    if inner and inner.endswith(".py"):
                        waiting.append((inner, False))
    return {
        "version": list(sys.version_info[:3]),
        "prefix": world.prefix,
        "syntax": syntax,
        "missing": missing,
        "loose": world.loose,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(check(json.loads(sys.stdin.read()))))
