"""Run by the Python that a script would use, with -I -S: do files compile, are the modules that they import there?

Standard library only, for Python 3.6 and newer. Nothing is imported, and no code of a user's runs: files are compiled
and looked through, modules are looked up by importlib's finders, .pth files are read and not obeyed.

Standard input is a JSON object `{"file": path, "paths": [PYTHONPATH...], "home": folder, "most": files to read}`; with
`module` in place of `file` (`python -m NAME`) modules are looked for in the current folder first.
Standard output is one: `version`, `prefix`, `file` (what is run, "" for what is installed), and lists of [file, line,
text]: `syntax`, `missing` (modules that are not there), `names` (that a module of the user's own does not have),
`relative` (imports that leave their package). `loose` is true where modules may come from places that cannot be seen
this way.
"""

# ruff: noqa: UP031, PTH109, PTH110, PTH118, PTH120, PTH208, D102, PLW2901 - for old Pythons, paths are text

import ast
import json
import os
import re
import stat
import sys
import time
from importlib.machinery import PathFinder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

MOST_BYTES = 1 << 20
SECONDS = 1.2
"""Of CPU time; after that no further file is looked at, so that what was found is told in time."""
HARMLESS = ("distutils-precedence.pth", "_virtualenv.pth", "a1_coverage.pth", "ruff_", "pywin32.pth")
LOOSE = re.compile(
    rb"sys\s*\.\s*path|from sys import|addsitedir|meta_path|path_hooks|sys\s*\.\s*modules"
    rb"|pip\b.{0,12}\binstall|__path__|pyximport|build_ext"
)
ANY_NAME = re.compile(rb"(?<![.\w])(?:globals|locals|vars|exec|eval|setattr)\s*\(|__dict__|import\s*\*")
"""What may give a module names that its text does not show."""
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


class Found:
    """A module as far as it is there: the parts of its name, its file, its folders where it is a package."""

    def __init__(
        self, parts: "list[str]", origin: str = "", folders: "list[str] | None" = None, own: bool = False
    ) -> None:
        self.parts, self.origin, self.folders, self.own = parts, origin, folders, own


class World:
    """Where modules are looked for."""

    def __init__(self, asked: "dict[str, Any]") -> None:
        self.loose = False
        self.provided = set(sys.builtin_module_names) | set(getattr(sys, "stdlib_module_names", ()))
        first = os.path.dirname(os.path.realpath(asked["file"])) if asked["file"] else os.getcwd()
        self.local: list[str] = [first]
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

    def find(self, name: str, path: "list[str] | None" = None) -> "tuple[str, list[str] | None] | None":
        """Where a module is: its file ("" for none, or one that nobody knows) and, of a package, its folders."""
        if path is None and name in self.provided and not self.beside(name):
            return "", None
        try:
            spec = PathFinder.find_spec(name, self.path if path is None else path)
        except (ImportError, OSError, ValueError):
            self.loose = True
            return "", None
        if spec is None:
            return None
        folders = spec.submodule_search_locations
        origin = "" if spec.origin in (None, "namespace") else str(spec.origin)
        return origin, None if folders is None else [str(folder) for folder in folders]

    def resolve(self, parts: "list[str]") -> "Found":
        """A dotted name, as far as it is found; below what is not the user's own nobody looks further."""
        found = Found([])
        folders: list[str] | None = None
        for part in parts:
            one = self.find(part, folders)
            if one is None:
                return found
            origin, folders = one
            own = self.is_local(origin) or (not origin and self.own_folders(folders))
            found = Found([*found.parts, part], origin, folders, own)
            if not own:
                found.parts = list(parts)
                return found
            if folders is None:
                return found
        return found

    def own_folders(self, folders: "list[str] | None") -> bool:
        """Whether a namespace package lies among the user's own files, all of it."""
        return bool(folders) and all(self.is_local(folder + "/x.py") for folder in folders or ())

    def beside(self, name: str) -> bool:
        return any(os.path.exists(os.path.join(folder, name + ".py")) for folder in self.local)

    def is_local(self, origin: str) -> bool:
        return (
            origin.endswith(".py")
            and any(origin.startswith(folder.rstrip("/") + "/") for folder in self.local)
            and not any(origin.startswith(folder.rstrip("/") + "/") for folder in self.sites + sys.path)
        )


def imports(body: "list[ast.stmt]", main: bool) -> "Iterator[ast.Import | ast.ImportFrom]":
    """The imports that are run whenever the file is."""
    for node in body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif isinstance(node, ast.If) and main and ast.dump(node.test) in RUN_AS_PROGRAM:
            yield from imports(node.body, main)
        elif isinstance(node, ast.Raise):
            return
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            name = getattr(node.value.func, "attr", getattr(node.value.func, "id", ""))
            if name in ("exit", "_exit", "quit", "execv", "execvp", "skip"):
                return


RUN_AS_PROGRAM = [
    ast.dump(node.value)
    for node in ast.parse("__name__ == '__main__'\n'__main__' == __name__").body
    if isinstance(node, ast.Expr)
]


class Look:
    """All files from the first one on."""

    def __init__(self, world: World, most: int) -> None:
        self.world = world
        self.most = most
        self.syntax: list[list[Any]] = []
        self.missing: list[list[Any]] = []
        self.relative: list[list[Any]] = []
        self.names: list[list[Any]] = []
        self.waiting: list[tuple[str, list[str], bool]] = []
        self.seen: set[str] = set()
        self.trees: dict[str, ast.Module | None] = {}
        self.closed: dict[str, bool] = {}
        self.bound: dict[str, set[str]] = {}

    def run(self) -> None:
        """Each file: does it compile, and what it imports."""
        until = time.process_time() + SECONDS
        while self.waiting:
            if len(self.seen) >= self.most or time.process_time() > until:
                self.world.loose = True  # what is not looked at may say where modules come from
                return
            path, package, main = self.waiting.pop(0)
            if os.path.realpath(path) in self.seen:
                continue
            self.seen.add(os.path.realpath(path))
            tree = self.tree(path)
            if tree is None:
                continue
            for node in imports(tree.body, main):
                if isinstance(node, ast.Import):
                    for alias in node.names:
                        self.module(path, node.lineno, alias.name.split("."))
                elif node.module != "__future__":
                    self.from_module(path, node, package, main)

    def tree(self, path: str) -> "ast.Module | None":
        """A file, parsed; None where it cannot be read or is wrong, which is noted."""
        if path in self.trees:
            return self.trees[path]
        self.trees[path] = None
        data = read(path)
        if data is None:
            return None
        if LOOSE.search(data):
            self.world.loose = True
        try:
            tree = ast.parse(data, path)
            compile(tree, path, "exec", 0, True)
        except SyntaxError as error:
            self.syntax.append([path, error.lineno or 0, "%s: %s" % (type(error).__name__, error.msg)])
            return None
        except (ValueError, RecursionError, MemoryError, OverflowError):
            return None
        self.trees[path] = tree
        self.closed[path] = not ANY_NAME.search(data) and not LOOSE.search(data)
        return tree

    def add(self, found: Found) -> None:
        """A module of the user's own is looked at too."""
        if found.own and found.origin.endswith(".py"):
            package = found.parts if found.folders is not None else found.parts[:-1]
            self.waiting.append((found.origin, package, False))

    def module(self, path: str, line: int, parts: "list[str]") -> "Found | None":
        """`import a.b`: all of it there, each package looked at; None where it is not."""
        for number in range(1, len(parts) + 1):
            found = self.world.resolve(parts[:number])
            if len(found.parts) < number:
                self.missing.append([path, line, ".".join(parts[:number])])
                return None
            self.add(found)
        return found

    def from_module(self, path: str, node: ast.ImportFrom, package: "list[str]", main: bool) -> None:
        parts = node.module.split(".") if node.module else []
        if node.level:
            if main and not package:
                if b"__package__" not in (read(path) or b"__package__"):
                    self.relative.append([path, node.lineno, "." * node.level + (node.module or "")])
                return
            if node.level > len(package):
                self.relative.append([path, node.lineno, "." * node.level + (node.module or "")])
                return
            parts = package[: len(package) - node.level + 1] + parts
        found = self.module(path, node.lineno, parts)
        if found is None or not found.own:
            return
        for alias in node.names:
            name = alias.name
            if found.folders is not None and self.world.find(name, found.folders) is not None:
                self.add(self.world.resolve([*parts, name]))
            elif name == "*" or name.startswith("__"):
                continue
            elif not found.origin:  # a folder has nothing but its modules
                self.missing.append([path, node.lineno, ".".join([*parts, name])])
            elif not self.has(found, name):
                self.names.append([path, node.lineno, "%s from %s" % (name, ".".join(parts))])

    def has(self, found: Found, name: str) -> bool:
        """Whether a module of the user's own may have a name."""
        if not found.origin.endswith(".py"):
            return True
        tree = self.tree(found.origin)
        if tree is None or not self.closed[found.origin]:
            return True
        if found.origin not in self.bound:
            self.bound[found.origin] = names_of(tree, found.folders is not None)
        bound = self.bound[found.origin]
        return name in bound or "__getattr__" in bound


def names_of(tree: ast.Module, package: bool) -> "set[str]":
    """Every name that is bound anywhere in a file: more than the module has, never less."""
    found: set[str] = set()
    asks = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and package and node.level == 1 and not node.module:
            asks.update(node.names)  # a package that imports from itself gets no name by that
        elif isinstance(node, ast.alias) and node in asks and not node.asname:
            continue
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.Global):
            found.update(node.names)
        else:
            found.update(
                getattr(node, key) for key in ("name", "rest") if isinstance(getattr(node, key, None), str)
            )
    return found


def check(asked: "dict[str, Any]") -> "dict[str, Any]":
    """What is run, and all that it imports of the user's own."""
    world = World(asked)
    look = Look(world, asked["most"])
    path = asked["file"]
    if path:
        look.waiting.append((path, [], True))
    else:
        parts = asked["module"].split(".")
        found = look.module("", 0, parts)
        if found is not None and found.own and found.folders is not None:
            found = look.module("", 0, [*parts, "__main__"])
        if found is not None and found.own:
            path = found.origin
            package = found.parts[:-1]
            look.waiting.append((path, package, True))
            look.waiting.reverse()
    look.run()
    return {
        "version": list(sys.version_info[:3]),
        "prefix": world.prefix,
        "file": path,
        "syntax": look.syntax,
        "missing": look.missing,
        "relative": look.relative,
        "names": look.names,
        "loose": world.loose,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(check(json.loads(sys.stdin.read()))))
