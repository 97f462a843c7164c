"""Import refuses every malformed line with its number, by our own error, and stores nothing of its batch."""

from __future__ import annotations

import base64
import copy
import gzip
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet
from tests.pool.made import dialogue, step, trajectory
from tests.properties import IS_THOROUGH

from stepwell.core import ArrayAction, ArrayState, ImageSpan, InputError, Status, Step, Task
from stepwell.pool import Pool, open_pool
from stepwell.pool.files import JSON_COLUMNS, find_image_folder

DEEP = "[" * 5000 + "]" * 5000
HOSTILE: list[Any] = [
    None,
    True,
    0,
    -1,
    1,
    2**31,
    2**63,
    2**64,
    -(2**63) - 1,
    10**400,
    1.5,
    1e39,
    -1e300,
    float("nan"),
    float("inf"),
    float("-inf"),
    "",
    "x",
    "\x00",
    "\ud800",
    "\u2028",
    "a" * 600,
    "-inf",
    "nan",
    "5",
    [],
    [[]],
    [None],
    [1.5],
    ["1"],
    [2**40],
    [-1],
    {},
    {"": None},
    {"x": float("nan")},
    {"record": "AAAA"},
    {"record": 5},
    "é" * 3,
]


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Export lines of every kind: dialogues, images, robots, branches, late rewards, reports."""
    folder = tmp_path_factory.mktemp("valid")
    rng = np.random.default_rng(0)
    robot = Step(
        ArrayState({"pose": rng.random(4)}, "push"),
        ArrayAction(rng.random((2, 3)), 6),
        np.zeros(6, np.float32),
    )
    with open_pool(folder / "pool.db") as pool:
        seen = Step.from_tokens([5, 5, 6], [7], images=(ImageSpan("0" * 32, 0, 2),), anchor="here")
        last = trajectory("token", [*dialogue(2), seen], status=Status.AGENT_ERROR)
        last.final_state = seen.state
        last.info = {"deep": [{"x": 1}]}
        pool.add([last, trajectory("robot", [robot])], source={"from": "x"}, tags=["good"])
        pool.begin(Task("lake", {"board": "SF"}), id="branch", group="g", group_size=2)
        pool.append("branch", 0, [step(0), step(1), step(2)])
        pool.reward("branch", 1.0, step=1, source="judge")
        pool.report("branch", {"said": "fine"})
        pool.finish("branch", Status.SUCCESS, path=[0, 2], timings={"s": 0.5})
        pool.export(folder / "valid.jsonl")
    return (folder / "valid.jsonl").read_text().splitlines()


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    with open_pool(tmp_path / "pool.db") as opened:
        yield opened


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place of a JSON value."""
    yield at
    for key, inner in (
        value.items() if isinstance(value, dict) else enumerate(value[:3] if isinstance(value, list) else ())
    ):
        yield from places(inner, (*at, key))


def change_value(form: dict[str, Any], rng: random.Random) -> str:
    """Some value replaced, removed, doubled or renamed."""
    at = rng.choice([place for place in places(form) if place])
    owner: Any = form
    for key in at[:-1]:
        owner = owner[key]
    kind = rng.choice(["replace", "replace", "replace", "remove", "double", "rename", "deepen"])
    if kind == "remove":
        del owner[at[-1]]
    elif kind == "double" and isinstance(owner, list):
        owner.insert(at[-1], copy.deepcopy(owner[at[-1]]))
    elif kind == "rename" and isinstance(owner, dict):
        owner[f"{at[-1]}x"] = owner.pop(at[-1])
    elif kind == "deepen":
        owner[at[-1]] = "DEEP"
    else:
        owner[at[-1]] = rng.choice(HOSTILE)
    return json.dumps(form).replace('"DEEP"', DEEP)


def change_text(line: str, rng: random.Random) -> bytes:
    """Bytes removed, doubled, swapped or made up."""
    data = bytearray(line.encode())
    at = rng.randrange(len(data))
    kind = rng.choice(["cut", "drop", "double", "byte", "insert"])
    if kind == "cut":
        return bytes(data[:at])
    if kind == "drop":
        del data[at : at + rng.randint(1, 20)]
    elif kind == "double":
        data[at:at] = data[at : at + rng.randint(1, 20)]
    elif kind == "byte":
        data[at] = rng.randrange(256)
    else:
        data[at:at] = rng.choice(
            [b"NaN", b"1e999", b"9" * 5000, b"\xff\xfe", b"\xed\xa0\x80", b"\\ud800", b"}", b'"']
        )
    return bytes(data).replace(b"\n", b" ")


def mutate(line: str, rng: random.Random, name: str) -> bytes:
    form = json.loads(line)
    form["id"] = name
    form["group"] = name if form["group"] else ""
    if rng.random() < 0.75:
        return change_value(form, rng).encode()
    return change_text(json.dumps(form), rng)


def test_only_our_own_error_with_the_lines_number_comes_of_any_mutation(
    pool: Pool, lines: list[str], tmp_path: Path
) -> None:
    """Over a second: each mutation is an import of its own. What is taken must be readable and exportable."""
    rng, num_mutations = random.Random(7), 800 if IS_THOROUGH else 300
    file = tmp_path / "x.jsonl"
    num_refused = 0
    for index in range(num_mutations):
        mutated = mutate(rng.choice(lines), rng, f"m{index}")
        if not mutated.strip():
            continue
        first = json.dumps({**json.loads(lines[0]), "id": f"before{index}", "group": ""}).encode()
        file.write_bytes(first + b"\n\n" + mutated + b"\n")
        try:
            pool.import_(file)
        except InputError as error:
            num_refused += 1
            assert re.search(r"x\.jsonl, line 3: ", str(error)), (mutated[:300], error)
            assert "nothing was imported" in str(error) and "\n" not in str(error)
            assert not pool.has(f"before{index}")
        else:
            assert pool.has(f"before{index}")
    assert num_mutations * 0.5 < num_refused < num_mutations
    assert pool.export(tmp_path / "again.jsonl") == pool.count()
    with open_pool(tmp_path / "other.db") as other:
        assert other.import_(tmp_path / "again.jsonl") == pool.count()


def test_a_whole_number_beyond_64_bits_is_refused_with_its_line_or_read(
    pool: Pool, lines: list[str], tmp_path: Path
) -> None:
    line, file = next(line for line in lines if '"id":"token"' in line), tmp_path / "x.jsonl"
    for number, at in enumerate(place for place in places(json.loads(line)) if place):
        form = {**json.loads(line), "id": f"n{number}", "group": ""}
        owner = form
        for key in at[:-1]:
            owner = owner[key]
        owner[at[-1]] = 2**80
        file.write_text(json.dumps(form))
        try:
            assert pool.import_(file) == 1, at
        except InputError as error:
            assert re.search(r"x\.jsonl, line 1: ", str(error)), at


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        (("steps", 0, "action_ids", 1), 1.5, "steps.0.action_ids.1: .*integer.*got 1.5"),
        (("steps", 0, "prompt_ids", 0), 2**40, "steps.0.prompt_ids.0: .*less than or equal"),
        (("steps", 1, "number"), 0, "two steps have the same number"),
        (("steps", 0, "behavior_logprobs", 0), 1e39, "steps.0.behavior_logprobs.0"),
        (("steps", 0, "reward"), float("nan"), "NaN is not a JSON number"),
        (("group_size",), 2**70, "group_size: "),
        (("timings",), {"s": -1.0}, r"timings\['s'\] is -1.0; give seconds >= 0"),
        (("task", "id"), "\ud800" * 900, r"task.id is '[\\ud80]{40,60}, but its content has id"),
        (("task", "env"), "a\x00b", "task.env must be .* printable"),
        (("rewards",), [{"step": 9, "part": "x", "value": 1, "source": "", "created_s": 1}], "no step 9"),
        (("surprise",), 1, "field 'surprise' is unknown"),
    ],
)
def test_what_is_wrong_is_named(
    pool: Pool, lines: list[str], tmp_path: Path, field: tuple[Any, ...], value: Any, words: str
) -> None:
    form = json.loads(next(line for line in lines if '"id":"token"' in line))
    if field == ("task", "env"):  # its hash must fit, or that is what is wrong
        form["task"]["id"] = Task(value, form["task"]["content"], form["task"]["instruction"]).id
    owner = form
    for key in field[:-1]:
        owner = owner[key]
    owner[field[-1]] = value
    (tmp_path / "x.jsonl").write_text(json.dumps(form))
    with pytest.raises(InputError, match=f"line 1: .*{words}"):
        pool.import_(tmp_path / "x.jsonl")


def test_a_line_that_does_not_fit_another_is_refused_with_its_number(
    pool: Pool, lines: list[str], tmp_path: Path
) -> None:
    branch = json.loads(next(line for line in lines if '"id":"branch"' in line))
    other = {**branch, "id": "second", "group_size": 3}
    (tmp_path / "x.jsonl").write_text("\n".join([lines[0], json.dumps(branch), json.dumps(other)]))
    with pytest.raises(InputError, match=r"line 3: .*nothing was imported"):
        pool.import_(tmp_path / "x.jsonl")
    assert pool.count() == 0


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
@pytest.mark.parametrize("images", [["x"], [None], [{"image": "x", "start": 0, "length": 1}]])
def test_a_record_of_a_robot_has_no_columns_of_a_language_policy(
    pool: Pool, lines: list[str], tmp_path: Path, images: list[Any], ending: str
) -> None:
    form = json.loads(next(line for line in lines if '"id":"robot"' in line))
    form["steps"][0]["images"] = images
    file = tmp_path / f"x.{ending}"
    if ending == "jsonl":
        file.write_text(json.dumps(form))
    else:
        texts = {name: json.dumps(form[name]) for name in JSON_COLUMNS}
        task = {**form["task"], "content": json.dumps(form["task"]["content"])}
        steps = [
            {**step, "record": base64.b64decode(step["record"]), "reward_parts": "{}"}
            for step in form["steps"]
        ]
        row = {**form, **texts, "task": task, "steps": steps}
        parquet.write_table(pyarrow.Table.from_pylist([row]), file)
    find_image_folder(file).mkdir()
    with pytest.raises(
        InputError, match=r"(line|row) 1: not a trajectory .*field 'steps\.0\.images' is unknown"
    ):
        pool.import_(file)


def test_what_was_imported_before_the_line_is_said(pool: Pool, lines: list[str], tmp_path: Path) -> None:
    form = {**json.loads(lines[0]), "group": ""}
    many = [json.dumps({**form, "id": f"t{index}"}) for index in range(70)]
    (tmp_path / "x.jsonl").write_text("\n".join([*many, "{"]))
    with pytest.raises(InputError, match=r"line 71: not JSON.*the first 64 trajectories are in the pool"):
        pool.import_(tmp_path / "x.jsonl")
    assert pool.count() == 64


def test_a_packed_file_that_is_cut_short_or_damaged_is_refused(
    pool: Pool, lines: list[str], tmp_path: Path
) -> None:
    packed = gzip.compress("\n".join(lines).encode())
    for data in (packed[:-20], packed[:40], b"no gzip", packed[:200] + b"\x00\xff" * 9 + packed[218:]):
        (tmp_path / "x.jsonl.gz").write_bytes(data)
        with pytest.raises(InputError, match=r"x\.jsonl\.gz, line \d"):
            pool.import_(tmp_path / "x.jsonl.gz")
    assert pool.count() == 0


def test_a_row_of_another_program_and_a_damaged_image_beside_a_file_are_refused_with_their_place(
    pool: Pool, tmp_path: Path
) -> None:
    parquet.write_table(pyarrow.table({"task": ["x"], "steps": [[]]}), tmp_path / "x.parquet")
    with pytest.raises(InputError, match=r"x\.parquet, row 1: not in the format of `export`"):
        pool.import_(tmp_path / "x.parquet")
    image = pool.blobs.put_image(np.zeros((2, 2, 3), np.uint8))
    pool.add([trajectory("a", [Step.from_tokens([5, 5], [7], images=(ImageSpan(image, 0, 2),))])])
    pool.export(tmp_path / "y.jsonl")
    (blob,) = (tmp_path / "y.jsonl.images").glob("*/*")
    blob.write_bytes(b"?")
    with (
        open_pool(tmp_path / "other.db") as other,
        pytest.raises(InputError, match=r"y\.jsonl, line 1: blob .* is damaged"),
    ):
        other.import_(tmp_path / "y.jsonl")


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_an_impossible_token_keeps_its_logprob_in_every_format(
    pool: Pool, tmp_path: Path, ending: str
) -> None:
    never = Step.from_tokens([1, 2], [3, 4], behavior_logprobs=[-0.5, float("-inf")])
    pool.add([trajectory("a", [never])])
    pool.export(tmp_path / f"x.{ending}")
    with open_pool(tmp_path / "other.db") as other:
        assert other.import_(tmp_path / f"x.{ending}") == 1
        assert other.get("a").trajectory.steps == [never]
