"""How a command ends when it does not succeed: one sentence, a hint, and an exit code of its own."""

from typing import IO, Any

import click

from solarhost.commands.output import plain

FAILED = 1
USAGE = 2  # click's own code for a wrong command line; wrong settings and input files are alike
NOT_FOUND = 3
NOT_AUTHORISED = 4
UNREACHABLE = 5
INTERRUPTED = 130  # 128 + SIGINT, as shells have it


class CommandFailed(click.ClickException):
    """What was asked for could not be done. `hint` says what to do next; `details` are further lines."""

    exit_code = FAILED

    def __init__(self, sentence: str, hint: str = "", details: tuple[str, ...] = ()):
        super().__init__(sentence)
        self.hint = hint
        self.details = details

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"Error: {plain(self.message)}", file=file, err=True)
        for line in self.details:
            click.echo(f"  {plain(line)}", file=file, err=True)
        if self.hint:
            click.echo(f"Hint: {plain(self.hint)}", file=file, err=True)


class BadInput(CommandFailed):
    """A setting, a file or an argument can't be used."""

    exit_code = USAGE


class NoSuchThing(CommandFailed):
    exit_code = NOT_FOUND


class NotAuthorised(CommandFailed):
    exit_code = NOT_AUTHORISED


class Unreachable(CommandFailed):
    """No agent answers there, or something that is none."""

    exit_code = UNREACHABLE
