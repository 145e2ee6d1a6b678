"""The messages of a chat request, checked."""

from dataclasses import dataclass
from typing import Any

from PIL.Image import Image as Picture

from hf_server import body
from hf_server.body import Body
from hf_server.errors import BadRequest
from hf_server.images import ImageLoader, RequestImages

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_MAX_MESSAGES = 4096


@dataclass(frozen=True, slots=True)
class Image:
    picture: Picture


@dataclass(frozen=True, slots=True)
class Message:
    role: str
    parts: tuple[str | Image, ...]

    @property
    def text(self) -> str:
        return "\n".join(part for part in self.parts if isinstance(part, str))

    @property
    def images(self) -> list[Image]:
        return [part for part in self.parts if isinstance(part, Image)]


def read_messages(request: Body, images: ImageLoader | None) -> list[Message]:
    """The request's `messages`; without `images` they are of text only. Raises BadRequest."""
    values = request.required("messages")
    if not isinstance(values, list) or not 1 <= len(values) <= _MAX_MESSAGES:
        raise BadRequest(f"'messages' must be a list of 1 to {_MAX_MESSAGES} messages", "messages")
    pictures = RequestImages(images)
    return [_message(value, f"messages[{place}]", pictures) for place, value in enumerate(values)]


def _message(value: Any, param: str, images: RequestImages) -> Message:
    if not isinstance(value, dict):
        raise BadRequest(f"'{param}' must be an object", param)
    role = value.get("role")
    if role not in _ROLES:
        raise BadRequest(f"'{param}.role' must be one of {', '.join(_ROLES)}", f"{param}.role")
    if role == "developer":  # the newer name of the same; templates know the older
        role = "system"
    return Message(role, _content(value.get("content"), role, f"{param}.content", images))


def _content(value: Any, role: str, param: str, images: RequestImages) -> tuple[str | Image, ...]:
    if value is None and role == "assistant":
        return ("",)
    if isinstance(value, list) and value:
        return tuple(_part(part, f"{param}[{place}]", images) for place, part in enumerate(value))
    return (body.text(value, param),)


def _part(value: Any, param: str, images: RequestImages) -> str | Image:
    if not isinstance(value, dict):
        raise BadRequest(f"'{param}' must be an object", param)
    kind = value.get("type")
    if kind in ("text", "input_text"):
        return body.text(value.get("text"), f"{param}.text")
    if kind == "image_url":
        address = value.get("image_url")
        if isinstance(address, dict):
            address = address.get("url")
        return Image(images.load(body.text(address, f"{param}.image_url"), f"{param}.image_url"))
    raise BadRequest(f"'{param}.type' must be 'text' or 'image_url'", f"{param}.type")
