"""Export and import: nothing lost, nothing twice, images beside the file."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.pool.made import TASK, dialogue, fill, step, trajectories, trajectory
from tests.properties import examples

from stepwell.core import ImageSpan, InputError, Status, Step
from stepwell.pool import Channel, Filter, Pool, StoredTrajectory, open_pool

shared_pool = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(15))
_numbers = itertools.count()
ENDINGS = ("parquet", "jsonl", "jsonl.gz")


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Pool]:
    with open_pool(tmp_path / "other.db") as opened:
        yield opened


def known(stored: StoredTrajectory) -> tuple[object, ...]:
    """Everything that must be the same after a journey."""
    history = [(r.step, r.part, r.value, r.source, r.created_s) for r in stored.reward_history]
    entry = stored.entry
    return (
        stored.trajectory, stored.numbers, stored.path, stored.source, stored.reports, history, entry.tags,
        entry.channel, entry.group_size, entry.is_served, entry.created_s, entry.finished_s, entry.reward,
        stored.versions,
    )  # fmt: skip


@pytest.mark.parametrize("ending", ENDINGS)
@shared_pool
@given(data=st.data())
def test_any_trajectory_survives_the_journey(
    pool: Pool, other: Pool, tmp_path: Path, ending: str, data: st.DataObject
) -> None:
    made = data.draw(trajectories(f"t{next(_numbers)}"))
    pool.add([made], source=data.draw(st.just({"from": "x"})), tags=["a"])
    file = tmp_path / f"out.{ending}"
    assert pool.export(file, where=Filter(ids=[made.id])) == 1
    assert other.import_(file) == 1
    assert known(other.get(made.id, with_branches=True)) == known(pool.get(made.id, with_branches=True))


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_surrounds_a_trajectory_survives_too(
    pool: Pool, other: Pool, tmp_path: Path, ending: str
) -> None:
    for id in ("a", "b", "c"):
        pool.begin(
            TASK, id=id, group="g", group_size=2, channel="user", tags=[f"tag {id}"], source={"id": id}
        )
        for number, each in enumerate(dialogue(4)):
            pool.append(id, 2 * number, [each])
        pool.reward(id, 0.5, step=2, part="format", source="judge")
    for id in ("c", "b", "a"):  # a is late: stored only
        pool.reward(id, 1.0)
        pool.finish(id, Status.SUCCESS, path=[0, 2, 4])
        pool.reward(id, 2.0, source="person")
        pool.report(id, {"said": "fine"})
    file = tmp_path / f"out.{ending}"
    assert pool.export(file) == 3
    assert other.import_(file) == 3
    for id in ("a", "b", "c"):
        assert known(other.get(id, with_branches=True)) == known(pool.get(id, with_branches=True))
    (taken,) = other.take("me", 5, channel="user")
    assert [t.id for t in taken.trajectories] == ["b", "c"]
    assert taken.trajectories == pool.take("me", 5, channel="user")[0].trajectories


def test_importing_twice_adds_nothing_even_after_corrections(pool: Pool, tmp_path: Path) -> None:
    ids = fill(pool, "g", size=2)
    pool.export(tmp_path / "x.jsonl")
    pool.reward(ids[0], 9.0)
    assert pool.import_(tmp_path / "x.jsonl") == 0
    assert len(pool.get(ids[0]).reward_history) == 1


def test_only_what_fits_and_is_finished_is_exported(pool: Pool, other: Pool, tmp_path: Path) -> None:
    pool.add([trajectory("a"), trajectory("b")])
    pool.tag(["b"], "good")
    pool.begin(TASK, id="open", tags=["good"])
    assert pool.export(tmp_path / "x.parquet", where=Filter(tags=["good"])) == 1
    assert other.import_(tmp_path / "x.parquet", channel="eval", tags=["imported"]) == 1
    found = other.get("b")
    assert (found.channel, found.tags) == (Channel.EVAL, ("good", "imported"))
    with pytest.raises(InputError, match="finish it first"):
        pool.export(tmp_path / "x.parquet", where=Filter(is_open=True))


@pytest.mark.parametrize("ending", ENDINGS)
def test_images_travel_beside_the_file_each_once(
    pool: Pool, other: Pool, tmp_path: Path, ending: str
) -> None:
    image = np.arange(27, dtype=np.uint8).reshape(3, 3, 3)
    span = (ImageSpan(pool.blobs.put_image(image), 1, 2),)
    steps = [Step.from_tokens([1, 2, 3, n], [4], images=span) for n in range(3)]
    pool.add([trajectory("a", steps), trajectory("b", steps)])
    file = tmp_path / f"x.{ending}"
    pool.export(file)
    assert len(list((tmp_path / f"x.{ending}.images").glob("*/*"))) == 1
    other.import_(file)
    assert (other.blobs.get_image(span[0].image) == image).all()
    assert other.get("b").trajectory.steps == steps


def test_many_trajectories_go_through_in_several_batches(pool: Pool, other: Pool, tmp_path: Path) -> None:
    made = [trajectory(f"t{n}", [step(n)] * 8) for n in range(150)]
    pool.add(made)
    seen: list[int] = []
    assert pool.export(tmp_path / "x.parquet", progress=seen.append) == 150
    assert seen == list(range(1, 151))
    seen.clear()
    assert other.import_(tmp_path / "x.parquet", progress=seen.append) == 150
    assert seen == [64, 128, 150]
    assert list(other.trajectories()) == made


def test_a_parquet_file_is_a_plain_table(pool: Pool, tmp_path: Path) -> None:
    import pyarrow.parquet

    pool.add([trajectory("a", [step(0, version=3, reward=1.0)])])
    pool.export(tmp_path / "x.parquet")
    (row,) = pyarrow.parquet.read_table(tmp_path / "x.parquet").to_pylist()
    assert (row["id"], row["status"], row["reward"]) == ("a", "success", 1.0)
    assert row["steps"][0]["prompt_ids"] == step(0).state.prompt_ids.tolist()  # type: ignore[union-attr]
    assert row["steps"][0]["text"] == "act 0" and row["steps"][0]["last_version"] == 3


def test_half_a_character_goes_through_jsonl_and_is_refused_by_parquet(
    pool: Pool, other: Pool, tmp_path: Path
) -> None:
    made = trajectory("a", [Step.from_tokens([5], [7], text="half \ud83d")])
    pool.add([made])
    with pytest.raises(InputError, match=r"half of a surrogate pair.*export a \.jsonl file"):
        pool.export(tmp_path / "x.parquet")
    assert not list(tmp_path.glob("*.parquet")) and not list(tmp_path.glob(".*part"))
    pool.export(tmp_path / "x.jsonl")
    assert other.import_(tmp_path / "x.jsonl") == 1
    assert other.get("a").trajectory == made


def test_a_broken_file_is_refused_with_its_place_and_stores_nothing_of_the_batch(
    pool: Pool, tmp_path: Path
) -> None:
    pool.add([trajectory("a"), trajectory("b")])
    file = tmp_path / "x.jsonl"
    pool.export(file)
    first, second = file.read_text().splitlines()
    form = json.loads(second)
    for change, message in (
        (second[:-5], "line 2: not JSON"),
        (json.dumps({**form, "status": "won"}), "line 2: not a trajectory .* 'won'"),
        (json.dumps({k: v for k, v in form.items() if k != "task"}), "line 2: .* field 'task' is missing"),
        (json.dumps({**form, "stepwell": 9}), "format 9"),
        (json.dumps({**form, "task": {**form["task"], "env": "other"}}), "but its content has id"),
        (json.dumps([1]), "line 2: not a trajectory"),
    ):
        file.write_text(first.replace('"a"', '"new"') + "\n" + change + "\n")
        with pytest.raises(InputError, match=message):
            pool.import_(file)
    assert pool.count() == 2


def test_files_that_are_not_ours_are_refused(pool: Pool, tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_text("hello")
    with pytest.raises(InputError, match="not a Parquet file"):
        pool.import_(tmp_path / "x.parquet")
    with pytest.raises(InputError, match="is not a file"):
        pool.import_(tmp_path / "missing.jsonl")
    with pytest.raises(InputError, match="has no known format"):
        pool.export(tmp_path / "x.txt")
    assert pool.export(tmp_path / "x.txt", format="jsonl") == 0
    assert not list(tmp_path.glob(".*part"))
