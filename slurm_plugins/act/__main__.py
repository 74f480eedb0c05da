"""``gsub-act``: read the command line, say what is wrong with it or with our rights in Slurm, run the daemon."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import pwd
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from profiler.logs import Troubles, log_to_stderr, one_line
from profiler.notify import Notifier
from site_configs.site import SiteError, find_site
from slurm_plugins.act.ask import SOCKET
from slurm_plugins.act.daemon import Daemon, Options
from slurm_plugins.act.desk import OFF
from slurm_plugins.act.slurm import Commands, Whom
from slurm_plugins.service.errors import StartError
from slurm_plugins.service.look import slurm_environment
from slurm_plugins.service.peers import allowed_uids
from slurm_plugins.service.site_watch import SiteFile

__all__ = ["main"]

USAGE = 2
"""Exit code for a configuration that cannot work; systemd does not start us again after it."""
STATE = Path("/var/lib/gsub-act")
_AGAIN: Final = 5.0

_log = logging.getLogger("gsub-act")


def main(argv: Sequence[str] | None = None) -> int:
    """Run gsub-act. Exit code 0 after SIGTERM, 2 for a wrong configuration."""
    arguments = _parser().parse_args(argv)
    # As an exception until the event loop hears signals: a command of Slurm that still runs is ended with us
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    log_to_stderr("gsub-act", verbose=arguments.verbose)
    try:
        site = SiteFile(arguments.site or find_site())
        whom = Whom.us(as_slurm_user=arguments.as_slurm_user)
        env = slurm_environment(os.environ, site.taken.site)
        _check_rights(Commands(lambda: env, whom), site.taken.site.cluster)
        options = _options(arguments, site)
        _persist(lambda: asyncio.run(_serve(options, site, whom)))
    except (StartError, SiteError) as error:
        print(f"gsub-act: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        return 130
    return 0


def _persist(serve: Callable[[], None], *, pause: Callable[[float], object] = time.sleep) -> None:
    """Serve; while a disk that may recover is in the way, say so once and try again: nobody else would start us.

    Raises StartError for what does not pass.
    """
    troubles, notifier = Troubles(_log), Notifier(os.environ)
    while True:
        try:
            serve()
            return
        except StartError as error:
            if not error.passes:
                raise
            troubles.say("nothing can be done yet, it is tried again", f"{error.what}: {error.why}")
        notifier.send("STATUS=waiting for a disk", f"EXTEND_TIMEOUT_USEC={int(12 * _AGAIN * 1e6)}")
        pause(_AGAIN)


async def _serve(options: Options, site: SiteFile, whom: Whom) -> None:
    daemon = Daemon(
        options,
        site,
        lambda now: Commands(lambda: slurm_environment(os.environ, now()), whom),
        env=os.environ,
        clock=time.time,
    )
    await daemon.run()


def _check_rights(slurm: Commands, cluster: str) -> None:
    """Raises StartError for what no waiting mends; a Slurm that does not answer yet is asked again later."""
    if not cluster:
        raise StartError(
            "there is no site file, so there is nothing to do",
            "without one gsub observes, and gsub-act acts for no cluster",
            "name one with --site, or write /etc/gsub/site.toml",
        )
    rights = slurm.rights()
    if rights.enough is False:
        raise StartError("gsub-act may not act here", rights.why, rights.fix)
    if rights.cluster and rights.cluster != cluster:
        raise StartError(
            f"the site file is of cluster {cluster}",
            f"slurmctld is that of {rights.cluster}",
            "correct `cluster`, or `slurm.conf`, in the site file",
        )
    if rights.enough is None:
        _log.warning("what Slurm lets us do is not known yet: %s", one_line(rights.why))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gsub-act",
        description="Requeues, holds and releases jobs for gsubd, by a fixed table. See docs/gsub-act.md.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--site", type=Path, metavar="PATH", help="site file (GSUB_SITE, /etc/gsub/site.toml)")
    add("--socket", type=Path, default=SOCKET, metavar="PATH", help="where it is asked (%(default)s)")
    add("--state", type=Path, default=STATE, metavar="DIR", help="folder of its journal (%(default)s)")
    add("--group", metavar="NAME", help="group of the socket (that of gsubd's user)")
    add("--off", type=Path, metavar="PATH", help="off switch (act.off beside the site file)")
    add("--allow-uid", action="append", default=[], metavar="USER", help="may ask too, beside root and gsubd")
    add("--as-slurm-user", action="store_true", help="run as SlurmUser, where Slurm knows no operators")
    add("--verbose", action="store_true", help="log more")
    return parser


def _group_of(user: str) -> str:
    """The group of gsubd's user, as a number. Raises StartError."""
    try:
        return str(pwd.getpwnam(user).pw_gid)
    except KeyError:
        raise StartError(
            f"there is no user {user} here",
            "gsubd runs as it, and is who asks",
            "see service.user in the site file",
        ) from None


def _options(arguments: argparse.Namespace, site: SiteFile) -> Options:
    off = arguments.off or (OFF if site.path is None else site.path.absolute().parent / OFF.name)
    return Options(
        socket=arguments.socket.absolute(),
        state=arguments.state.absolute(),
        off=off.absolute(),
        group=arguments.group or _group_of(site.taken.site.service.user),
        callers=allowed_uids(arguments.allow_uid),
    )


if __name__ == "__main__":
    sys.exit(main())
