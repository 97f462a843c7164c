"""Outcome models on real roll-outs: trained, stored, resumed, measured, and used to judge a pool."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.runs.outcome_rollouts import fill_pool, play_expert

from stepwell.cli.main import main
from stepwell.core import Outcome, OutcomeSource, Split
from stepwell.core.errors import ConfigError
from stepwell.pool import open_pool
from stepwell.rewards.outcome_model.question import TextLimits
from stepwell.runs.outcome_model.model import FILE_NAME, OutcomeModel
from stepwell.runs.outcome_model.rollouts import read_rollouts, split_by_task
from stepwell.runs.outcome_model.scoring import evaluate_judge, score_source
from stepwell.runs.outcome_model.training import OutcomeTraining, train_outcome_model
from stepwell.training.answer_model import AnswerTraining, draw_balanced

pytestmark = pytest.mark.slow  # a model is trained
LIMITS = TextLimits(160, 96)


class Lake(NamedTuple):
    """An outcome model of FrozenLake, and pools of training and held-out roll-outs."""

    folder: Path
    train: Path
    held_out: Path


def train_args(source: Path, to: Path, *more: object) -> list[str]:
    sizes = ("--max-tokens", LIMITS.max_tokens, "--page-tokens", LIMITS.page_tokens)
    return [str(each) for each in ("orm", "train", source, "--to", to, *sizes, *more)]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    place = tmp_path_factory.mktemp("lake")
    train = fill_pool(place / "train.db", play_expert("frozenlake", 96, 0.5, Split.TRAIN, place))
    held_out = fill_pool(place / "held_out.db", play_expert("frozenlake", 60, 0.5, Split.HELD_OUT, place))
    assert main(train_args(train, place / "orm", "--epochs", 4, "--batch-size", 8)) == 0
    return Lake(place / "orm", train, held_out)


def test_it_is_right_about_held_out_boards(lake: Lake) -> None:
    report = evaluate_judge(OutcomeModel.load(lake.folder), read_rollouts([str(lake.held_out)]))
    assert report.score.accuracy >= 0.8 > report.baselines["majority"].accuracy + 0.1
    assert report.score.auc is not None and report.score.auc >= 0.85
    assert sum(one["count"] for one in report.reliability) == report.score.count == 60


@pytest.mark.slow
def test_it_is_right_about_held_out_households(tmp_path: Path) -> None:
    train = play_expert("household", 120, 0.5, Split.TRAIN, tmp_path, size="tiny")
    held_out = play_expert("household", 60, 0.5, Split.HELD_OUT, tmp_path, size="tiny")
    pools = fill_pool(tmp_path / "train.db", train), fill_pool(tmp_path / "held_out.db", held_out)
    settings = OutcomeTraining(limits=TextLimits(320, 192), answers=AnswerTraining(3, 8, 2e-3))
    model = train_outcome_model(read_rollouts([str(pools[0])]), tmp_path / "orm", settings)
    report = evaluate_judge(model, read_rollouts([str(pools[1])]))
    assert report.score.accuracy >= 0.8
    assert {"household/cool", "household/heat"} <= report.families.keys()


def test_scores_are_the_same_after_loading_again_and_by_every_load(lake: Lake, tmp_path: Path) -> None:
    episodes = [one.trajectory for one in read_rollouts([str(lake.held_out)])][:20]
    model = OutcomeModel.load(lake.folder)
    scores = model.judge(episodes)
    assert OutcomeModel.load(lake.folder).judge(episodes) == scores
    model.save(tmp_path / "copy")
    copied = OutcomeModel.load(tmp_path / "copy")
    assert copied.judge(episodes) == scores
    assert copied.name.split("@")[1] == model.name.split("@")[1]


def test_no_task_is_on_both_sides_of_the_split(lake: Lake) -> None:
    rollouts = read_rollouts([str(lake.train), str(lake.train)])
    assert len(rollouts) == 96  # an episode counts once, though its pool was named twice
    train, validation = split_by_task(rollouts, 0.3, seed=0)
    tasks = [{one.trajectory.task.id for one in side} for side in (train, validation)]
    assert not tasks[0] & tasks[1] and len(train) + len(validation) == 96
    assert split_by_task(list(reversed(rollouts)), 0.3, seed=0)[1] == list(reversed(validation))


def test_batches_have_both_answers_in_equal_number() -> None:
    labels = [True] * 3 + [False] * 17
    batches = list(draw_balanced(labels, 4, seed=1, epoch=0))
    assert sum(map(len, batches)) == 20
    assert all(sum(labels[i] for i in batch) * 2 == len(batch) for batch in batches)
    drawn = [i for batch in batches for i in batch if not labels[i]]
    assert len(set(drawn)) == len(drawn) == 10
    assert batches == list(draw_balanced(labels, 4, seed=1, epoch=0)) != list(draw_balanced(labels, 4, 1, 1))


def test_training_that_was_killed_continues_to_the_same_bytes(lake: Lake, tmp_path: Path) -> None:
    rollouts = read_rollouts([str(lake.train)])[:24]
    settings = OutcomeTraining(limits=LIMITS, answers=AnswerTraining(2, 16, 2e-3), validation_share=0.4)
    train_outcome_model(rollouts, tmp_path / "whole", settings)

    def stop(text: str) -> None:
        raise KeyboardInterrupt(text)

    with pytest.raises(KeyboardInterrupt):
        train_outcome_model(rollouts, tmp_path / "cut", settings, note=stop)
    assert not (tmp_path / "cut").exists()
    with pytest.raises(ConfigError, match="other roll-outs or settings"):
        train_outcome_model(rollouts[:20], tmp_path / "cut", settings)
    told: list[str] = []
    train_outcome_model(rollouts, tmp_path / "cut", settings, note=told.append)
    assert told[0].startswith("continuing after epoch 1") and not (tmp_path / "cut.training").exists()
    for name in ("model.safetensors", FILE_NAME):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_killed_after_the_model_was_written_the_command_only_cleans_up(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollouts = read_rollouts([str(lake.train)])[:24]
    settings = OutcomeTraining(limits=LIMITS, answers=AnswerTraining(1, 16, 2e-3), validation_share=0.4)

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as late, pytest.raises(KeyboardInterrupt):
        late.setattr("stepwell.runs.outcome_model.training.name_folder", stop)
        train_outcome_model(rollouts, tmp_path / "orm", settings)
    before = (tmp_path / "orm" / FILE_NAME).read_bytes()
    told: list[str] = []
    model = train_outcome_model(rollouts, tmp_path / "orm", settings, note=told.append)
    assert told == [f"{tmp_path / 'orm'} was complete"] and model.name.startswith("orm@")
    assert not (tmp_path / "orm.training").exists()  # and killed once more, after that was removed too
    train_outcome_model(rollouts, tmp_path / "orm", settings, note=told.append)
    assert told[1:] == told[:1]
    assert (tmp_path / "orm" / FILE_NAME).read_bytes() == before


def test_outcomes_are_written_once_and_a_person_has_the_last_word(lake: Lake, tmp_path: Path) -> None:
    episodes = [one.trajectory for one in read_rollouts([str(lake.held_out)])][:12]
    model = OutcomeModel.load(lake.folder)
    with open_pool(fill_pool(tmp_path / "pool.db", episodes)) as pool:
        pool.assign_outcome(episodes[0].id, Outcome(1.0, OutcomeSource.HUMAN, "anna"))
        first = score_source(model, pool)
        second = score_source(model, pool)
        assert (first.num_judged, first.num_human, first.num_known) == (11, 1, 0)
        assert (second.num_judged, second.num_human, second.num_known) == (0, 1, 11)
        judged = pool.get(episodes[1].id)
        assert [entry.outcome.source for entry in judged.outcome_history] == [OutcomeSource.OUTCOME_MODEL]
        outcome = judged.trajectory.outcome
        assert outcome is not None and outcome.judge == model.name
        assert outcome.success_probability == pytest.approx(model.judge([episodes[1]])[0], abs=1e-4)
        assert score_source(model, pool, over_human=True).num_judged == 1


def test_the_commands_tell_accuracy_beside_trivial_judges_and_judge_a_pool(
    lake: Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ["--json", str(tmp_path / "e.json"), "--plot", str(tmp_path / "e.svg")]
    assert main(["orm", "eval", str(lake.folder), str(lake.held_out), *files]) == 0
    assert (tmp_path / "e.svg").read_text().startswith("<svg")
    said = capsys.readouterr().out
    assert (
        said.startswith("\tepisodes\tsuccess\taccuracy")
        and "(majority)" in said
        and "  frozenlake\t60" in said
    )
    assert json.loads((tmp_path / "e.json").read_text())["score"]["accuracy"] >= 0.8
    mine = fill_pool(tmp_path / "mine.db", [o.trajectory for o in read_rollouts([str(lake.held_out)])][:5])
    for expected in ("5 judged", "0 judged"):
        assert main(["orm", "score", str(lake.folder), str(mine)]) == 0
        assert expected in capsys.readouterr().out


def test_mistakes_are_told(lake: Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def tell(*args: object) -> str:
        assert main([str(each) for each in args]) == 2
        return capsys.readouterr().err

    assert "exists and is not empty" in tell(*train_args(lake.train, lake.folder))
    assert "neither the folder of a run" in tell(*train_args(tmp_path / "none", tmp_path / "orm"))
    assert "is not an outcome model" in tell("orm", "eval", tmp_path, lake.held_out)
    won = [one.trajectory for one in read_rollouts([str(lake.train)]) if one.is_success]
    one_sided = fill_pool(tmp_path / "won.db", won)
    assert "both are needed" in tell(*train_args(one_sided, tmp_path / "orm"))
    stored = json.loads((lake.folder / FILE_NAME).read_text())
    OutcomeModel.load(lake.folder).save(tmp_path / "old")
    (tmp_path / "old" / FILE_NAME).write_text(json.dumps(stored | {"template_version": 0}))
    assert "version 0 of the question" in tell("orm", "eval", tmp_path / "old", lake.held_out)
