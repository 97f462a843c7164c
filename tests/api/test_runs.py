"""`sw.train`, `Run` and `sw.evaluate`: objects in, figures out, and a run folder as any other."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from tests.api.number_line import QUICK, LineOptions, NumberLine, brevity, centred
from tests.policies.vla.made import policy

import stepwell as sw
from stepwell.api.run import open_checkpoint
from stepwell.api.training import find_process_bound
from stepwell.core import ConfigError
from stepwell.policies import CausalLMPolicy
from stepwell.policies.vla import VLAPolicy


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> sw.Run:
    folder = tmp_path_factory.mktemp("runs")
    grpo = sw.recipe("grpo", credit=centred)
    env = NumberLine(LineOptions(size=8))
    return sw.train(
        env=env, model="tiny-0.3m", recipe=grpo, rewards=[brevity], folder=folder, name="first", **QUICK
    )


def test_a_run_is_opened_by_the_name_of_its_folder(run: sw.Run) -> None:
    assert sw.Run(str(run.folder)) == run  # type: ignore[arg-type]


def test_a_run_knows_its_figures(run: sw.Run) -> None:
    assert run.status == "finished" and run.name == "first"
    assert [entry.update for entry in run.evaluations] == [0, 1, 2]
    assert run.success == run.evaluations[-1].values["success"]
    assert run.success_before == run.evaluations[0].values["success"]
    low, high = run.interval or (1, 0)
    assert low <= run.success <= high
    assert [row["update"] for row in run.metrics if row["kind"] == "update"] == [1, 2]
    assert all("reward/brevity" in row for row in run.metrics if row["kind"] == "update")
    assert "finished, held-out success" in repr(run)
    inline = run._repr_html_()  # what a notebook shows for `run`
    assert "finished, held-out success" in inline and "<svg" in inline and "environment steps" in inline


def test_a_run_keeps_settings_that_can_be_read_again(run: sw.Run) -> None:
    again = sw.load_run(str(run.folder))
    assert again == run and again.config == run.config
    assert run.config.env.options == {"size": 8} and run.config.recipe.name == "grpo"
    assert run.config.rewards.scale != 1.0  # fitted to the environment, as `stepwell train --env` does


def test_the_policy_of_a_run_is_its_checkpoint(run: sw.Run) -> None:
    trained = run.policy
    assert isinstance(trained, CausalLMPolicy) and run.policy is trained
    assert trained.critic is None and run.checkpoint.is_dir()


def test_a_run_is_evaluated_by_object_by_folder_and_by_checkpoint(run: sw.Run) -> None:
    by_object = sw.evaluate(run, samples=2)
    by_folder = sw.evaluate(run.folder, samples=2)
    by_checkpoint = sw.evaluate(str(run.checkpoint), samples=2)
    found = {report.result.success for report in (by_object, by_folder, by_checkpoint)}
    assert len(found) == 1 and by_object.result.samples_per_task == 2 and by_object.result.num_tasks == 4


def test_a_model_is_evaluated_in_an_environment(run: sw.Run) -> None:
    report = sw.evaluate("tiny-0.3m", env=NumberLine, num_tasks=2, warm_start={"num_demos": 16})
    assert report.result.num_tasks == 2 and report.env.endswith(":NumberLine")
    with pytest.raises(ConfigError, match=r"evaluate: 'tiny-0\.3m' is not a run folder.*give env or config"):
        sw.evaluate("tiny-0.3m")


@pytest.mark.slow
def test_a_run_goes_on_and_another_starts_from_its_weights(run: sw.Run, tmp_path: Path) -> None:
    second = sw.train(
        run.config,
        model=run,
        folder=tmp_path,
        name="second",
        warm_start={"num_demos": 0},
        train={"num_updates": 1},
    )
    assert second.config.policy.model == str(run.checkpoint)
    longer = sw.train(resume=second, train={"num_updates": 2})
    assert longer == second and [entry.update for entry in longer.evaluations] == [0, 1, 2]
    with pytest.raises(ConfigError, match="resume uses the run's own settings"):
        sw.train(resume=second, env=NumberLine)


def test_a_run_needs_a_configuration_or_an_environment() -> None:
    with pytest.raises(ConfigError, match=r"give a configuration .*frozenlake"):
        sw.train()


def test_no_run_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is not a run folder: it has no config\.toml"):
        sw.load_run(tmp_path)


def test_objects_of_this_process_are_refused_where_workers_would_need_them(tmp_path: Path) -> None:
    class Local(NumberLine):
        pass

    with pytest.raises(ConfigError, match=r"worker processes.*'in-process:Local.*into a module"):
        sw.train("own", env=Local, folder=tmp_path, workers={"mode": "stream"})
    config = sw.load_config("own", env={"name": Local}, rewards={"parts": [lambda step: 0.0]})
    assert set(find_process_bound(config)) == {"env.name", "rewards.parts"}


def test_an_agent_of_a_notebook_is_refused_because_it_runs_in_processes() -> None:
    with pytest.raises(ConfigError, match=r"an agent of your own runs in processes.*own_agent\.function"):
        sw.train("own", own_agent={"function": lambda client, task: 1.0})


def test_curves_of_two_runs_are_one_figure(run: sw.Run) -> None:
    figure = run.plot(run, labels=("one", "other"), over="env_steps")
    titles = [axis.get_title() for axis in figure.axes]
    assert titles == ["Held-out success", "Success while training", "Reward"]
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["one", "other"]
    assert figure.axes[0].lines[0].get_ydata()[-1] == run.success
    assert figure._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]


def test_a_run_is_labelled_by_its_recipe_and_its_own_credit(run: sw.Run) -> None:
    figure = run.plot(run)
    assert figure.axes[0].get_legend().get_texts()[0].get_text() == "grpo, centred"


def test_without_matplotlib_plot_says_what_to_install(run: sw.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r"pip install 'stepwell\[plot\]'.*run\.report"):
        run.plot()


def test_a_policy_is_exported(run: sw.Run, tmp_path: Path) -> None:
    assert run.export(tmp_path / "model") == str(tmp_path / "model")
    assert (tmp_path / "model" / "model.safetensors").is_file()


def test_a_run_of_another_notebook_is_read_and_exported_but_not_played(run: sw.Run, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(run.folder, moved)
    text = (moved / "config.toml").read_text()
    (moved / "config.toml").write_text(text.replace(f'"{NumberLine.__module__}:', '"__main__:'))
    other = sw.load_run(moved)
    assert other.success == run.success and isinstance(other.policy, CausalLMPolicy)
    assert Path(other.export(tmp_path / "model")).is_dir()
    with pytest.raises(ConfigError, match=r"'__main__:\w+' was defined in a notebook.*run its cell"):
        sw.evaluate(other)


def test_a_robots_checkpoint_is_opened_as_a_robot_policy(tmp_path: Path) -> None:
    policy("token").save_pretrained(tmp_path / "robot")
    assert isinstance(open_checkpoint(tmp_path / "robot", sw.load_config()), VLAPolicy)
