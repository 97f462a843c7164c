"""Runs whose agent sees: images from environment to gradient, through pool, processes and checkpoints."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.runs.small import SMALL, timeless
from tests.runs.test_resume import cut_back, same
from transformers import LlavaForConditionalGeneration

from stepwell.config import PolicyConfig
from stepwell.config.loading import load_config
from stepwell.config.run import RunConfig
from stepwell.core import ConfigError, Split, Status, TokenState, Trajectory
from stepwell.envs.registry import make_env
from stepwell.monitors.jsonl import read_entries
from stepwell.monitors.replays import FILE_NAME, encode_png, load_replays
from stepwell.monitors.summary import read_summary
from stepwell.policies import open_policy, resolve_model
from stepwell.pool import open_pool
from stepwell.runs.build.components import Components
from stepwell.runs.evaluation.evaluate import evaluate_run, find_checkpoint
from stepwell.runs.export.policy import export_run
from stepwell.runs.plan.run_plan import plan_run
from stepwell.runs.play.episode import PlaySession, open_live_agent
from stepwell.runs.run import train

MODEL = "tiny-vlm-0.5m"
SEEING = (
    "env.options={size=3, max_turns=2, observation='image', tile_size=8}",
    f"policy.model={MODEL}",
    "policy.train_vision=none",
    "agent.guide=false",
    "engine.max_length=300",
    "warm_start.num_demos=32",
    "warm_start.batch_size=8",
    "warm_start.epochs=6",
    "warm_start.optimizer.kind=muon",
    "warm_start.optimizer.learning_rate=5e-3",
    "warm_start.optimizer.muon_learning_rate=0.02",
    "recipe.name=steppo",
    "recipe.kl_coef=0",
)


def config(*settings: str, folder: Path | None = None, name: str = "run") -> RunConfig:
    where = [] if folder is None else [f"folder={folder}", f"name={name}"]
    return load_config(None, [*SMALL, *SEEING, *where, *settings])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = ("train.num_updates=4", "checkpoint.every=2", "checkpoint.keep=9", "monitor.report=true")
    return train(config(*settings, folder=tmp_path_factory.mktemp("seeing")))


def test_servers_without_images_are_refused_for_a_policy_that_sees_before_anything_is_loaded() -> None:
    served = config("engine.backend=sglang", 'engine.urls=["http://127.0.0.1:1"]')
    with pytest.raises(ConfigError, match=r"without images .*, but policy.model tiny-vlm-0.5m sees"):
        plan_run(served)


def test_a_run_that_sees_is_planned_with_a_server_that_takes_images() -> None:
    plan_run(config("engine.backend=vllm", 'engine.urls=["http://127.0.0.1:1"]'))


def stored(folder: Path) -> list[Trajectory]:
    with closing(open_pool(folder / "pool" / "pool.db")) as pool:
        return list(pool.trajectories())


def shown(trajectories: Sequence[Trajectory]) -> list[str]:
    states = [step.state for t in trajectories for step in t.steps]
    return [span.image for state in states if isinstance(state, TokenState) for span in state.images]


@pytest.mark.slow
@pytest.mark.parametrize("update", [0, 2])
def test_a_run_that_sees_goes_on_bit_for_bit(run: Path, tmp_path: Path, update: int) -> None:
    """What was played after the checkpoint is learnt from again, with images that only the pool has."""
    same(run, train(resume=cut_back(run, tmp_path / "run", update)), 4)


@pytest.mark.slow
def test_a_run_without_its_later_trajectories_plays_the_same_ones_again(run: Path, tmp_path: Path) -> None:
    copy = cut_back(run, tmp_path / "run", 2)
    with closing(open_pool(copy / "pool" / "pool.db")) as pool:
        late = [e.id for e in pool.find() if (pool.get(e.id).source.get("update") or 0) > 2]
    assert len(late) == 16
    shutil.rmtree(copy / "pool")
    same(run, train(resume=copy), 4)


def test_every_image_of_a_run_is_stored_once_and_is_what_the_env_showed(run: Path) -> None:
    trajectories = stored(run)
    names = shown(trajectories)
    assert len(trajectories) == 32 and len(names) > len(set(names)) > 8
    env = make_env("frozenlake", config().env.options)
    with closing(open_pool(run / "pool" / "pool.db")) as pool:
        assert set(names) <= set(pool.blobs.keys())
        for trajectory in trajectories[:8]:
            seed = int(trajectory.info["seed"]) % 2**32  # type: ignore[arg-type]
            observation, _ = env.reset(seed=seed, options={"task": trajectory.task})
            for number, step in enumerate(trajectory.steps):
                assert len(step.state.images) == number + 1  # type: ignore[union-attr]
                seen = pool.load_image(step.state.images[-1].image)  # type: ignore[union-attr]
                assert np.array_equal(seen, observation.images[0])
                observation = env.step([str(a) for a in step.info["actions"]])[0]  # type: ignore[union-attr]


def test_what_is_not_trained_of_vision_keeps_its_weights(run: Path) -> None:
    before, after = (
        load_file(Path(place) / "model.safetensors") for place in (resolve_model(MODEL), _last(run))
    )
    same = {name for name in before if torch.equal(before[name], after[name])}
    assert same == {name for name in before if "vision_tower" in name or "projector" in name}
    components = Components(config("policy.train_vision=projector"))
    try:
        trained = {name for name, _ in components.policy.named_parameters()}
    finally:
        components.close()
    assert any("projector" in name for name in trained) and any("layers.0" in name for name in trained)
    assert not any("vision_tower" in name for name in trained)


def _last(folder: Path) -> Path:
    (found,) = (folder / "checkpoints" / "update-000004").glob("**/model.safetensors")
    return found.parent


def test_the_report_shows_the_image_that_the_agent_saw(run: Path) -> None:
    replay = load_replays(run / FILE_NAME)[0]
    components = Components(config())
    try:
        task = next(t for t in components.list_held_out_tasks() if t.id == replay.task_id)
        (turn,) = components.envs.reset([task])
    finally:
        components.close()
    assert replay.frames[0].image_png == encode_png(turn.observation.images[0])
    assert replay.frames[0].image_png != encode_png(255 - turn.observation.images[0])


def test_a_checkpoint_that_sees_is_evaluated_and_played(run: Path) -> None:
    report = evaluate_run(run)
    summary = read_summary(run)  # the best checkpoint stands for a run
    assert summary is not None and summary.success_before is not None and summary.success_after is not None
    assert report.result.success == pytest.approx(max(summary.success_before, summary.success_after))
    best = run / "checkpoints" / "best"
    with PlaySession(config(), open_live_agent(best, config())) as session:
        components = Components(config())
        session.start(components.tasks(Split.TRAIN, 1, 0)[0])
        components.close()
        assert session.value() is not None
        first = session.let_agent_act()
        if not first.is_over:
            assert session.act(["Up"]).player == "person"


def test_an_offline_run_learns_from_the_images_of_the_pool_it_reads(run: Path, tmp_path: Path) -> None:
    settings = (
        f"offline.pool={run / 'pool' / 'pool.db'}",
        "offline.channel=train",
        "recipe.name=sft",
        "warm_start.num_demos=0",
        "train.num_updates=1",
        "eval.num_tasks=0",
    )
    folder = train(config(*settings, folder=tmp_path))
    (update,) = [entry for entry in timeless(folder) if entry.kind == "update"]
    assert np.isfinite(update.values["loss/policy"])


@pytest.mark.slow
@pytest.mark.parametrize("processes", ["false", "true"])
def test_generators_in_other_threads_and_processes_see_too(processes: str, tmp_path: Path) -> None:
    groups = (
        "workers.mode=stream",
        f"workers.processes={processes}",
        "workers.simulators.num_workers=1",
        "workers.simulators.batch_size=2",
        "workers.generators.num_threads=1",
        "recipe.name=rloo",
        "warm_start.num_demos=0",
        "eval.num_tasks=2",
    )
    folder = train(config(*groups, folder=tmp_path))
    updates = [entry for entry in timeless(folder) if entry.kind == "update"]
    assert [entry.update for entry in updates] == [1, 2]
    assert max(entry.values["staleness/max"] for entry in updates) <= 2
    played = stored(folder)
    assert all(t.status is not Status.INFRA_ERROR for t in played) and len(shown(played)) >= 16


@pytest.mark.slow
def test_grounding_and_world_modeling_are_rewarded_by_the_rule_judge(tmp_path: Path) -> None:
    settings = (
        "agent.strategy=grounding_world_modeling",
        "recipe.name=vagen-full",
        "rewards.judge.kind=rule",
        "sampling.max_tokens=160",
        "engine.max_length=900",
        "train.num_updates=1",
        "train.tasks_per_update=2",
        "warm_start.num_demos=4",
        "warm_start.epochs=1",
        "eval.num_tasks=2",
    )
    components = Components(config(*settings))
    try:
        (shown_by_oracle,) = components.play_demonstrations(1, 0.0, 0)
    finally:
        components.close()
    assert all(step.reward_parts["grounding"] > 0 for step in shown_by_oracle.steps)
    folder = train(config(*settings, folder=tmp_path))
    (update,) = [e for e in read_entries(folder / "metrics.jsonl") if e.kind == "update"]
    assert {"reward/grounding", "reward/world_modeling"} <= update.values.keys()


def test_the_plan_counts_the_tokens_of_images() -> None:
    told = plan_run(config())
    assert "1 image a turn, 36 of its tokens" in told
    shared = int(told.split(" the same for every task")[0].rpartition("(")[2])
    first = int(told.split("first prompt ")[1].split()[0])
    assert first - shared > 36  # two boards differ from their image on


def test_a_text_model_is_refused_where_the_env_shows_images(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tiny-0.3m reads text only, but frozenlake shows images"):
        train(config("policy.model=tiny-0.3m", folder=tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_model_directory_that_does_not_say_how_it_prepares_images_is_refused(tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(resolve_model(MODEL), model)
    (model / "preprocessor_config.json").unlink()
    (model / "processor_config.json").write_text(json.dumps({"processor_class": "LlavaProcessor"}))
    with pytest.raises(ConfigError, match=r"policy.model: .*preprocessor_config.json"):
        train(config(f"policy.model={model}", folder=tmp_path))


def test_several_trainer_devices_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="trained on one device"):
        train(config("workers.trainers.devices=['cpu', 'cpu']", folder=tmp_path))


def test_an_exported_policy_has_the_names_that_servers_read_and_opens_in_transformers(
    run: Path, tmp_path: Path
) -> None:
    folder = Path(export_run(run, str(tmp_path / "seer")))
    names = list(load_file(folder / "model.safetensors"))
    tower = [name for name in names if "vision_tower." in name]
    assert tower and all("vision_tower.vision_model." in name for name in tower)
    model, found = LlavaForConditionalGeneration.from_pretrained(folder, output_loading_info=True)
    assert not found["missing_keys"] and not found["unexpected_keys"]
    own = open_policy(PolicyConfig(model=str(find_checkpoint(run)))).model.state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, own[name]), name
