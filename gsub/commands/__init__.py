"""The commands of `gsub`, one module each."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["run_command"]


def run_command(name: str, words: Sequence[str]) -> int:
    """Run the click command `name`, which lies in the module of its name; returns the exit code."""
    from importlib import import_module

    import click

    command: click.Command = getattr(import_module(f"gsub.commands.{name}"), name)
    try:
        code = command.main(args=list(words), prog_name=f"gsub {name}", standalone_mode=False)
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except click.exceptions.Abort:
        return 1
    except click.ClickException as error:
        error.show()
        return error.exit_code
    return code if isinstance(code, int) else 0
