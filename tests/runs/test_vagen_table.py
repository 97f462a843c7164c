"""The table of VAGEN's paper: parts, averages, overall, and where its rows come from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.rollout.chat_server import chatting

from stepwell.cli.main import main
from stepwell.core.errors import ConfigError
from stepwell.runs.evaluation.folders import Evaluation, write_evaluation
from stepwell.runs.evaluation.vagen_table import (
    ENVS,
    VagenTable,
    add_evaluation,
    add_study,
    list_evaluations,
)

ROW = {
    ("frozenlake", ""): 0.5,
    ("sokoban", ""): 0.3,
    ("navigation", "base"): 0.8,
    ("navigation", "common"): 0.6,
    ("primitive_skill", "place"): 1.0,
    ("primitive_skill", "stack"): 0.5,
    ("primitive_skill", "drawer"): 0.0,
    ("primitive_skill", "align"): 0.5,
    ("svg", "dino"): 0.9,
    ("svg", "dreamsim"): 0.7,
}


def test_overall_is_the_mean_of_five_worlds_however_many_parts_they_have() -> None:
    table = VagenTable({"ours": dict(ROW)})
    assert table.average_env("ours", "primitive_skill") == pytest.approx(0.5)
    assert table.average_all("ours") == pytest.approx((0.5 + 0.3 + 0.7 + 0.5 + 0.8) / 5)
    head, _, row = table.format_markdown().strip().split("\n")
    assert len(head.split("|")) == len(row.split("|")) == 17
    assert row.endswith("| 0.90 | 0.70 | 0.80 | 0.56 |")


def test_a_world_that_is_missing_leaves_overall_open() -> None:
    scores = {key: score for key, score in ROW.items() if key[0] != "sokoban"}
    table = VagenTable({"ours": scores})
    assert table.average_all("ours") is None
    assert table.format_markdown().strip().endswith("| – |")


def evaluation(env: str, success: float, **options: str) -> Evaluation:
    return Evaluation("m", env, dict(options), ["t"], {}, 0, "finished", 1, {"success": success})


def test_an_evaluation_fills_the_part_that_its_options_name() -> None:
    table = VagenTable()
    add_evaluation(table, evaluation("navigation", 0.4, instruction="common"))
    add_evaluation(table, evaluation("primitive_skill", 0.2, task="any"))
    add_evaluation(table, evaluation("frozenlake", 0.1))
    assert table.scores["m"] == {
        ("navigation", "common"): 0.4,
        ("primitive_skill", ""): 0.2,
        ("frozenlake", ""): 0.1,
    }
    with pytest.raises(ConfigError, match="household is not an environment of this table"):
        add_evaluation(table, evaluation("household", 1.0))


def test_likeness_by_another_measure_is_told() -> None:
    table, one = VagenTable(), evaluation("svg", 0.0, measure="pixels")
    one.more["measures/similarity"] = 0.75
    add_evaluation(table, one)
    assert table.average_env("m", "svg") == 0.75
    assert "likeness by pixels in the column of DreamSim" in table.format_markdown()


def run_of(variant: str, env: str, after: float, **more: object) -> dict[str, object]:
    return {"env": env, "variant": variant, "success_after": after, "elsewhere": {}, "use": {}} | more


def test_a_study_fills_a_row_for_each_variant_with_means_over_seeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [
        run_of("full", "frozenlake", 0.4),
        run_of("full", "frozenlake", 0.6),
        run_of("full", "navigation", 0.5, elsewhere={"base": 0.8, "common": 0.4}),
        run_of("full", "svg", 0.0, use={"measures/similarity": 0.6}),
        run_of("grpo", "sokoban", 0.2),
        {"env": "sokoban", "variant": "full", "success_after": None},
    ]
    (tmp_path / "results.json").write_text(json.dumps({"runs": runs}))
    (tmp_path / "eval").mkdir()
    write_evaluation(tmp_path / "eval", evaluation("sokoban", 0.9))
    assert main(["eval", "--table", "vagen", "--json", str(tmp_path), str(tmp_path / "eval")]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert rows["full"]["frozenlake"] == pytest.approx(0.5)
    assert rows["full"]["navigation/average"] == pytest.approx(0.6)
    assert rows["full"]["svg/dreamsim"] == pytest.approx(0.6)
    assert rows["grpo"]["sokoban"] == 0.2 and rows["m"]["sokoban"] == 0.9 and rows["m"]["overall"] is None
    with pytest.raises(ConfigError, match=r"is not the results\.json of a study"):
        add_study(VagenTable(), tmp_path / "nowhere.json")


def test_every_part_of_every_world_is_evaluated_once() -> None:
    found = [(env, part) for env, part, _ in list_evaluations()]
    assert len(found) == len(set(found)) == 1 + 1 + 2 + 4 + 1
    assert {env for env, _ in found} == set(ENVS)


@pytest.mark.slow
def test_an_outside_model_gets_a_row_of_all_five_environments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with chatting() as server:
        server.say = lambda body: {"content": "<answer>Down</answer>"}
        words = ["eval", "--table", "vagen", "--endpoint", server.url, "--model", "org/outside"]
        assert main([*words, "--num-tasks", "1", "--json", "--output", "made"]) == 0
        row = json.loads(capsys.readouterr().out)["rows"]["org/outside"]
        asked = len(server.bodies)
        assert main([*words, "--num-tasks", "1", "--output", "made"]) == 0  # nothing is asked again
        assert len(server.bodies) == asked
    assert row["overall"] is not None and row["primitive_skill/drawer"] == 0.0
    assert (tmp_path / "made" / "table.md").read_text().startswith("| model | FrozenLake | Sokoban |")
