"""Telling systemd how it goes (sd_notify(3)): ready, reloading, stopping, and that the loop still turns."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

__all__ = ["Notifier"]


class Notifier:
    """Datagrams to $NOTIFY_SOCKET; without one, nothing is sent.

    `watchdog` is how often systemd wants to hear from us, in seconds; None when it does not.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        address = env.get("NOTIFY_SOCKET", "")
        # "@" stands for the NUL byte of an abstract socket
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.watchdog = _watchdog(env) if address else None

    def send(self, *lines: str) -> None:
        """Send assignments like ``READY=1``. systemd not listening is no reason to stop."""
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            try:
                sender.sendto("\n".join(lines).encode(), self._address)
            except OSError:
                return


def _watchdog(env: Mapping[str, str]) -> float | None:
    try:
        microseconds = int(env.get("WATCHDOG_USEC", ""))
        meant = int(env.get("WATCHDOG_PID", "") or os.getpid())
    except ValueError:
        return None
    return microseconds / 1e6 if microseconds > 0 and meant == os.getpid() else None
