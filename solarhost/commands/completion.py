"""What the shell may offer for the word that is being typed."""

import click

from solarhost.commands.failures import CommandFailed
from solarhost.commands.remote import Remote, from_context
from solarhost.commands.slowcall import SlowCall

PATIENCE_S = 1.0  # whoever presses Tab waits


def instance_names(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """The aliases that begin so, or else the ids; none when the agent does not answer at once."""
    try:
        call = SlowCall(Remote.find(*from_context(ctx)), "GET", "/instances")
        call.start()
        call.join(PATIENCE_S)
        found = [] if call.is_alive() else call.result()
    except CommandFailed:
        return []
    aliases = {str(one["config"]["alias"]) for one in found}
    begun = sorted(alias for alias in aliases if alias.startswith(incomplete))
    return begun or [one["id"] for one in found if one["id"].startswith(incomplete)]
