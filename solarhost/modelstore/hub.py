"""Models of the HuggingFace Hub: `huggingface_hub` for lists, addresses and login, ranges by ourselves.

The library (2.4) starts a file afresh each time: it downloads into a temporary file of a new name and
deletes it on failure, and it has no limit on a list that never comes in full.
"""

import httpx2
import requests
from huggingface_hub import HfApi, ModelInfo, hf_hub_url
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, OfflineModeIsEnabled
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # it is documented

from solarhost.modelstore.failures import Interrupted, PullError
from solarhost.modelstore.remote import Listing, RemoteFile
from solarhost.modelstore.transport import bound, broken, check, retry_after_s


class Hub:
    """One repository, at the commit that its listing named."""

    def __init__(self, model_id: str, *, endpoint: str, token: str, stall_s: float):
        self._model_id = model_id
        self._endpoint = endpoint or None
        self._stall_s = stall_s
        login = token or False  # False: nor one that somebody left in the home folder
        self._api = HfApi(endpoint=self._endpoint, token=login, library_name="solar-host")
        self._session = bound(requests.Session(), stall_s)
        self._session.headers.update(build_hf_headers(token=login, library_name="solar-host"))
        self._revision = ""

    def listing(self) -> Listing:
        try:
            info = self._api.model_info(self._model_id, files_metadata=True, timeout=self._stall_s)
        except OfflineModeIsEnabled as error:
            raise PullError("source_unreachable", "HF_HUB_OFFLINE is set for this agent") from error
        except HfHubHTTPError as error:
            raise self._explained(error) from error
        except httpx2.TransportError as error:
            raise broken(error, self._stall_s) from error
        except ValueError as error:
            raise Interrupted("the hub's answer is not JSON") from error
        except (LookupError, TypeError, AttributeError, RecursionError) as error:
            raise PullError(
                "model_pull_failed", f"the hub's answer can't be read: {error!r}", status=502
            ) from error
        self._revision = str(info.sha)
        return Listing(self._revision, files_of_model(info))

    def open(self, file: RemoteFile, start: int, end: int) -> requests.Response:
        url = hf_hub_url(self._model_id, file.name, revision=self._revision, endpoint=self._endpoint)
        headers = {"Accept-Encoding": "identity"}
        if (start, end) != (0, file.size):
            headers["Range"] = f"bytes={start}-{end - 1}"
        try:
            response = self._session.get(url, headers=headers, stream=True)
        except requests.RequestException as error:
            raise broken(error, self._stall_s) from error
        if response.headers.get("X-Error-Code") == "GatedRepo":
            response.close()
            raise self._gated()
        check(response)
        return response

    def _explained(self, error: HfHubHTTPError) -> Exception:
        response = error.response
        status = response.status_code
        code = response.headers.get("X-Error-Code")
        if isinstance(error, GatedRepoError):
            return self._gated()
        if status in (408, 425, 429) or status >= 500:
            return Interrupted(f"the hub answered {status}", retry_after_s(response.headers))
        if status == 404 or code in ("RepoNotFound", "RevisionNotFound"):
            return PullError(
                "not_found",
                f"the hub has no model {self._model_id!r}, or it is private and HF_TOKEN does not open it",
            )
        if status in (401, 403):
            return PullError("auth_failed", f"the hub answered {status}: HF_TOKEN is missing or not accepted")
        return PullError("model_pull_failed", f"the hub answered {status}", status=502)

    def _gated(self) -> PullError:
        return PullError(
            "auth_failed",
            f"{self._model_id!r} is gated: accept its terms on the hub, and set HF_TOKEN to your token",
        )


def files_of_model(info: ModelInfo) -> list[RemoteFile]:
    """The files that the hub names: large ones by the sha256 of their bytes, the others as git does."""
    return [
        RemoteFile(
            sibling.rfilename,
            sibling.size,  # type: ignore[arg-type]  # `check_files` looks at it
            f"sha256:{sibling.lfs.sha256}" if sibling.lfs else f"git:{sibling.blob_id}",
        )
        for sibling in info.siblings or []
    ]
