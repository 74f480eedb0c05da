"""``python -m slurm_plugins.service.keeper``: started by gsubd, as its child."""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from profiler.logs import log_to_stderr
from profiler.munge import Munge
from site_configs.site import SiteError
from slurm_plugins.act.ask import SOCKET
from slurm_plugins.service.answering import die_with
from slurm_plugins.service.keeper.keeper import Keeper, Options
from slurm_plugins.service.site_watch import SiteFile

__all__ = ["main"]

USAGE = 2
_SACRIFICE = "300"
"""Of two that need memory the kernel is to end this one, not gsubd (proc_pid_oom_score_adj(5))."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the keeper. Exit code 0 after gsubd's end or SIGTERM, 2 for a wrong configuration."""
    arguments = _parser().parse_args(argv)
    log_to_stderr("gsubd: keeper", verbose=False)
    if arguments.parent:
        die_with(arguments.parent)
    try:
        file = SiteFile(arguments.site)
    except SiteError as error:
        print(f"gsubd: keeper: {error}", file=sys.stderr)
        return USAGE
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_SACRIFICE)
    host, _, port = arguments.listen.rpartition(":")
    site = file.taken.site
    options = Options(
        listen=(host.strip("[]"), int(port)),
        state=arguments.state,
        store=arguments.store or site.store.url,
        every=arguments.every,
        pipes=bool(arguments.parent),
        act=arguments.act,
    )
    gc.freeze()
    try:
        asyncio.run(_run(options, file))
    except OSError as error:
        print(f"gsubd: keeper: cannot work in {options.state}: {error}", file=sys.stderr)
        return 1
    return 0


async def _run(options: Options, file: SiteFile) -> None:
    munged = Munge(file.taken.site.slurm.munge_socket)
    await Keeper(options, file.taken, os.fspath(file.path or ""), munged=munged).run()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m slurm_plugins.service.keeper",
        description="Collects records and answers the HTTP API. gsubd starts it; see docs/api.md.",
        allow_abbrev=False,
    )
    parser.add_argument("--site", type=Path, required=True, metavar="PATH", help="site file")
    parser.add_argument("--state", type=Path, required=True, metavar="DIR", help="gsubd's folder for records")
    parser.add_argument("--listen", required=True, metavar="HOST:PORT", help="where the API answers")
    parser.add_argument("--store", metavar="URL", help="address of the store (the site file's store.url)")
    parser.add_argument(
        "--every", type=float, default=30.0, metavar="SECONDS", help="from one look at Slurm to the next"
    )
    parser.add_argument(
        "--act", type=Path, default=SOCKET, metavar="PATH", help="socket of gsub-act (%(default)s)"
    )
    parser.add_argument(
        "--parent",
        type=int,
        metavar="PID",
        help="gsubd: its end is ours; standard input and output lead to it",
    )
    return parser


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    # What is written is on disk. Threads that wait for munged or a database, or remove old records, need not end first.
    os._exit(code)
