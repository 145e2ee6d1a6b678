"""What the configs of all backends share."""

from collections.abc import Mapping
from typing import Any

from marshmallow import INCLUDE, Schema, ValidationError, fields, pre_load, validate

from solarhost.backends.fields import Text, Whole
from solarhost.net import is_host
from solarhost.setting_values import is_key

PATH_MAX = 4096  # bytes of a path on Linux


def _check_address(host: str) -> None:
    if not is_host(host):
        raise ValidationError("Not an IP address or host name.")


def _check_key(key: str) -> None:
    if not is_key(key):
        raise ValidationError("Not of printable ASCII characters, without blanks around them.")


class CommonConfig(Schema):
    """Unknown keys are kept. A known key that is null or "" counts as not given."""

    class Meta:
        unknown = INCLUDE

    alias = Text(200, required=True, metadata={"description": "Name under which clients ask for the model."})
    host = fields.String(
        load_default="0.0.0.0",  # noqa: S104 - the gateway of solar-control calls instances directly
        validate=_check_address,
        metadata={"description": "Address that the instance listens on."},
    )
    port = Whole(1, 65535, metadata={"description": "Port; chosen by the host when absent."})
    model_source = Text(
        2000, metadata={"description": "`repo://`, `huggingface://` or `local://` URI of a pulled model."}
    )
    file_filters = fields.List(
        Text(300), metadata={"description": "Patterns of the files that a pull keeps; any match counts."}
    )
    api_key = fields.String(
        validate=[validate.Length(1, 500), _check_key],
        metadata={"description": "A further key that this instance accepts."},
    )

    @pre_load
    def _drop_empty(self, data: Any, **_: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        return {key: value for key, value in data.items() if not (key in self.fields and value in (None, ""))}
