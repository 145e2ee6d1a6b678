"""Whether the model hub can be reached, asked once and soon.

The libraries ask for file after file, each several times with pauses: without a network they take minutes
to find that a model is neither here nor there, and as long to begin with one that was downloaded before.
"""

import requests
from huggingface_hub import constants

from hf_server import log

_WITHIN_S = 5  # to connect, and again to answer


def go_offline_unless_reachable() -> None:
    """Let the libraries use what was downloaded, without asking, where nobody answers."""
    if constants.HF_HUB_OFFLINE:
        return
    try:
        requests.head(constants.ENDPOINT, timeout=_WITHIN_S)
    except requests.exceptions.SSLError:
        pass  # somebody is there; what its certificate is worth shows when files are asked for
    except requests.RequestException as error:
        log.event("hub", address=constants.ENDPOINT, reachable=False, reason=str(error))
        constants.HF_HUB_OFFLINE = True  # as the environment would have set it before the import
