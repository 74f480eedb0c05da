"""The simple commands of a script with what is known where each one runs: its folder, its Python, its certainty.

A narrow reader, not a shell. What is dynamic is None; what stands in a condition, loop, function or subshell may not
run, or run otherwise; what an earlier line may have changed is not sure any more. Every doubt makes a finding weaker,
never stronger.
"""

from __future__ import annotations

from collections.abc import Iterator

from gsub.preflight.command import Command
from gsub.preflight.deciding import allowed, decided, otherwise, perhaps
from gsub.preflight.effects import take_in
from gsub.preflight.known import ASSIGNMENT, Known
from gsub.preflight.simple import FUNCTION, Simple, simple_commands
from gsub.preflight.values import Submission

__all__ = ["commands"]


def commands(submission: Submission) -> tuple[Command, ...]:
    """The simple commands of the script, in order, as far as it can be read."""
    return tuple(decided(tuple(_walk(submission, simple_commands(submission.text)))))


def _walk(submission: Submission, simples: list[Simple]) -> Iterator[tuple[Simple, Command]]:
    known = Known(submission)
    functions: set[str] = set()
    for number, simple in enumerate(simples):
        if simple.function:
            continue
        simple.nested = simple.nested or perhaps(simples, number)
        words = known.words(simple)
        if words[:1] == [FUNCTION]:
            functions.update(word for word in words[1:] if word)
            continue
        words, assigned = _assigned(simple, words)
        if not words and not simple.redirects:
            known.assign(assigned, sure=not simple.nested)
            continue
        if words and words[0] in functions:
            words = [None]  # it does what it does
        inputs, outputs = known.redirects(simple)
        last = otherwise(simples, number)
        command = Command(
            simple.line,
            tuple(words),
            {k: v for k, v in {**known.variables, **assigned}.items() if v is not None},
            inputs,
            outputs,
            known.folder,
            known.python_with(assigned),
            known.sure and not simple.nested and not simple.background and last != "goes on",
            known.stops or last == "leaves",
            tuple(known.made),
            allowed(simples, number),
        )
        yield simple, command
        take_in(known, simple, command)
        if command.name != "exit" and not (command.name == "exec" and len(words) > 1):
            continue
        if simple.nested or simple.before in ("&&", "||") or simple.after not in ("\n", ";", ""):
            if not _fails(command):
                known.sure = False  # what comes after is run only where the script did not end well here
        elif known.sure:
            return  # what comes after is not run


def _fails(command: Command) -> bool:
    """Whether an `exit` says that the job has failed."""
    code = command.words[1] if len(command.words) == 2 else None
    return command.name == "exit" and code is not None and code.isdigit() and int(code) > 0


def _assigned(simple: Simple, words: list[str | None]) -> tuple[list[str | None], dict[str, str | None]]:
    """The words behind the assignments in front of a command, and what these assign; None: nobody knows what."""
    found: dict[str, str | None] = {}
    while words and _assigns(simple, len(found)) and (words[0] is None or ASSIGNMENT.match(words[0])):
        head = words[0] if words[0] is not None else simple.words[len(found)][0].text
        name, _, value = head.partition("=")
        found[name.rstrip("+")] = None if words[0] is None or name.endswith("+") else value
        words = words[1:]
    return words, found


def _assigns(simple: Simple, number: int) -> bool:
    """Whether a word begins with `NAME=` outside quotes."""
    if number >= len(simple.words) or not simple.words[number]:
        return False
    first = simple.words[number][0]
    return first.kind == "text" and ASSIGNMENT.match(first.text) is not None
