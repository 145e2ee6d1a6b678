"""`solar-host reconnect`: the link to solar-control."""

import click

from solarhost.commands.output import print_json
from solarhost.commands.remote import Remote, remote_command


@click.command(name="reconnect")
@remote_command
def reconnect(remote: Remote, as_json: bool) -> None:
    """Try the link to solar-control now, also one that was rejected there."""
    answer = remote.call("POST", "/reconnect")
    if as_json:
        print_json(answer)
    else:
        click.echo(answer["status"].replace("_", " "))
