"""``gsub-noded``: read the command line, say what is wrong with it, run the agent."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from profiler.arguments import seconds
from profiler.logs import log_to_stderr
from prolog_epilog.agent.settings import Settings, SettingsError, boot_id, node_name, slurmd_spool
from prolog_epilog.health.command import find_weakness
from site_configs.site import SiteError, find_site, load_site

__all__ = ["main"]

USAGE = 2
"""Exit code for a configuration that cannot work; systemd does not start us again after it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the agent.

    Exit code 0 after SIGTERM, 1 when it cannot have its folders or can look no more, 2 for a wrong configuration.
    """
    arguments = _parser().parse_args(argv)
    log_to_stderr("gsub-noded", verbose=arguments.verbose)
    os.umask(0o077)
    from prolog_epilog.agent.alone import NotAloneError, alone

    try:
        settings = _settings(arguments)
        alone(settings.spool)  # before the spool is opened, which clears up what another one may be writing
        if settings.site.slurm.conf:
            os.environ["SLURM_CONF"] = settings.site.slurm.conf  # for slurmd -G
        from prolog_epilog.agent.daemon import Agent, SamplingDiedError
        from prolog_epilog.agent.parts import real_parts

        agent = Agent(settings, real_parts(settings))
    except (SettingsError, SiteError) as error:
        print(f"gsub-noded: {error}", file=sys.stderr)
        return USAGE
    except NotAloneError as error:  # it may be on its way out: systemd tries again
        print(f"gsub-noded: {error}\n  try: end that one, or give this one another --spool", file=sys.stderr)
        return 1
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: agent.stop())
    try:
        agent.run()
    except SamplingDiedError as error:  # systemd starts us again
        print(f"gsub-noded: {error}\n  why: its fault is in the log above", file=sys.stderr)
        return 1
    except OSError as error:
        print(
            f"gsub-noded: {error}\n  why: {settings.spool} and {settings.run} must be folders that root can write\n"
            "  try: make them, or give others as --spool and --run",
            file=sys.stderr,
        )
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gsub-noded",
        description="Knows a node's jobs, samples its GPUs, delivers records to gsubd. See docs/agent.md.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--site", type=Path, metavar="PATH", help="site file (GSUB_SITE, /etc/gsub/site.toml)"
    )
    parser.add_argument(
        "--node", metavar="NAME", help="Slurm's name of this node (SLURMD_NODENAME, the host's)"
    )
    parser.add_argument(
        "--run",
        type=Path,
        default=Path("/run/gsub-noded"),
        metavar="DIR",
        help="folder in memory that the hooks fall back to (%(default)s)",
    )
    parser.add_argument(
        "--spool", type=Path, metavar="DIR", help="folder for records (the site file's agent.spool)"
    )
    parser.add_argument(
        "--slurmd-spool",
        type=Path,
        metavar="DIR",
        help="slurmd's spool folder (SlurmdSpoolDir of slurm.conf)",
    )
    parser.add_argument(
        "--interval",
        type=seconds(0.1, 3600),
        metavar="SECONDS",
        help="from one look at the GPUs to the next (the site file's agent.interval)",
    )
    parser.add_argument("--verbose", action="store_true", help="log more")
    return parser


def _settings(arguments: argparse.Namespace) -> Settings:
    """Raises SettingsError, SiteError."""
    path = arguments.site or find_site()
    if path is None:
        raise SettingsError(
            "no site file",
            "records are kept under its cluster's name",
            "write /etc/gsub/site.toml, or give --site",
        )
    site = load_site(path)
    node = node_name(arguments.node, os.environ)
    return Settings(
        site=site,
        node=node,
        run=arguments.run.absolute(),
        spool=(arguments.spool or Path(site.agent.spool)).absolute(),
        slurmd_spool=slurmd_spool(arguments.slurmd_spool, site.slurm.conf, node),
        interval=arguments.interval or float(site.agent.interval),
        boot=boot_id(),
        untrusted=find_weakness(path),
    )


if __name__ == "__main__":
    sys.exit(main())
