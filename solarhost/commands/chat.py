"""`solar-host chat`: talk to an instance."""

import base64
import mimetypes
import readline  # noqa: F401 - gives `input` its line editing and history
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from solarhost.commands.completion import instance_names
from solarhost.commands.conversation import Conversation, Piece
from solarhost.commands.failures import BadInput, CommandFailed
from solarhost.commands.instance_start import start_instance
from solarhost.commands.names import find_instance
from solarhost.commands.output import plain, print_json
from solarhost.commands.remote import Remote, remote_command

HELP = """\
/bye    end the conversation, as Ctrl-D does
/help   print this
Ctrl-C  end an answer; at the prompt, the conversation"""
IMAGE_MAX = 20 << 20  # bytes; more than any server here takes


@click.command(name="chat")
@click.option("--system", help="What the model is told first.")
@click.option(
    "--image", "images", multiple=True, type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A picture that goes with the first message.",
)  # fmt: skip
@click.option("--max-tokens", type=click.IntRange(1), help="End an answer after so many.")
@click.option("--temperature", type=click.FloatRange(0, 2), help="0 for the likeliest answer.")
@click.option("--start", "start_it", is_flag=True, help="Start it if it does not run.")
@click.argument("name", shell_complete=instance_names)
@click.argument("words", nargs=-1, metavar="[MESSAGE]...")
@remote_command
def chat(
    remote: Remote,
    as_json: bool,
    name: str,
    words: tuple[str, ...],
    system: str | None,
    images: tuple[Path, ...],
    start_it: bool,
    **sampling: Any,
) -> None:
    """Talk to an instance; with a MESSAGE, or one from a pipe, print the answer and end.

    Without either it is a conversation: Ctrl-C ends an answer, Ctrl-D or /bye the conversation.
    """
    pictures = [_data_uri(image) for image in images]
    instance = find_instance(remote, name)
    if start_it and instance["status"] != "running":
        instance = start_instance(remote, instance["id"], name)
    given = {key: value for key, value in sampling.items() if value is not None}
    conversation = Conversation(remote, instance, system, given)
    if not words and sys.stdin.isatty() and not as_json:
        _talk(conversation, pictures)
        return
    message = " ".join(words) if words else sys.stdin.buffer.read().decode(errors="replace").strip()
    if not message:
        raise BadInput("there is no message")
    if as_json:
        print_json(conversation.answer(message, pictures))
    else:
        _print(conversation.ask(message, pictures))
        _tell_end(conversation)


def _talk(conversation: Conversation, pictures: Sequence[str]) -> None:
    click.echo("/bye or Ctrl-D ends the conversation, /help lists the commands.")
    while True:
        try:
            message = input(">>> ").strip()
        except EOFError:
            click.echo()
            return
        if message == "/bye":
            return
        if message == "/help":
            click.echo(HELP)
        if not message or message == "/help":
            continue
        answer = conversation.ask(message, pictures)
        try:
            _print(answer)
            _tell_end(conversation)
        except KeyboardInterrupt:
            answer.close()
            click.echo()
        except CommandFailed as error:
            click.echo()
            error.show()
        pictures = ()


def _print(answer: Iterable[Piece]) -> None:
    """Piece by piece, thoughts dimmed; a model's words never drive the terminal."""
    thinking = False
    for piece in answer:
        if thinking and not piece.thought:
            click.echo()
        thinking = piece.thought
        text = "\n".join(plain(line) for line in piece.text.split("\n"))
        click.echo(click.style(text, dim=True) if thinking else text, nl=False)
    click.echo()


def _tell_end(conversation: Conversation) -> None:
    if conversation.cut_off:
        click.echo("(cut off: --max-tokens or the context is used up)", err=True)


def _data_uri(image: Path) -> str:
    """Raises BadInput: it is too large, can't be read, or is no picture."""
    kind = mimetypes.guess_type(image.name)[0] or ""
    if not kind.startswith("image/"):
        raise BadInput(f"{image} is not a picture by its name", "name it .png, .jpg, …")
    try:
        if image.stat().st_size > IMAGE_MAX:
            raise BadInput(f"{image} is larger than {IMAGE_MAX >> 20} MiB")
        data = image.read_bytes()
    except OSError as error:
        raise BadInput(f"{image} can't be read: {error.strerror}") from error
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
