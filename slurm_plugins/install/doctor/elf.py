"""Which shared libraries a plugin of Slurm's needs, read from its ELF file: `ldd` may run what it looks at."""

from __future__ import annotations

import struct
from typing import Final

__all__ = ["ElfError", "needed"]

_DYNAMIC: Final = 2  # PT_DYNAMIC, PT_LOAD: elf(5)
_LOAD: Final = 1
_NEEDED: Final = 1  # DT_NEEDED, DT_STRTAB, DT_NULL
_STRINGS: Final = 5
_LONGEST_NAME: Final = 4096


class ElfError(Exception):
    """It is no ELF file that can be read; the message says why."""


def needed(content: bytes) -> tuple[str, ...]:
    """The DT_NEEDED names of an ELF file, 32 or 64 bit, in either byte order, in their order.

    Raises
    ------
    ElfError: it is none, or is cut short.
    """
    try:
        return _needed(content)
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise ElfError(f"it is cut short or damaged ({error})") from error


def _needed(content: bytes) -> tuple[str, ...]:
    if content[:4] != b"\x7fELF":
        raise ElfError("it is no ELF file")
    if content[4] not in (1, 2) or content[5] not in (1, 2):
        raise ElfError("its class or byte order is unknown")
    wide, order = content[4] == 2, "<" if content[5] == 1 else ">"
    # e_phoff, e_phentsize, e_phnum
    table = _one(order + ("Q" if wide else "I"), content, 32 if wide else 28)
    size, count = struct.unpack_from(order + "HH", content, 54 if wide else 42)
    loads, dynamic = [], None
    for number in range(count):
        at = table + number * size
        if wide:
            kind, _, offset, address, _, length = struct.unpack_from(order + "IIQQQQ", content, at)
        else:
            kind, offset, address, _, length = struct.unpack_from(order + "IIIII", content, at)
        if kind == _LOAD:
            loads.append((address, offset, length))
        elif kind == _DYNAMIC:
            dynamic = offset, length
    if dynamic is None:
        return ()
    step, form = (16, "qQ") if wide else (8, "iI")
    names, strings = [], None
    for at in range(dynamic[0], dynamic[0] + dynamic[1], step):
        tag, value = struct.unpack_from(order + form, content, at)
        if tag == 0:
            break
        if tag == _NEEDED:
            names.append(value)
        elif tag == _STRINGS:
            strings = value
    if strings is None:
        return ()
    base = next(
        (strings - address + offset for address, offset, length in loads if 0 <= strings - address < length),
        None,
    )
    if base is None:
        raise ElfError("its table of names lies outside of it")
    return tuple(_text(content, base + name) for name in names)


def _one(form: str, content: bytes, at: int) -> int:
    value: int = struct.unpack_from(form, content, at)[0]
    return value


def _text(content: bytes, at: int) -> str:
    end = content.index(b"\0", at, at + _LONGEST_NAME)
    return content[at:end].decode("ascii", errors="replace")
