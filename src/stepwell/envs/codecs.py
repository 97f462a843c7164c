"""Converts tasks, turns, requests and samples to the header and arrays of a frame, and back.

`pack_X(values)` gives (header, arrays). `unpack_X(header, arrays)` gives equal values, or raises
`EncodingError` if the header is invalid.

Invariants
* `unpack(pack(x)) == x`, floats and arrays to the last bit. Errors keep their type (of `core.errors`) and
  their message; an exception of any other type becomes an `InfraError`.
* Unpacked arrays are read-only and share no memory that will be written to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stepwell.core import (
    Action,
    ArrayAction,
    ArrayState,
    EncodingError,
    EnvError,
    FinishReason,
    ImageSpan,
    Observation,
    Request,
    Sampled,
    Sampling,
    SamplingParams,
    State,
    StepwellError,
    Task,
    TokenAction,
    TokenState,
    ToolSchema,
    VersionSpan,
    errors,
)
from stepwell.core.arrays import AnyArray
from stepwell.core.frames import is_json, write_text_frame
from stepwell.core.json_text import quote
from stepwell.envs.frame_values import (
    PLAIN_TYPES,
    ArrayPacker,
    Arrays,
    ArrayUnpacker,
    expand_value,
    refuse_invalid,
    require_count,
    require_type,
    require_types,
    share_value,
)
from stepwell.envs.turns import Turn

Header = dict[str, Any]
_TURN_CALL, _PLAIN_TURN = (str, int, list, bool), (str, float, bool, bool, dict, dict)
_KINDS = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, StepwellError)
}


def pack_tasks(tasks: Sequence[Task]) -> Header:
    """Tasks are plain data: they need no arrays."""
    return {"tasks": [[t.env, t.content, t.instruction, t.seed, t.tags] for t in tasks]}


@refuse_invalid("tasks")
def unpack_tasks(header: Header) -> list[Task]:
    """The tasks of `pack_tasks`."""
    return [
        Task(env, require_type(content, dict), instruction, seed, tuple(tags))
        for env, content, instruction, seed, tags in header["tasks"]
    ]


def pack_actions(actions: Sequence[Any]) -> tuple[Header, list[AnyArray]]:
    """Actions for environments: lists of names, or chunks of a robot's actions."""
    if actions and isinstance(actions[0], np.ndarray) and all(isinstance(a, np.ndarray) for a in actions):
        packer = ArrayPacker()
        return {"chunks": packer.stack_column(list(actions)), "count": len(actions)}, packer.arrays
    return {"names": [*map(list, actions)]}, []


@refuse_invalid("actions")
def unpack_actions(header: Header, arrays: Arrays) -> list[Any]:
    """The actions of `pack_actions`; names as tuples."""
    if "chunks" in header:
        return list(ArrayUnpacker(arrays).unstack_column(header["chunks"], header["count"]))
    actions = []
    for names in header["names"]:
        for name in names:
            if type(name) is not str:
                raise EncodingError(f"{name!r} should be a str")
        actions.append(tuple(names))
    return actions


def write_turn_call(session: str, number: int, names: Sequence[str], with_state: bool) -> bytes:
    """The frame that asks for one turn of one session by names: `step` in few values.

    Written without an encoder, which takes most of the time of so small a frame.
    """
    try:
        words = ",".join(map(quote, names))
    except TypeError as error:
        raise EncodingError(f"{names!r:.200} should be names") from error
    state = "true" if with_state else "false"
    return write_text_frame("turn", f'{{"turn":[{quote(session)},{number},[{words}],{state}]}}')


def read_turn_call(header: Header) -> tuple[str, int, list[str], bool]:
    """Session, number, names and `with_state` of `write_turn_call`."""
    values = header.get("turn")
    if type(values) is not list or tuple(map(type, values)) != _TURN_CALL or values[1] < 0:
        raise EncodingError(f"{values!r:.200} is not a turn's session, number, names and with_state")
    session, number, names, with_state = values
    for name in names:
        if type(name) is not str:
            raise EncodingError(f"{name!r:.200} should be a name")
    return session, number, names, with_state


def pack_turns(turns: Sequence[Turn]) -> tuple[Header, list[AnyArray]]:
    """Turns. A turn whose `info` is not JSON becomes a turn with an error that explains this."""
    packer = ArrayPacker()
    shown = [turn.observation for turn in turns]
    states = [turn.state for turn in turns]
    infos, problems = _pack_infos(turns)
    header = {
        "rewards": [float(turn.reward) for turn in turns],
        "terminated": share_value([bool(turn.terminated) for turn in turns]),
        "truncated": share_value([bool(turn.truncated) for turn in turns]),
        "infos": infos,
        "states": states if any(states) else None,
        "errors": [[place, *pack_error(error)] for place, error in sorted(problems.items())],
        "seen": share_value([_pack_observation(observation, packer) for observation in shown]),
        "arrays": packer.stack_rows([o.arrays for o in shown if isinstance(o, ArrayState)]),
    }
    return header, packer.arrays


@refuse_invalid("turns")
def unpack_turns(header: Header, arrays: Arrays) -> list[Turn]:
    """The turns of `pack_turns`."""
    rewards, states = require_type(header["rewards"], list), header["states"]
    count = len(rewards)
    unpacker, seen = ArrayUnpacker(arrays), expand_value(header["seen"], count)
    rows = iter(unpacker.unstack_rows(header["arrays"], sum([isinstance(value, str) for value in seen])))
    shown = [
        ArrayState(next(rows), value) if isinstance(value, str) else _unpack_observation(value, unpacker)
        for value in seen
    ]
    columns = (
        shown,
        require_types(rewards, float, count),
        require_types(expand_value(header["terminated"], count), bool, count),
        require_types(expand_value(header["truncated"], count), bool, count),
        _read_infos(header["infos"], count),
        [None] * count,
        [{} for _ in shown] if states is None else require_types(states, dict, count),
    )
    turns = [Turn(*values) for values in zip(*columns, strict=True)]
    for place, *error in header["errors"]:
        turns[require_type(place, int)].error = unpack_error(error, EnvError)
    return turns


def pack_plain_turn(turn: Turn) -> Header | None:
    """One turn of text alone; None if there is more to it. A remote turn is most often this."""
    shown, info = turn.observation, turn.info
    if turn.error is not None or isinstance(shown, ArrayState) or shown.images or shown.tools:
        return None
    for value in info.values():
        if type(value) not in PLAIN_TYPES:
            return None
    values = [shown.text, float(turn.reward), bool(turn.terminated), bool(turn.truncated), info, turn.state]
    return {"turn": values}


def unpack_plain_turn(header: Header) -> Turn:
    """The turn of `pack_plain_turn`."""
    values = header.get("turn")
    if type(values) is not list or tuple(map(type, values)) != _PLAIN_TURN:
        raise EncodingError(f"{values!r:.200} is not a turn of text")
    text, reward, terminated, truncated, info, state = values
    return Turn(Observation(text), reward, terminated, truncated, info, None, state)


def _pack_infos(turns: Sequence[Turn]) -> tuple[Any, dict[int, Exception]]:
    """Infos by name if all turns have the same names, otherwise turn by turn; and errors by index."""
    problems = {place: turn.error for place, turn in enumerate(turns) if turn.error is not None}
    infos = [turn.info for turn in turns]
    for place, info in enumerate(infos):
        if not PLAIN_TYPES.issuperset(map(type, info.values())) and not is_json(info):
            words = f"info {sorted(map(str, info))} is not JSON; use numbers, texts, lists and tables"
            infos[place] = {}
            problems.setdefault(place, EnvError(words))
    if len(set(map(tuple, infos))) > 1:
        return infos, problems
    names = infos[0] if infos else {}
    return {name: share_value([info[name] for info in infos]) for name in names}, problems


def _read_infos(value: Any, count: int) -> list[dict[str, Any]]:
    if isinstance(value, list):
        return require_types(value, dict, count)
    columns = [expand_value(column, count) for column in value.values()]
    return [dict(zip(value, row, strict=True)) for row in zip(*columns, strict=True)] or [
        {} for _ in range(count)
    ]


def _pack_observation(observation: Observation | ArrayState, packer: ArrayPacker) -> Any:
    """For a robot, only the instruction: the arrays of all robots are packed together."""
    if isinstance(observation, ArrayState):
        return observation.instruction
    tools = [[tool.name, tool.description, tool.parameters] for tool in observation.tools]
    return [observation.text, [packer.add_array(image) for image in observation.images], tools]


def _unpack_observation(value: Any, unpacker: ArrayUnpacker) -> Observation:
    text, numbers, tools = value
    images = tuple(unpacker.get_array(number) for number in numbers)
    return Observation(require_type(text, str), images, tuple(ToolSchema(*tool) for tool in tools))


def pack_requests(requests: Sequence[Request]) -> tuple[Header, list[AnyArray]]:
    """Requests, of token states and array states."""
    packer, states = ArrayPacker(), [request.state for request in requests]
    kinds: dict[tuple[Any, ...], int] = {}  # a batch uses one or two sets of parameters; only seeds differ
    header = {
        "requests": [
            [r.conversation, r.id, kinds.setdefault(_pack_params(r.params), len(kinds)), r.params.seed]
            for r in requests
        ],
        "params": list(kinds),
        "states": [
            state.instruction if isinstance(state, ArrayState) else _pack_token_state(state, packer)
            for state in states
        ],
        "arrays": packer.stack_rows([state.arrays for state in states if isinstance(state, ArrayState)]),
    }
    return header, packer.arrays


@refuse_invalid("requests")
def unpack_requests(header: Header, arrays: Arrays) -> list[Request]:
    """The requests of `pack_requests`."""
    unpacker, values = ArrayUnpacker(arrays), require_type(header["states"], list)
    rows = iter(unpacker.unstack_rows(header["arrays"], sum(isinstance(value, str) for value in values)))
    states = [
        ArrayState(next(rows), value) if isinstance(value, str) else _unpack_token_state(value, unpacker)
        for value in values
    ]
    fields = require_count(header["requests"], len(states))
    kinds = dict(enumerate(map(_read_params, header["params"])))
    return [
        Request(state, kinds[kind].with_seed(_read_seed(seed)), conversation, require_type(id, str))
        for state, (conversation, id, kind, seed) in zip(states, fields, strict=True)
    ]


def _pack_token_state(state: State, packer: ArrayPacker) -> list[Any]:
    assert isinstance(state, TokenState), f"engines sample from tokens or arrays, not {type(state).__name__}"
    spans = [[span.image, span.start, span.length] for span in state.images]
    return [packer.add_array(state.prompt_ids), spans]


def _pack_token_action(action: Action, packer: ArrayPacker) -> list[Any]:
    assert isinstance(action, TokenAction), f"engines sample tokens or arrays, not {type(action).__name__}"
    return [packer.add_array(action.action_ids), action.text]


def _unpack_token_state(value: Any, unpacker: ArrayUnpacker) -> TokenState:
    ids, images = value
    return TokenState(unpacker.get_array(ids), tuple(ImageSpan(*span) for span in images))


def _pack_params(params: SamplingParams) -> tuple[Any, ...]:
    """All but the seed."""
    return (
        params.max_tokens, params.temperature, params.top_p, params.stop, params.stop_ids, params.ignore_end,
    )  # fmt: skip


def _read_params(value: Any) -> SamplingParams:
    max_tokens, temperature, top_p, stop, stop_ids, ignore_end = value
    return SamplingParams(max_tokens, temperature, top_p, None, tuple(stop), tuple(stop_ids), ignore_end)


def _read_seed(value: Any) -> int | None:
    return None if value is None else require_type(value, int)


def pack_samples(samples: Sequence[Sampled]) -> tuple[Header, list[AnyArray]]:
    """Samples, of token actions and array actions."""
    packer, actions = ArrayPacker(), [sample.action for sample in samples]
    chunks = [action for action in actions if isinstance(action, ArrayAction)]
    header = {
        "samples": [_pack_sample(sample) for sample in samples],
        "actions": [
            action.num_units if isinstance(action, ArrayAction) else _pack_token_action(action, packer)
            for action in actions
        ],
        "chunks": packer.stack_column([action.chunk for action in chunks]) if chunks else [],
        "draws": packer.stack_rows([action.draws for action in chunks]),
        "logprobs": packer.stack_column([sample.logprobs for sample in samples]) if samples else [],
    }
    return header, packer.arrays


@refuse_invalid("samples")
def unpack_samples(header: Header, arrays: Arrays) -> list[Sampled]:
    """The samples of `pack_samples`."""
    unpacker, values = ArrayUnpacker(arrays), require_type(header["actions"], list)
    actions = _unpack_actions(header, values, unpacker)
    logprobs = unpacker.unstack_column(header["logprobs"], len(values))
    fields = require_count(header["samples"], len(values))
    return [
        Sampled(
            action,
            logprobs[place],
            Sampling(temperature, top_p, seed, FinishReason(reason)),
            VersionSpan(first, last),
            num_cached,
            mark,
        )
        for place, (action, (temperature, top_p, seed, reason, first, last, num_cached, mark)) in enumerate(
            zip(actions, fields, strict=True)
        )
    ]


def _unpack_actions(header: Header, values: Sequence[Any], unpacker: ArrayUnpacker) -> list[Action]:
    count = sum(isinstance(value, int) for value in values)
    chunks = iter(unpacker.unstack_column(header["chunks"], count))
    draws = iter(unpacker.unstack_rows(header["draws"], count))
    found: list[Action] = []
    for value in values:
        if isinstance(value, int):
            found.append(ArrayAction(next(chunks), value, next(draws)))
        else:
            ids, text = value
            found.append(TokenAction(unpacker.get_array(ids), require_type(text, str)))
    return found


def _pack_sample(sample: Sampled) -> list[Any]:
    how, span = sample.sampling, sample.policy_version
    return [
        how.temperature, how.top_p, how.seed, how.finish_reason.value,
        span.first, span.last, sample.num_cached, sample.position_mark,
    ]  # fmt: skip


def pack_error(error: BaseException) -> list[str]:
    """The type and the message of an error; a foreign type is named in the message."""
    kind = type(error)
    if _KINDS.get(kind.__name__) is kind:
        return [kind.__name__, str(error)]
    return ["", f"{kind.__name__}: {error}"]


def unpack_error(value: Any, otherwise: type[StepwellError]) -> StepwellError:
    """The error of `pack_error`; a foreign type becomes `otherwise`."""
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(word, str) for word in value):
        raise EncodingError(f"{value!r} should be the type and the message of an error")
    name, words = value
    if name not in _KINDS and name != "":
        raise EncodingError(f"{name!r} is not a type of error")
    return _KINDS.get(name, otherwise)(words)
