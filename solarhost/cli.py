"""The `solar-host` command."""

import signal
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click
from click.core import ParameterSource

from solarhost import __version__
from solarhost.commands.failures import INTERRUPTED

# By name, the module that has the command under the same name.
COMMANDS = {
    "chat": "solarhost.commands.chat",
    "config": "solarhost.commands.config",
    "doctor": "solarhost.commands.doctor",
    "instances": "solarhost.commands.instances",
    "jobs": "solarhost.commands.jobs",
    "models": "solarhost.commands.models",
    "reconnect": "solarhost.commands.control",
    "reservations": "solarhost.commands.resources",
    "resources": "solarhost.commands.resources",
    "serve": "solarhost.commands.serve",
}

WITHOUT_AGENT = ("config", "doctor", "serve")

# What other tools call it, or what is a command of a group.
OFTEN_TRIED = {
    "create": "instances create",
    "list": "instances ls",
    "log": "instances logs",
    "logs": "instances logs",
    "ls": "instances ls",
    "ps": "instances ls",
    "pull": "models pull",
    "restart": "instances restart",
    "rm": "instances rm",
    "run": "chat",
    "show": "instances show",
    "start": "instances start",
    "status": "instances ls",
    "stop": "instances stop",
    "submit": "jobs submit",
    "top": "instances top",
}


class Commands(click.Group):
    """`solar-host` alone is `solar-host serve`.

    A command's module is imported when the command is wanted: all of them take most of a second, and whoever
    lists instances needs no web server for it.
    """

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _ctx: click.Context, name: str) -> click.Command | None:
        module = COMMANDS.get(name)
        return None if module is None else getattr(import_module(module), name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # The shell's completion parses, too, and asks what may come where nothing is yet.
        return super().parse_args(ctx, args if args or ctx.resilient_parsing else ["serve"])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """A word that is no command is refused with the one that is probably meant."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            near = [OFTEN_TRIED[name]] if name in OFTEN_TRIED else get_close_matches(name, COMMANDS, n=1)
            meant = f"; did you mean `solar-host {near[0]}`?" if near else "."
            raise click.UsageError(f"No such command {name!r}{meant}", ctx)
        return super().resolve_command(ctx, args)

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


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--url", envvar="SOLAR_HOST_URL", help="Address of the agent to talk to.")
@click.option("--key", envvar="SOLAR_HOST_KEY", help="Its API key.")
@click.version_option(__version__, prog_name="solar-host")
@click.pass_context
def main(ctx: click.Context, /, **_address: str | None) -> None:
    """Run, watch and account for model servers on this machine.

    Without a command the agent is started. Settings come from the environment and from .env in the
    current folder; the other commands find the agent with them, or with --url and --key,
    which may also follow the command.
    """
    typed = [name for name in ("url", "key") if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if typed and ctx.invoked_subcommand in WITHOUT_AGENT:
        raise click.UsageError(
            f"{ctx.invoked_subcommand} takes no --{typed[0]}; the settings say what it needs"
        )
