"""What the agent tells a worker."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One pull, as one JSON object."""

    models_folder: str
    slug: str
    kind: Literal["hub", "registry"]
    reference: str  # model id, or reference of the artifact
    url: str  # endpoint of the hub, or registry that the login is for; empty for the default
    username: str = ""
    secret: str = field(default="", repr=False)  # token or password
    filters: Sequence[str] | None = None
    subpath: str = ""  # a file that has to be there
    gguf: bool = False  # some .gguf file has to be there
    present: Mapping[str, str] = field(default_factory=dict)  # sha256 of the files of the version on disk
    untouched: Sequence[str] = ()  # those of them whose size and time are as recorded
    verify_present: bool = False  # they are all that is asked for: if their content is right, all is done
    revision: str | None = None  # of the version on disk
    stall_s: float
    retries: int
    retry_delay_s: float
