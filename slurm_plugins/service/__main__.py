"""``gsubd``: read the command line, say what is wrong with it, run the daemon."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from profiler.arguments import seconds
from profiler.logs import log_to_stderr
from site_configs.site import SiteError, find_site
from slurm_plugins.service.daemon import Daemon, Options
from slurm_plugins.service.errors import StartError
from slurm_plugins.service.keeping import Keep
from slurm_plugins.service.peers import allowed_uids
from slurm_plugins.service.polling import EVERY
from slurm_plugins.service.site_watch import SiteFile

__all__ = ["main"]

USAGE = 2
"""Exit code for a configuration that cannot work; systemd does not start us again after it."""

METRICS, API = "127.0.0.1:6830", "0.0.0.0:6831"
"""Where metrics and the API answer if nothing else is said."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run gsubd. Exit code 0 after SIGTERM, 2 for a wrong configuration."""
    arguments = _parser().parse_args(argv)
    # Until the event loop hears signals there is nothing that would have to be ended in order
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    log_to_stderr("gsubd", verbose=arguments.verbose)
    try:
        site = SiteFile(arguments.site or find_site())
        asyncio.run(_serve(_options(arguments, site), site))
    except (StartError, SiteError) as error:
        print(f"gsubd: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        return 130
    return 0


async def _serve(options: Options, site: SiteFile) -> None:
    from slurm_plugins.decide.plugins import all_stages

    stages, problems = all_stages()
    for problem in problems:
        logging.getLogger("gsubd").error("%s", problem)
    # Threads write records and read reports beside the loop: they give way after 0.5 ms, not after 5
    sys.setswitchinterval(0.0005)
    daemon = Daemon(options, site, stages=stages)
    # All that is loaded by now stays: the collector needs not walk it while a submission waits
    gc.collect()
    gc.freeze()
    # A walk through what came later takes 10 ms while 20,000 jobs are joined [measured], and finds next to nothing: the
    # young are looked through as ever, the old a hundred times less often
    young, middle, old = gc.get_threshold()
    gc.set_threshold(young, middle, 100 * old)
    await daemon.run()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gsubd",
        description="Answers the shim in slurmctld: decides what each submission gets. See docs/service.md.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--site", type=Path, metavar="PATH", help="site file (GSUB_SITE, /etc/gsub/site.toml)"
    )
    parser.add_argument(
        "--socket", type=Path, metavar="PATH", help="decision socket (the site file's service.socket)"
    )
    parser.add_argument(
        "--state",
        type=Path,
        default=Path("/var/lib/gsub"),
        metavar="DIR",
        help="folder for records (%(default)s)",
    )
    parser.add_argument(
        "--listen",
        default=METRICS,
        metavar="HOST:PORT",
        help='metrics over HTTP, or "none" (%(default)s)',
    )
    parser.add_argument(
        "--group", metavar="NAME", help="group of the decision socket (slurm, where there is one)"
    )
    parser.add_argument(
        "--allow-uid",
        action="append",
        default=[],
        metavar="USER",
        help="may ask too, beside root and SlurmUser",
    )
    parser.add_argument(
        "--poll",
        type=seconds(5, 3600),
        default=EVERY,
        metavar="SECONDS",
        help="from one look at Slurm to the next, at least 5 (%(default)g)",
    )
    parser.add_argument(
        "--api",
        default=API,
        metavar="HOST:PORT",
        help='collect records and answer the HTTP API here, or "none" (%(default)s)',
    )
    parser.add_argument("--store", metavar="URL", help="address of the store (the site file's store.url)")
    parser.add_argument(
        "--act", type=Path, metavar="PATH", help="socket of gsub-act (/run/gsub-act/act.sock)"
    )
    parser.add_argument("--verbose", action="store_true", help="log more")
    return parser


def _options(arguments: argparse.Namespace, site: SiteFile) -> Options:
    socket = arguments.socket or Path(site.taken.site.service.socket)
    return Options(
        socket=socket.absolute(),
        state=arguments.state.absolute(),
        group=arguments.group,
        listen=_address("--listen", arguments.listen, METRICS),
        keep=_keep(arguments),
        allowed=allowed_uids(arguments.allow_uid),
        poll=arguments.poll,
    )


def _keep(arguments: argparse.Namespace) -> Keep | None:
    """How the keeper is started; None: not at all."""
    address = _address("--api", arguments.api, API)
    if re.match(r"[^/]*://([^/@]*:[^/@]*@|\S*[?&]password=)", arguments.store or ""):
        raise StartError(
            "--store holds a password",
            "every user of this host can read it in the list of processes",
            "put it into ~/.pgpass of gsubd's user, and leave it out here",
        )
    act = None if arguments.act is None else arguments.act.absolute()
    return None if address is None else Keep(address, arguments.store, act)


def _address(option: str, text: str, example: str) -> tuple[str, int] | None:
    """Host and port; None for "none". Raises StartError."""
    if text == "none":
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise StartError(f"{option} {text}", "that is no HOST:PORT", f'write it like {example}, or "none"')
    return host.strip("[]"), int(port)


if __name__ == "__main__":
    sys.exit(main())
