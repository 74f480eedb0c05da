"""Which runs are the same workload: fingerprints of what is run, and what they rest on. Pure.

What changes from run to run and says nothing about speed is left out: seeds, where output goes, names of runs, dates
and ids, ports, Slurm's options, comments and layout. What is left are tokens: words of the script, its arguments, and
the environment variables that can matter. `identify` tells of each token whether it counted, or why not.

The fingerprints of an identity, the most telling first; runs that share one of them share what was learnt:

1. ``own:`` the name that the user gave (``--workload=NAME``, or ``gsub:workload=NAME`` in the comment), alone then.
2. ``run:`` script, arguments and environment.
3. ``args:`` script and arguments.
4. ``script:`` the script's lines as they are, without comments and layout, and the job's name without its digits.
5. ``text:`` the same without the name.
6. ``like:`` the script's tokens, and the job's name without its digits.
7. ``name:`` that name alone, for jobs without a script. (With one, the name says too little: an edited script is
another workload.)

A submission that did not come through gsub shows its script and name only: it is known from ``script:`` on.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

__all__ = ["Identity", "Token", "essence", "exact", "identify", "like", "owned", "stem"]

Part = Literal["script", "argument", "environment", "name"]

_DIGITS: Final = re.compile(r"\d+")
_BLANKS: Final = re.compile(r"[ \t\f\v\r]+")
_MAX_SCRIPT: Final = 256 * 1024
_MAX_WORDS: Final = 20_000
_MAX_TOKEN: Final = 4096
_MAX_NAME: Final = 64


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of what is run, as it counted: `why` is empty, or says why it (or a part of it) was left out."""

    part: Part
    text: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Identity:
    """Fingerprints, the most telling first, and what they rest on.

    >>> one = identify("python train.py --lr 0.1 --seed 7 --out runs/7", name="lr-0.1-seed-7")
    >>> other = identify("python train.py --lr 0.1 --seed 8 --out runs/8", name="lr-0.1-seed-8")
    >>> one.fingerprints[0] == other.fingerprints[0]
    True
    >>> [(token.text, token.why) for token in one.ignored]
    [('--seed 7', 'a seed'), ('--out runs/7', 'where output goes'), ('digits of lr-0.1-seed-7', 'a number of the run')]
    """

    fingerprints: tuple[str, ...]
    tokens: tuple[Token, ...]

    @property
    def counted(self) -> tuple[Token, ...]:
        """What the fingerprints rest on, in order."""
        return tuple(token for token in self.tokens if not token.why)

    @property
    def ignored(self) -> tuple[Token, ...]:
        """What was left out, each with why."""
        return tuple(token for token in self.tokens if token.why)


# --- what is left out -----------------------------------------------------------------------------------------------

SEED: Final = "a seed"
OUTPUT: Final = "where output goes"
RUN: Final = "a name of the run"
PLACE: Final = "a port or an address"
STEM: Final = "a number of the run"

# Names of options, of variables and of Hydra's overrides, in lower case, with _ for - and without leading dashes.
_NAMES: Final = (
    (re.compile(r"(?:\w{0,40}[_.])?(?:seed|random_state|rng)(?:[_.]?\d{0,3})"), SEED),
    (
        re.compile(
            r"(?:\w{0,40}[_.])?(?:output_?(?:dir|path|file|folder|root|prefix)|out_?(?:dir|path|file|folder)|"
            r"save_?(?:dir|path|to|folder|root)|(?:ckpt|checkpoints?)_?(?:dir|path|folder|root|out)|"
            r"log_?(?:dir|path|file|folder|root)|logging_dir|default_root_dir|work_?dir|run_?dir|"
            r"exp(?:eriment)?_?dir|results?_?(?:dir|path|file)|tensorboard_?(?:dir|log)|tb_?dir|dump_?(?:dir|path)|"
            r"profile_?dir|metrics_?(?:file|path)|resume_?from(?:_?checkpoint)?)"
            r"|hydra\.(?:run|sweep)\.dir|o|out|outputs?|save|ckpt|checkpoints?|logs?|results?|resume|tensorboard"
        ),
        OUTPUT,
    ),
    (
        re.compile(
            r"(?:\w{0,40}[_.])?(?:run|exp|experiment|trial|job|mlflow_run)_?(?:name|id|tag)"
            r"|wandb[_.]?(?:name|id|group|tags?|notes|project|entity)|tags?|notes|comment|date|timestamp|user"
        ),
        RUN,
    ),
    (
        re.compile(
            r"(?:\w{0,40}[_.])?(?:master_?(?:port|addr)|rdzv_?(?:id|endpoint)|main_process_(?:port|ip)|dist_?url|"
            r"init_?method|node_?rank|machine_?rank|hostfile|nodelist)|port"
        ),
        PLACE,
    ),
)

# Parts of words that differ from run to run wherever they stand.
_MASKS: Final = (
    (re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"), "<id>", "an id"),
    (
        re.compile(
            r"(?<!\d)(?:19|20)\d\d[-_./]?(?:0[1-9]|1[0-2])[-_./]?(?:0[1-9]|[12]\d|3[01])"
            r"(?:[-_T. ]?\d\d[-_:.h]?\d\d(?:[-_:.m]?\d\d)?)?(?!\d)"
        ),
        "<date>",
        "a date",
    ),
    (re.compile(r"(?<![\d:])\d\d:\d\d:\d\d(?![\d:])"), "<time>", "a time of day"),
    (
        re.compile(r"\$\{?SLURM_[A-Z_]{0,40}(?:JOB_?ID|TASK_ID|JOB_NAME|NODELIST|PROCID|NODEID)\}?|%[jAaxN]\b"),
        "<job>",
        "an id of the job",
    ),
    (re.compile(r"(/tmp/tmp[._-]?)[A-Za-z0-9_]{4,16}"), r"\1<id>", "a temporary name"),
)  # fmt: skip

# Variables of the environment that count, whoever set them: what chooses the software and how it spreads over CPUs.
_VARIABLES: Final = frozenset(
    {
        "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "LOADEDMODULES", "PYTHONPATH", "APPTAINER_CONTAINER",
        "SINGULARITY_CONTAINER", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS",
        "TORCH_CUDNN_BENCHMARK", "TF_FORCE_GPU_ALLOW_GROWTH", "PYTORCH_CUDA_ALLOC_CONF", "NVIDIA_TF32_OVERRIDE",
        "CUDA_LAUNCH_BLOCKING", "TOKENIZERS_PARALLELISM",
    }
)  # fmt: skip
# Those that never do, though a script may name them.
_NEVER: Final = re.compile(
    r"(?:SLURM|SBATCH|SRUN|SSH|XDG|LC|GSUB|DBUS|PMI|PMIX|WANDB)_.*|HOME|USER|LOGNAME|PATH|PWD|OLDPWD|TMPDIR|TMP|TEMP|"
    r"SHELL|SHLVL|TERM|LANG|HOSTNAME|HOST|MAIL|DISPLAY|EDITOR|PAGER|RANDOM|SECONDS|BASHPID|PPID|UID|EUID|_|GSUB|"
    r"LD_LIBRARY_PATH|PYTHONHASHSEED|PS\d"
)
_SECRET: Final = re.compile(
    r"(?:^|[_-])(?:(?:api|auth|access|hub|hf|bearer|github|secret|private)[_-]?(?:token|key)|secret|passw(?:or)?d|"
    r"credentials?)$|^-{0,2}token$",
    re.IGNORECASE,
)
_USED: Final = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]{0,63})")

# A word of a shell's line: plain characters, escaped ones, and what stands in quotes.
_WORD: Final = re.compile(
    r"""(?:[^\s"'\\;|&<>]|\\.|"(?:[^"\\]|\\.){0,4096}"|'[^']{0,4096}')+|["'\\]|[;|&<>]+""", re.DOTALL
)
_REDIRECTION: Final = re.compile(r"&?\d?>{1,2}&?|>\|")
_ASSIGNED: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.+/]{0,63}\+?=")
_OPTION: Final = re.compile(r"-{1,2}[A-Za-z][A-Za-z0-9_.-]{0,63}")


# --- identities -----------------------------------------------------------------------------------------------------


def identify(
    script: str = "",
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    *,
    name: str = "",
    own: str = "",
    tail: int = 0,
) -> Identity:
    """The identity of a run.

    Parameters
    ----------
    script: its text, or its first 64 KiB, which is what decisions see; `tail` is then its length in bytes, else 0.
    arguments: what the script is called with.
    environment: of it count the variables that choose software and threads, and those that the script names.
    name: the job's. own: the name that the user gave the workload; empty for none.

    What is secret by its name (tokens, keys, passwords) is in no fingerprint and in no token.
    """
    words = tuple(_script(script[:_MAX_SCRIPT]))
    called = tuple(_tokens(list(arguments)[:_MAX_WORDS], "argument"))
    around = tuple(_environment(environment or {}, script[:_MAX_SCRIPT]))
    known = (Token("name", stem(name)[:_MAX_TOKEN]), *_named(name)) if stem(name) else ()
    tokens = (*words, *called, *around, *known)
    if own_name := owned(own):
        return Identity((own_name,), tokens)
    body = _counted(words)
    if not body:
        return Identity(exact(script, name, tail), tokens)
    args = f"{tail}\n{body}\0{_counted(called)}"
    whole = _digest(f"{args}\0{_counted(around)}")
    fingerprints = (
        f"run:{whole}",
        f"args:{_digest(args)}",
        *exact(script, name, tail),
        like(script, name, tail),
    )
    return Identity(fingerprints, tokens)


def owned(name: str) -> str:
    """The fingerprint that a user's own name for a workload is; empty for none.

    On one line, short, in lower case: as a word of a job's comment can hold it.

    >>> owned("My ResNet"), owned(" ")
    ('own:my-resnet', '')
    """
    line = "-".join("".join(sign if sign.isprintable() else " " for sign in name).split())
    return f"own:{line[:_MAX_NAME].lower()}" if line else ""


def like(script: str, name: str, tail: int = 0) -> str:
    """The fingerprint of a script without what changes from run to run, with the name's stem; empty for no script."""
    body = _words_of(script[:_MAX_SCRIPT])
    return f"like:{_digest(f'{tail}{chr(10)}{body}{chr(0)}{stem(name)}')}" if body else ""


@lru_cache(
    maxsize=32
)  # reading a script's words takes some milliseconds, and a sweep has a name for each of its jobs
def _words_of(script: str) -> str:
    return _counted(_script(script))


def exact(script: str, name: str, tail: int = 0) -> tuple[str, ...]:
    """The fingerprints of a submission of which the script and the name are known; stable across releases.

    ``script:`` its lines with the name's stem, then ``text:`` its lines; without a script ``name:``. `tail` is the
    whole length of a script of which only the beginning is known, else 0.

    >>> exact("#SBATCH -G 1\\n", "run-17")
    ('name:run-#',)
    """
    body = _body(script, tail)
    if not body:
        return (_name_key(name),) if stem(name) else ()
    both = _digest(f"{body}\n{stem(name)}")
    return f"script:{both}", f"text:{body}"


def stem(name: str) -> str:
    """A job's name without what numbers its runs.

    >>> stem("lr-0.1-seed-7")
    'lr-#.#-seed-#'
    """
    return _DIGITS.sub("#", name.strip())


def essence(script: str) -> str:
    """What a script does, without comments (#SBATCH and the first line are some) and its layout.

    >>> essence("#!/bin/sh\\n#SBATCH -G 1\\n\\n  python   train.py\\n")
    'python train.py'
    """
    lines = (_BLANKS.sub(" ", line).strip() for line in script.split("\n"))
    return "\n".join(line for line in lines if line and not line.startswith("#"))


def _name_key(name: str) -> str:
    return f"name:{stem(name)}"[:256]


@lru_cache(maxsize=32)  # stages ask for one request after the other, and sweeps submit one script many times
def _body(script: str, tail: int) -> str:
    text = essence(script)
    return _digest(f"{tail}\n{text}") if text else ""


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:32]


def _counted(tokens: Iterable[Token]) -> str:
    return "\n".join(token.text for token in tokens if not token.why)


def _named(name: str) -> tuple[Token, ...]:
    return (
        (Token("name", f"digits of {name.strip()[:_MAX_TOKEN]}", STEM),) if stem(name) != name.strip() else ()
    )


# --- tokens ---------------------------------------------------------------------------------------------------------


def _script(script: str) -> Iterator[Token]:
    left = _MAX_WORDS
    for line in essence(script.replace("\\\n", " ")).split("\n"):
        words = []
        for match in _WORD.finditer(line):
            word = match[0]
            if word.startswith("#"):
                break  # a comment at the line's end
            words.append(word)
        yield from _tokens(words[:left], "script")
        left -= len(words)
        if left <= 0:
            return
        if words:
            yield Token("script", ";")


def _tokens(words: Sequence[str], part: Part) -> Iterator[Token]:
    """Words as tokens: an option whose value does not count goes with its value."""
    index = 0
    while index < len(words):
        word = words[index][:_MAX_TOKEN]
        after = words[index + 1][:_MAX_TOKEN] if index + 1 < len(words) else None
        index += 1
        if _REDIRECTION.fullmatch(word) and part == "script":
            index += after is not None
            yield Token(part, f"{word} {after or ''}".strip(), OUTPUT)
            continue
        if word in ("tee", "mkdir") and part == "script":
            while index < len(words) and not set(words[index]) & set(";|&"):
                word += f" {words[index][:_MAX_TOKEN]}"
                index += 1
            yield Token(part, word, OUTPUT)
            continue
        key, is_equal, value = word.partition("=")
        named = bool(_OPTION.fullmatch(key)) or (bool(is_equal) and bool(_ASSIGNED.match(word)))
        why = _ignored(key) if named else ""
        if _SECRET.search(key) and named:
            why = "may be secret"
            value = "..."
        if not why:
            yield from _masked(word, part)
        elif is_equal:
            yield Token(part, f"{key}={value}", why)
        elif after is not None and not _OPTION.fullmatch(after) and not set(after) & set(";|&<>"):
            index += 1
            yield Token(part, f"{word} {'...' if why == 'may be secret' else after}", why)
        else:
            yield Token(part, word)


def _ignored(key: str) -> str:
    name = key.lstrip("-+").rstrip("+").lower().replace("-", "_")
    if len(key) == 2 and key.startswith("-") and key != "-o":
        return ""  # single letters mean something else to each program
    for pattern, why in _NAMES:
        if pattern.fullmatch(name):
            return why
    return ""


def _masked(word: str, part: Part) -> Iterator[Token]:
    text, whys = word, []
    for pattern, sign, why in _MASKS:
        text, count = pattern.subn(sign, text)
        if count:
            whys.append(why)
    if whys:
        yield Token(part, f"in {word}", ", ".join(whys))
    yield Token(part, text)


def _environment(environment: Mapping[str, str], script: str) -> Iterator[Token]:
    used = set(_USED.findall(script))
    for name in sorted(environment):
        if name not in used and name not in _VARIABLES:
            continue  # most of an environment is nobody's choice
        if _SECRET.search(name):
            yield Token("environment", f"{name}=...", "may be secret")
        elif _NEVER.fullmatch(name):
            continue
        elif why := _ignored(name):
            yield Token("environment", f"{name}={environment[name][:_MAX_TOKEN]}", why)
        else:
            yield from _masked(f"{name}={environment[name][:_MAX_TOKEN]}", "environment")
