"""job_submit.lua: a marked line at its top that chains gsub behind the site's own rules, and the way back.

The site's text stays as it is below, to the byte, and goes on being the file that Slurm loads again when it changes.
What the line does is in `slurm_plugins/lua/chain.lua`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from slurm_plugins.install.layout import Layout

__all__ = ["OWN", "NotChainableError", "chained", "elsewhere", "is_chained", "shim_folder", "unchained"]

BEGIN: Final = b"-- >>> gsub"
END: Final = b"-- <<< gsub"
_TOLD: Final = b": `gsub admin rollback` takes these lines out"

_START: Final = rb"(?:^|(?<=\A\xef\xbb\xbf))"  # of a line; a byte order mark is none
_BLOCK: Final = re.compile(
    _START + rb"-- >>> gsub[^\n]*\n(?:(?!-- <<< gsub)[^\n]*\n){0,20}-- <<< gsub[^\n]*(?:\n|\Z)", re.MULTILINE
)
# What is left of a block that somebody tore: each of its lines is known by itself, if it is whole.
_STRAY: Final = re.compile(
    _START + rb"(?:-- (?:>>>|<<<) gsub[^\n]*"
    rb"|do local fine, why = pcall\(function\(\) assert\(dofile\(\"[^\n]*chain\.lua\"[^\n]* end end[ \t\r]*)(?:\n|\Z)",
    re.MULTILINE,
)
_SETTINGS: Final = re.compile(rb'"chain\.lua is cut short"\)\(\{(.*?)\}\) end\)', re.DOTALL)
_NAMED: Final = re.compile(
    rb"(?m)^(?!\s*--)[^\n]*\bdofile\s*\(\s*[\"']((?:[^\"'\\\n]|\\\d{3})*)/(?:chain|gsub)\.lua[\"']"
)
_BY_HAND: Final = re.compile(rb"^[^\n]*gsub_shim\.submit\(", re.MULTILINE)

OWN: Final = b"""\
-- job_submit.lua, made by gsub for a site that had none. Rules of the site's own go into these functions: gsub is asked
-- after slurm_job_submit, if that let the job pass.

function slurm_job_submit(job_desc, part_list, submit_uid)
  return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  return slurm.SUCCESS
end

return slurm.SUCCESS
"""
"""What a site gets that has no job_submit.lua, without our lines."""


class NotChainableError(ValueError):
    """Nothing can be put in front of this job_submit.lua; the message says why."""


def chained(site_text: bytes | None, layout: Layout) -> bytes:
    """The site's job_submit.lua with gsub chained behind it; ours, where the site has none.

    One that is chained already gets this layout's line, and keeps what the site has set in it.

    Raises
    ------
    NotChainableError: it is compiled, or calls gsub by other lines already.
    """
    text = OWN if site_text is None else site_text
    kept = _kept(text)
    bare = unchained(text)
    text = OWN if bare is None else bare
    head, rest = _head(text)
    if rest.startswith(b"\x1bLua"):
        raise NotChainableError("job_submit.lua is compiled: gsub can be chained to its source only")
    if _BY_HAND.search(rest):
        raise NotChainableError("job_submit.lua calls gsub by lines put there by hand: take them out first")
    end = b"\r\n" if rest.split(b"\n", 1)[0].endswith(b"\r") else b"\n"
    settings = kept or _socket(layout.run / "decision.sock")
    line = _line(layout.libexec, settings)
    return head + end.join([BEGIN + _TOLD, line, END, rest])


def elsewhere(text: bytes, libexec: Path, socket: Path) -> bytes:
    """A chained job_submit.lua with the shim from another folder, asking at another socket: what a rehearsal loads."""
    line = _line(libexec, _socket(socket))
    return _BLOCK.sub(lambda _: b"\n".join([BEGIN + _TOLD, line, END, b""]), text)


def unchained(text: bytes) -> bytes | None:
    """job_submit.lua without our lines; None: nothing of it is the site's, the file was ours."""
    bare = _STRAY.sub(b"", _BLOCK.sub(b"", text))
    return None if bare == OWN and bare != text else bare


def is_chained(text: bytes) -> bool:
    """Whether our lines are in it."""
    return _STRAY.search(text) is not None


def shim_folder(text: bytes) -> Path | None:
    """Where the shim lies that a job_submit.lua names, by our line or by those put in by hand; None: it names none."""
    found = _NAMED.search(text)
    if found is None:
        return None
    path = re.sub(rb"\\(\d{3})", lambda byte: bytes([int(byte[1]) & 255]), found[1])
    return Path(path.decode(errors="surrogateescape"))


def _kept(text: bytes) -> bytes:
    """What stands between the braces of our line: the shim's settings, which a site may have changed."""
    block = _BLOCK.search(text)
    found = _SETTINGS.search(block[0]) if block else None
    return found[1] if found else b""


def _head(text: bytes) -> tuple[bytes, bytes]:
    """What must stay first for Lua: a byte order mark, and a first line that begins with #."""
    mark = b"\xef\xbb\xbf" if text.startswith(b"\xef\xbb\xbf") else b""
    rest = text[len(mark) :]
    if rest.startswith(b"#") and b"\n" in rest:
        line, newline, rest = rest.partition(b"\n")
        return mark + line + newline, rest
    return mark, rest


def _line(libexec: Path, settings: bytes) -> bytes:
    return (
        b'do local fine, why = pcall(function() assert(dofile("%s"), "chain.lua is cut short")({%s}) end) '
        b'if not fine then slurm.log_error("%%s", "gsub is left out: " .. tostring(why):gsub("%%s+", " ")) end end'
    ) % (_quoted(str(libexec / "chain.lua")), settings)


def _socket(path: Path) -> bytes:
    return b' socket = "%s" ' % _quoted(str(path))


def _quoted(path: str) -> bytes:
    """Between a Lua string's quotation marks; every byte beyond plain ones as its number."""
    return b"".join(
        bytes([byte]) if 32 <= byte < 127 and byte not in b'"\\' else b"\\%03d" % byte
        for byte in path.encode(errors="surrogateescape")
    )
