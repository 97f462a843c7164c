"""Models by hub id: found in the cache, downloaded, or refused with what is missing and what to do."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import requires
from pathlib import Path

import pytest
from huggingface_hub import constants
from tests.policies.hub_server import COMMIT, HubServer, serve_hub

from stepwell.core.errors import ModelError
from stepwell.policies.hub import import_http_library
from stepwell.policies.model_resolver import resolve_model
from stepwell.policies.tiny_models import create_tiny

MODEL = "acme/Walker-0.3B"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create_tiny("tiny-0.3m", tmp_path_factory.mktemp("made") / "tiny", 0)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache, and no token."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    return tmp_path / "hub"


@pytest.fixture
def hub(cache: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with serve_hub() as server:
        server.models[MODEL] = tiny
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        yield server


def _fill_cache(cache: Path, tiny: Path) -> Path:
    """The layout that the hub's own tools leave: refs, and one folder of files per commit."""
    repo = cache / "models--acme--Walker-0.3B"
    snapshot = repo / "snapshots" / COMMIT
    shutil.copytree(tiny, snapshot)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(COMMIT)
    return snapshot


def test_a_cached_hub_model_is_found_offline(cache: Path, tiny: Path) -> None:
    snapshot = _fill_cache(cache, tiny)
    assert resolve_model(MODEL) == snapshot
    assert resolve_model(MODEL, revision=COMMIT) == snapshot


def test_the_environment_variables_of_the_hub_are_obeyed(tmp_path: Path, tiny: Path) -> None:
    snapshot = _fill_cache(tmp_path / "home" / "hub", tiny)
    code = f"from stepwell.policies.model_resolver import resolve_model; print(resolve_model({MODEL!r}))"
    environ = os.environ | {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    found = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True)
    assert found.stdout.strip() == str(snapshot), found.stderr


def test_offline_without_a_cached_copy_says_so_and_how_to_go_on(cache: Path) -> None:
    with pytest.raises(ModelError) as caught:
        resolve_model("Qwen/Qwen2.5-0.5B-Instruct")
    text = str(caught.value)
    assert "there is no folder Qwen/Qwen2.5-0.5B-Instruct here" in text
    assert str(cache) in text and "HF_HUB_OFFLINE is set" in text
    assert "hf download Qwen/Qwen2.5-0.5B-Instruct --local-dir Qwen2.5-0.5B-Instruct" in text
    assert "policy.model=Qwen2.5-0.5B-Instruct" in text


def test_the_way_without_the_hub_names_the_revision(cache: Path) -> None:
    with pytest.raises(ModelError, match=r"hf download acme/Walker-0\.3B --revision v2 --local-dir "):
        resolve_model(MODEL, revision="v2")


def test_the_hubs_errors_are_those_of_the_library_that_it_is_installed_with() -> None:
    name = import_http_library().__name__
    assert any(re.match(rf"{name}\b", need) for need in requires("huggingface_hub") or [])


def test_a_hub_that_cannot_be_reached_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}"
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with pytest.raises(ModelError, match=f"{endpoint} cannot be reached"):
        resolve_model("acme/unheard-of")


def test_a_hub_model_is_downloaded_once_without_files_nobody_needs(hub: HubServer, tiny: Path) -> None:
    (tiny / "weights.bin").write_bytes(b"another form of the same weights")
    try:
        folder = resolve_model(MODEL)
        assert (folder / "model.safetensors").read_bytes() == (tiny / "model.safetensors").read_bytes()
        assert (folder / "tokenizer.json").is_file() and folder.name == COMMIT
        assert not (folder / "weights.bin").exists()
        hub.requests.clear()
        assert resolve_model(MODEL, revision=COMMIT) == folder
        assert not [line for line in hub.requests if "/resolve/" in line]
    finally:
        (tiny / "weights.bin").unlink()


def test_an_unknown_hub_model_is_refused_with_the_spelling_to_check(hub: HubServer) -> None:
    with pytest.raises(
        ModelError, match=r"no folder acme/Walkr here.*no such model.*Check the spelling.*No token"
    ):
        resolve_model("acme/Walkr")


def test_an_unknown_revision_is_refused_by_its_setting(hub: HubServer) -> None:
    with pytest.raises(ModelError, match=r"policy\.revision: acme/Walker-0\.3B has no revision 'v9'"):
        resolve_model(MODEL, revision="v9")


def test_a_gated_model_needs_its_terms_and_a_token(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.gated.add(MODEL)
    with pytest.raises(ModelError, match=r"is gated\. Accept its terms.*HF_TOKEN or run `hf auth login`"):
        resolve_model(MODEL)
    monkeypatch.setenv("HF_TOKEN", hub.token)
    assert (resolve_model(MODEL) / "config.json").is_file()


def test_a_hub_model_without_safetensors_is_refused(hub: HubServer, tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "config.json").write_text('{"model_type": "llama"}')
    hub.models["acme/bare"] = tmp_path / "bare"
    with pytest.raises(ModelError, match=r"has no model\.safetensors"):
        resolve_model("acme/bare")


def test_a_hub_model_that_is_built_in_is_named_as_such(cache: Path) -> None:
    with pytest.raises(ModelError, match=r"Built in, without a download: policy\.model=smollm2-135m"):
        resolve_model("HuggingFaceTB/SmolLM2-135M-Instruct")
