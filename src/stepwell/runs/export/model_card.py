"""The model card of an exported policy: base, training, success with its curve, and how to load it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import stepwell
from stepwell.config.run import RunConfig
from stepwell.config.writing import dump_config
from stepwell.monitors.curves import draw_learning_curve
from stepwell.monitors.jsonl import FILE_NAME as METRICS
from stepwell.monitors.jsonl import read_entries
from stepwell.monitors.summary import SuccessScore, Summary, read_summary
from stepwell.training.checkpoint import Checkpoint

CURVE = "learning_curve.svg"
_LOAD = """\
```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("{name}")
tokenizer = AutoTokenizer.from_pretrained("{name}")
```
"""


def write_card(run: Path, folder: Path, name: str, config: RunConfig, checkpoint: Path, licence: str) -> None:
    """Write README.md (YAML for the hub, then text for people), and the learning curve beside it."""
    summary, score = read_summary(run), _read_score(checkpoint)
    curve = (
        "## Learning curve\n\n![held-out success](learning_curve.svg)\n\n"
        if _write_curve(run, folder)
        else ""
    )
    (folder / "README.md").write_text(
        f"---\n{_write_front_matter(config, score, licence)}---\n\n"
        f"{_write_body(name, config, summary, checkpoint, score, curve)}",
        encoding="utf-8",
    )


def _read_score(checkpoint: Path) -> SuccessScore | None:
    """Held-out success of these weights, if they were evaluated."""
    loop = Checkpoint(checkpoint, 0).loop
    state = loop["state"]
    values = state.get("last")
    if not values or state.get("evaluated_at", loop["update"]) != loop["update"]:
        return None
    return SuccessScore(values["success"], values["low"], values["high"], int(values["num_tasks"]))


def _write_curve(run: Path, folder: Path) -> bool:
    """Write held-out success over environment steps as SVG, if the run was evaluated more than once."""
    entries = read_entries(run / METRICS)
    if sum(entry.kind == "eval" for entry in entries) < 2:
        return False
    (folder / CURVE).write_text(draw_learning_curve(entries, "env_steps", [], 720), encoding="utf-8")
    return True


def _write_front_matter(config: RunConfig, score: SuccessScore | None, licence: str) -> str:
    lines: dict[str, Any] = {"library_name": "transformers", "pipeline_tag": "text-generation"}
    base = _name_public_base(config)
    if base is not None:
        lines |= {"base_model": base, "base_model_relation": "finetune"}
    lines |= {
        "license": licence,
        "tags": ["stepwell", "reinforcement-learning", config.env.name.split(":")[-1]],
    }
    text = "".join(f"{key}: {json.dumps(value)}\n" for key, value in lines.items())
    if score is not None:
        metric = {"type": "success_rate", "name": "held-out success", "value": score.success}
        dataset = {"name": config.title, "type": config.title}
        result = {"task": {"type": "reinforcement-learning"}, "dataset": dataset, "metrics": [metric]}
        text += f"model-index: {json.dumps([{'name': config.name or config.title, 'results': [result]}])}\n"
    return text


def _name_public_base(config: RunConfig) -> str | None:
    """The base model, if its name is known on other machines."""
    from stepwell.policies.hub import is_hub_id

    model = config.policy.model
    if model == "smollm2-135m":
        return "HuggingFaceTB/SmolLM2-135M-Instruct"
    return model if is_hub_id(model) and not Path(model).is_dir() else None


def _write_body(
    name: str,
    config: RunConfig,
    summary: Summary | None,
    checkpoint: Path,
    score: SuccessScore | None,
    curve: str,
) -> str:
    recipe = summary.recipe if summary else config.recipe.name
    rows = [
        (
            "base model",
            config.policy.model + (f" ({config.policy.revision})" if config.policy.revision else ""),
        ),
        ("environment", config.own_agent.function or config.env.name),
        ("recipe", recipe),
        ("checkpoint", f"{checkpoint.name}, of update {Checkpoint(checkpoint, 0).loop['update']}"),
        ("held-out success before", _format_score(summary.before if summary else None)),
        ("held-out success of this checkpoint", _format_score(score)),
        ("seed", str(config.seed)),
        ("trained with", f"Stepwell {stepwell.__version__}"),
    ]
    if config.policy.lora is not None:
        rows.append(("adapters", f"LoRA of rank {config.policy.lora.rank}, merged into the weights"))
    table = "".join(f"| {key} | {value} |\n" for key, value in rows)
    return (
        f"# {name}\n\nA language model trained to act in `{config.env.name}` by reinforcement learning "
        f"({recipe}).\n\n| | |\n|---|---|\n{table}\n{curve}## Load it\n\n{_LOAD.format(name=name)}\n"
        "The chat template is the tokenizer's own (`tokenizer.apply_chat_template`).\n\n"
        "## Train it again\n\nSave the settings below as `train.toml`:\n\n"
        "```bash\nstepwell train train.toml\n```\n\n"
        f"```toml\n{dump_config(config).strip()}\n```\n"
    )


def _format_score(score: SuccessScore | None) -> str:
    if score is None:
        return "not evaluated"
    tasks = f" on {score.num_tasks} tasks" if score.num_tasks else ""
    interval = "" if score.low is None or score.high is None else f" ({score.low:.2f} to {score.high:.2f})"
    return f"{score.success:.2f}{interval}{tasks}"
