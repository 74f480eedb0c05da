"""The signatures that `gsub why` reads logs by: gsub's own and, where there is a site file, the site's."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gsub.term import one_line

if TYPE_CHECKING:
    from prolog_epilog.failures.signature import Rules

__all__ = ["site_rules"]


def site_rules(environ: Mapping[str, str] | None = None) -> Rules:
    """Ours and the site's. Where the site's cannot be used, ours alone, and a line on standard error says why.

    No site file is needed: a log can be judged on a laptop.
    """
    from prolog_epilog.failures.signature import SignatureError, load
    from site_configs.site import SiteError, find_site, load_site

    path = find_site(environ)
    try:
        return load(load_site(path).failures.signatures if path is not None else ())
    except (SiteError, SignatureError) as error:
        told = one_line(str(error).partition("\n")[0])
        print(f"gsub: warning: the site's own signatures are not used: {told}", file=sys.stderr)
        return load()
