"""What exit codes and signals say by themselves: little (rule 4 of the taxonomy), and never more than that."""

from __future__ import annotations

import signal as signals
from typing import Final

__all__ = ["REASONS_OF_EXITS", "REASONS_OF_SIGNALS", "exit_words", "reason_of_exit", "signal_of"]

REASONS_OF_SIGNALS: Final = {
    1: "cancelled",  # SIGHUP: the terminal or the launcher went away
    2: "cancelled",
    3: "cancelled",
    4: "core_dump",
    5: "core_dump",
    6: "core_dump",
    7: "invalid_memory_access",
    8: "core_dump",
    11: "invalid_memory_access",
    31: "core_dump",  # SIGSYS
}
"""What a signal means that nothing explains. SIGKILL and SIGTERM mean nothing: anybody sends them."""
REASONS_OF_EXITS: Final = {127: "environment_error"}
"""What a shell says by its exit code: the command was not found (POSIX, 2.8.2)."""


def signal_of(exit_code: int | None, signal: int | None) -> int:
    """The signal by which a process ended, 0 for none: Slurm's own number, a shell's 128 + N, Python's -N."""
    if signal:
        return signal & 0x7F
    if exit_code is not None and 128 < exit_code <= 128 + 64:
        return exit_code - 128
    if exit_code is not None and -64 <= exit_code < 0:
        return -exit_code
    return 0


def reason_of_exit(exit_code: int | None, signal: int | None = None) -> str:
    """The reason that an exit by itself gives, "" if none.

    >>> reason_of_exit(139), reason_of_exit(0, 6), reason_of_exit(137), reason_of_exit(127)
    ('invalid_memory_access', 'core_dump', '', 'environment_error')
    """
    number = signal_of(exit_code, signal)
    if number:
        return REASONS_OF_SIGNALS.get(number, "")
    return REASONS_OF_EXITS.get(exit_code or 0, "")


def exit_words(exit_code: int | None, signal: int | None = None) -> str:
    """An exit in words.

    >>> exit_words(1), exit_words(137), exit_words(0, 15), exit_words(None)
    ('exit code 1', 'exit code 137 (SIGKILL)', 'signal 15 (SIGTERM)', '')
    """
    number = signal_of(exit_code, signal)
    name = ""
    if number:
        try:
            name = f" ({signals.Signals(number).name})"
        except ValueError:
            name = ""
    if signal:
        return f"signal {number}{name}"
    return "" if exit_code is None else f"exit code {exit_code}{name}"
