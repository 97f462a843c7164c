"""Models by Hugging Face id (`org/name`), from the hub or its cache on disk.

Everything goes through `huggingface_hub`, so its own variables apply: `HF_HOME` and `HF_HUB_CACHE` (where
files are kept), `HF_TOKEN` or its login (for gated and private models), `HF_HUB_OFFLINE=1` (use only the
cache) and `HF_ENDPOINT` (a mirror). Only the needed files are fetched: settings, tokenizer, safetensors.
If that fails, the error says what is missing and how to get the model in another way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from stepwell.core.errors import ModelError
from stepwell.core.text import take_first_line

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]


def is_hub_id(text: str) -> bool:
    """Return whether a text looks like a model id of the hub: `org/name`."""
    return _HUB_ID.fullmatch(text) is not None


def import_http_library() -> Any:
    """The library that `huggingface_hub` makes its requests with: httpx, since its version 2 httpx2."""
    from huggingface_hub import __version__

    return import_module("httpx" if int(__version__.partition(".")[0]) < 2 else "httpx2")


def fetch_model(model_id: str, revision: str | None = None) -> Path:
    """Return the directory of a hub model, cached or downloaded. `ModelError` says what is missing."""
    from huggingface_hub import constants

    with _explain_failure(model_id, revision):
        return _download_model(model_id, revision, cached_only=constants.is_offline_mode())


def _download_model(model_id: str, revision: str | None, cached_only: bool) -> Path:
    from huggingface_hub import errors, snapshot_download

    http = import_http_library()
    try:
        folder = snapshot_download(
            model_id,
            revision=revision,
            allow_patterns=_FILES,
            ignore_patterns=["*/*"],
            local_files_only=cached_only,
        )
    except (http.ConnectError, http.TimeoutException) as error:  # for a commit the cache was not checked
        try:
            return _download_model(model_id, revision, cached_only=True)
        except errors.LocalEntryNotFoundError as missing:
            raise missing from error
    return Path(folder)


@contextmanager
def _explain_failure(model_id: str, revision: str | None) -> Iterator[None]:
    from huggingface_hub import constants, errors

    http = import_http_library()
    try:
        yield
    except errors.GatedRepoError as error:
        raise ModelError(
            f"policy.model: {model_id} is gated. Accept its terms on its page at {constants.ENDPOINT}, then "
            f"set HF_TOKEN or run `hf auth login`. {_describe_other_way(model_id, revision)}"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ModelError(
            f"policy.revision: {model_id} has no revision {revision!r}; give a branch, a tag or a commit, "
            "or leave it out for main"
        ) from error
    except errors.RepositoryNotFoundError as error:
        has_token = "The token in use may not see it" if _has_token() else "No token is set"
        raise ModelError(
            f"policy.model: there is no folder {model_id} here, and {constants.ENDPOINT} has no such model "
            f"that you may read. Check the spelling (org/name). {has_token}: a private model needs HF_TOKEN "
            f"or `hf auth login`. {_describe_other_way(model_id, revision)}"
        ) from error
    except errors.IncompleteSnapshotError as error:
        raise ModelError(
            f"policy.model: the cached files of {model_id} are incomplete, and "
            f"{_explain_unreachable_hub(error)}. "
            f"{_describe_other_way(model_id, revision)}"
        ) from error
    except errors.LocalEntryNotFoundError as error:
        asked = "" if revision is None else f" at revision {revision!r}"
        raise ModelError(
            f"policy.model: there is no folder {model_id} here, the hub's model{asked} is not in the cache "
            f"({constants.HF_HUB_CACHE}), and {_explain_unreachable_hub(error)}. "
            f"{_describe_other_way(model_id, revision)}"
        ) from error
    except (errors.HfHubHTTPError, http.HTTPError, OSError) as error:
        raise ModelError(
            f"policy.model: {model_id} could not be fetched from {constants.ENDPOINT} "
            f"({take_first_line(error)}). {_describe_other_way(model_id, revision)}"
        ) from error


def _has_token() -> bool:
    from huggingface_hub import get_token

    return get_token() is not None


def _explain_unreachable_hub(error: BaseException) -> str:
    from huggingface_hub import constants, errors

    cause = error.__cause__
    if constants.is_offline_mode() or isinstance(cause, errors.OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set, so nothing is downloaded"
    reason = f" ({take_first_line(cause)})" if cause is not None else ""
    return f"{constants.ENDPOINT} cannot be reached{reason}"


def _describe_other_way(model_id: str, revision: str | None) -> str:
    folder, asked = model_id.rpartition("/")[2], "" if revision is None else f" --revision {revision}"
    return (
        "Without the hub: on a machine that reaches it run "
        f"`hf download {model_id}{asked} --local-dir {folder}`, "
        f"copy that folder here (config.json, *.safetensors, tokenizer files) and set policy.model={folder}"
    )
