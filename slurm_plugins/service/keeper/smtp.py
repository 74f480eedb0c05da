"""Where mail is handed in: a mail server by SMTP, and what its refusals mean."""

from __future__ import annotations

import smtplib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from email.message import EmailMessage
from typing import Final, Literal, Protocol, TypeAlias

__all__ = ["Post", "PostError", "Smtp"]

_SECONDS: Final = 10.0

Kind: TypeAlias = Literal["refused", "later", "down"]


class PostError(Exception):
    """A mail was not taken. `kind`: "refused" (this one never will be), "later" (this address: try again), "down" (the
    server takes none now).
    """

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind: Kind = kind


class Post(Protocol):
    """Where mail is handed in: `Smtp`."""

    def send(self, message: EmailMessage, to: str) -> None:
        """Hand one in. Raises PostError."""
        ...

    def close(self) -> None:
        """Hang up."""
        ...


class Smtp:
    """A mail server, "host" or "host:port" (25); one connection for all that is sent until `close`."""

    def __init__(self, server: str, seconds: float = _SECONDS) -> None:
        host, _, port = server.partition(":")
        self._host, self._port = host, int(port or 25)
        self._seconds = seconds
        self._session: smtplib.SMTP | None = None

    def send(self, message: EmailMessage, to: str) -> None:
        """See `Post.send`."""
        with _told():
            if self._session is None:
                self._session = smtplib.SMTP(self._host, self._port, timeout=self._seconds)
            self._session.send_message(message, to_addrs=[to])

    def close(self) -> None:
        """Say goodbye, if there is somebody to say it to."""
        session, self._session = self._session, None
        if session is not None:
            with suppress(OSError, smtplib.SMTPException):
                session.quit()


@contextmanager
def _told() -> Iterator[None]:
    """Tell apart whose fault it is. 5xx is for good, 4xx may pass (RFC 5321, 4.2.1)."""
    try:
        yield
    except smtplib.SMTPRecipientsRefused as error:
        code, said = next(iter(error.recipients.values()))
        raise _of_this_mail(code, said) from error
    except smtplib.SMTPDataError as error:
        raise _of_this_mail(error.smtp_code, error.smtp_error) from error
    except smtplib.SMTPResponseException as error:
        # the greeting, or the sender: the same for every mail
        raise PostError("down", f"{error.smtp_code} {_text(error.smtp_error)}") from error
    except (OSError, smtplib.SMTPException) as error:
        raise PostError("down", str(error) or type(error).__name__) from error


def _of_this_mail(code: int, said: bytes | str) -> PostError:
    if code == 421:
        return PostError("down", f"{code} {_text(said)}")  # the server shuts down
    return PostError("refused" if code >= 500 else "later", f"{code} {_text(said)}")


def _text(said: bytes | str) -> str:
    return said.decode("utf-8", "replace") if isinstance(said, bytes) else said
