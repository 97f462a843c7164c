"""Export: a trained policy as a plain Hugging Face directory with a model card, here or on the hub.

    runs/NAME ─► its checkpoint ─► adapters merged ─► weights, tokenizer, chat template, README.md

What is written opens with `AutoModelForCausalLM` and `AutoTokenizer` and gives the same logits. The
critic and the optimizer are left out. LLaVA's weights have the names of published checkpoints, which
inference servers read too. The directory appears complete or not at all.
"""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path

from safetensors import SafetensorError

from stepwell.config.loading import load_config
from stepwell.config.run import RunConfig
from stepwell.core import ConfigError, InfraError, ModelError
from stepwell.core.text import take_first_line
from stepwell.engines.served.images import rename_weights
from stepwell.engines.served.weight_folder import save_renamed
from stepwell.policies import open_policy
from stepwell.policies.atomic_directory import write_directory_atomically
from stepwell.policies.hub import import_http_library
from stepwell.policies.kinds import holds_robot_policy
from stepwell.policies.lora import read_base_model
from stepwell.policies.model_resolver import ADAPTER_FILE
from stepwell.policies.progress_bar import hide_progress_bar
from stepwell.rendering import load_tokenizer
from stepwell.runs.evaluation.evaluate import find_checkpoint
from stepwell.runs.export.model_card import write_card

HUB = "hub:"
_IMAGE_FILES = ("preprocessor_config.json", "processor_config.json")


def export_run(
    run: Path, to: str, *, checkpoint: str | None = None, licence: str = "other", private: bool = False
) -> str:
    """Write the policy of a run to a directory, or to `hub:org/name`; returns where it went."""
    if to == HUB.rstrip(":"):
        raise ConfigError("--to hub: name the model as well, hub:org/name; a folder of this name is ./hub")
    config = load_config(run / "config.toml")
    path = find_checkpoint(run, checkpoint)
    if holds_robot_policy(path):
        raise ConfigError(
            f"{run} trained a robot policy, which transformers cannot open; copy its checkpoint"
        )
    if to.startswith(HUB):
        with tempfile.TemporaryDirectory(prefix="stepwell-") as place:
            folder = Path(place) / "model"
            write_model(run, config, path, folder, licence, name=to.removeprefix(HUB))
            return upload_folder(folder, to.removeprefix(HUB), private=private)
    folder = Path(to).expanduser()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"--to: {folder} exists and is not empty; choose another directory")
    try:
        write_model(run, config, path, folder, licence, name=folder.name)
    except (OSError, SafetensorError) as error:  # a full disk is either
        raise _refuse_folder(folder, error) from error
    return str(folder)


def export_card(run: Path, to: str, *, checkpoint: str | None = None, licence: str = "other") -> str:
    """Write the model card and its curve alone, into a directory that may hold the model already."""
    if to.startswith(HUB):
        raise ConfigError("--card writes into a directory; to upload a model with its card, leave --card out")
    folder = Path(to).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = find_checkpoint(run, checkpoint)
        write_card(run, folder, folder.resolve().name, load_config(run / "config.toml"), path, licence)
    except OSError as error:
        raise _refuse_folder(folder, error) from error
    return str(folder / "README.md")


def _refuse_folder(folder: Path, error: Exception) -> ConfigError:
    reason = getattr(error, "strerror", None) or error
    return ConfigError(f"--to: cannot write {folder} ({reason}); choose another directory")


def write_model(run: Path, config: RunConfig, path: Path, folder: Path, licence: str, name: str) -> None:
    """The model of one checkpoint, with its card."""
    changes = {"model": str(path), "critic": "none", "reference": False, "lora": None, "device": "cpu"}
    policy = open_policy(config.policy.model_copy(update=changes))
    model = policy.model
    if policy.adapters is not None:
        model = copy.deepcopy(policy.adapters).merge_and_unload()
    base = Path(read_base_model(path)) if (path / ADAPTER_FILE).is_file() else path
    with write_directory_atomically(folder) as fresh, hide_progress_bar():
        if model.config.model_type == "llava":
            save_renamed(model, fresh, rename_weights)
        else:
            model.save_pretrained(fresh)
        load_tokenizer(path).save_pretrained(fresh)
        for file in (base / item for item in _IMAGE_FILES):
            if file.is_file():
                (fresh / file.name).write_bytes(file.read_bytes())
        write_card(run, fresh, name, config, path, licence)


def upload_folder(folder: Path, name: str, *, private: bool = False) -> str:
    """Put a model directory on the hub as `org/name`; returns its address."""
    from huggingface_hub import HfApi, constants, errors

    if constants.is_offline_mode():
        raise ModelError(
            "--to hub: HF_HUB_OFFLINE is set, so nothing is uploaded; unset it, or give a directory"
        )
    api = HfApi()
    try:
        made = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder, commit_message="Export from Stepwell")
    except (errors.HFValidationError, ValueError) as error:
        raise ConfigError(
            f"--to: {name!r} is not a name for the hub ({take_first_line(error)}); write hub:org/name"
        ) from error
    except errors.HfHubHTTPError as error:
        code = error.response.status_code
        advice = (
            "set HF_TOKEN to a token that may write there, or run `hf auth login`"
            if code in (401, 403)
            else ""
        )
        raise InfraError(
            f"--to: {constants.ENDPOINT} refused {name} ({take_first_line(error)}); "
            f"{advice or 'try again later, or export to a directory and upload it with `hf upload`'}"
        ) from error
    except (import_http_library().HTTPError, OSError) as error:
        raise InfraError(
            f"--to: {constants.ENDPOINT} cannot be reached ({take_first_line(error)}). "
            f"Export to a directory, and upload it from a machine that reaches the hub: hf upload {name} DIR"
        ) from error
    return str(made)
