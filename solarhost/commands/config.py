"""`solar-host config`: the settings of the agent that would be started in this folder."""

from dataclasses import fields
from pathlib import Path

import click

from solarhost.commands.failures import BadInput
from solarhost.commands.output import print_fields, print_json
from solarhost.doubts import doubts
from solarhost.errors import SettingsError
from solarhost.settings import Settings, load

ENV_FILE = Path(".env")


@click.group(name="config")
def config() -> None:
    """The settings of the agent."""


@config.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def check(as_json: bool) -> None:
    """Check the settings in the environment and in .env without starting anything.

    Shows those that differ from their defaults; secrets show as "set".
    """
    try:
        settings = load(ENV_FILE)
    except SettingsError as error:
        raise BadInput(str(error)) from error
    strange = doubts(settings, ENV_FILE)
    if as_json:
        print_json({"valid": True, "settings": shown(settings), "warnings": strange})
        return
    for sentence in strange:
        click.echo(f"Warning: {sentence}", err=True)
    defaults = shown(Settings())
    print_fields((name, value) for name, value in shown(settings).items() if value != defaults[name])
    click.echo("The settings are valid.")


def shown(settings: Settings) -> dict[str, object]:
    """By variable, without secrets."""
    values: dict[str, object] = {}
    for setting in fields(Settings):
        value = getattr(settings, setting.name)
        if setting.metadata["secret"]:
            value = "set" if value and value != setting.default else "not set"
        values[setting.name.upper()] = str(value) if isinstance(value, Path) else value
    return values
