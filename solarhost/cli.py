"""The `solar-host` command."""

import signal
from typing import Any

import click

from solarhost import __version__
from solarhost.commands.chat import chat
from solarhost.commands.config import config
from solarhost.commands.control import reconnect
from solarhost.commands.doctor import doctor
from solarhost.commands.failures import INTERRUPTED
from solarhost.commands.instances import instances
from solarhost.commands.jobs import jobs
from solarhost.commands.models import models
from solarhost.commands.resources import reservations, resources
from solarhost.server.build import build
from solarhost.server.serve import serve, settings_or_exit


class DefaultsToServe(click.Group):
    """`solar-host` alone is `solar-host serve`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args or ["serve"])

    def invoke(self, ctx: click.Context) -> Any:
        """Ctrl-C ends a command without a word, as it does elsewhere.

        While it runs it may tidy up; before and after that there is nothing to tidy (see `__main__`).
        """
        outside = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise click.exceptions.Exit(INTERRUPTED) from None
        finally:
            signal.signal(signal.SIGINT, outside)


@click.group(cls=DefaultsToServe, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="solar-host")
def main() -> None:
    """Run, watch and account for model servers on this machine.

    Without a command the agent is started. Settings come from the environment and from .env in the
    current folder; the other commands find the agent with them, or with --url and --key.
    """


@main.command(name="serve")
def serve_command() -> None:
    """Start the agent and serve its API until a signal ends it."""
    serve(settings_or_exit(), build)


for command in (instances, chat, models, jobs, resources, reservations, config, doctor, reconnect):
    main.add_command(command)
