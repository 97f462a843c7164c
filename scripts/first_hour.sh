#!/usr/bin/env bash
# The first hour of a stranger, from the built wheel in a fresh environment outside the repository.
#
#   scripts/first_hour.sh            installs the wheel and its dependencies, trains as the README says (long)
#   scripts/first_hour.sh --short    sees the packages of .venv beside the wheel, trains a few updates (CI)
#
# Prints the seconds of every step and ends at the first that fails, with what it said. FIRST_HOUR keeps the
# folder it works in; without it the folder is temporary.
set -euo pipefail
cd "$(dirname "$0")/.."
repository=$PWD
[ $# -eq 0 ] || [ "$*" = "--short" ] || { echo "usage: scripts/first_hour.sh [--short]"; exit 2; }
is_short=${1:+yes}
unset PYTHONPATH
export PIP_DISABLE_PIP_VERSION_CHECK=1

if [ -n "${FIRST_HOUR:-}" ]; then
  place=$FIRST_HOUR; mkdir -p "$place"
else
  place=$(mktemp -d)
fi
server=""
leave() {
  [ -z "$server" ] || kill "$server" 2>/dev/null || true
  [ -n "${FIRST_HOUR:-}" ] || rm -rf "$place"
}
trap leave EXIT

step() {  # NAME COMMAND…: runs it quietly and prints how long it took
  local name=$1 began=$EPOCHREALTIME
  shift
  if ! "$@" > "$place/step.log" 2>&1; then
    tail -n 40 "$place/step.log"
    echo "FAILED  $name"
    exit 1
  fi
  awk -v name="$name" -v a="$began" -v b="$EPOCHREALTIME" 'BEGIN { printf "ok  %7.1f s  %s\n", b - a, name }'
}

# A function called by `step` does not end at a failed command by itself, hence `|| return 1`.
build_wheel() {  # of what git knows or would add: no leftovers of earlier builds
  mkdir -p "$place/source"
  git ls-files -zco --exclude-standard | while IFS= read -r -d '' file; do
    if [ -f "$file" ] && [ ! -L "$file" ]; then cp --parents -p "$file" "$place/source"; fi
  done
  (cd "$place/source" && "$repository/.venv/bin/python" -m build --wheel --no-isolation -o "$place/dist" .) || return 1
  .venv/bin/python -m twine check --strict "$place"/dist/*.whl || return 1
  .venv/bin/python - "$place"/dist/*.whl <<'PYTHON'
import pathlib, sys, zipfile

held = set(zipfile.ZipFile(sys.argv[1]).namelist())
files = (p.relative_to("src") for p in pathlib.Path("src/stepwell").rglob("*") if p.is_file())
missing = [str(p) for p in files if p.suffix != ".pyc" and str(p) not in held]
sys.exit(f"the wheel lacks {missing}" if missing else 0)
PYTHON
}

install_wheel() {
  local purelib='import sysconfig; print(sysconfig.get_path("purelib"))'
  "$repository/.venv/bin/python" -m venv "$place/venv" || return 1
  if [ -n "$is_short" ]; then
    "$repository/.venv/bin/python" -c "$purelib" > "$("$place/venv/bin/python" -c "$purelib")/beside.pth"
    "$place/venv/bin/pip" install -q --no-deps "$place"/dist/*.whl || return 1
  else
    "$place/venv/bin/pip" install -q -c "$repository/constraints.txt" torch || return 1
    "$place/venv/bin/pip" install -q -c "$repository/constraints.txt" \
      "$(echo "$place"/dist/*.whl)[serve]" openai anthropic || return 1
  fi
  "$place/venv/bin/python" -c 'import stepwell, sys; sys.exit(not stepwell.__file__.startswith(sys.prefix))'
}

step "build the wheel and check it" build_wheel
step "install it in a fresh environment" install_wheel
export PATH=$place/venv/bin:$PATH
mkdir -p "$place/work"
cd "$place/work"

tiny=() few=() demo=(stepwell demo)
if [ -n "$is_short" ]; then
  tiny=(eval.num_tasks=4 eval.samples_per_task=1 train.num_updates=2 train.tasks_per_update=4)
  few=(warm_start.max_updates=10 warm_start.batch_size=8)
  demo=(stepwell train demo name=demo "${tiny[@]}" "${few[@]}" warm_start.num_demos=128)
fi

step "demo" "${demo[@]}"

python - "$repository/README.md" > my_module.py <<'PYTHON'
import re, sys

blocks = re.findall(r"```python\n(.*?)```", open(sys.argv[1], encoding="utf-8").read(), re.DOTALL)
(env,) = [block for block in blocks if "class NumberLine(Env)" in block]
print(env)
PYTHON
step "own environment: check" stepwell envs check my_module:NumberLine
step "own environment: train" stepwell train --env my_module:NumberLine name=own "${tiny[@]}" "${few[@]}" \
  ${is_short:+warm_start.num_demos=128}

stepwell init agent helper > init.log
step "own agent: tasks and chats" python helper.py
step "own agent: train" stepwell train helper.toml name=helper "${tiny[@]}" "${few[@]}"

stepwell init reward brevity >> init.log
part='rewards.parts=[{name="brevity", function="brevity.py:reward", weight=0.1}]'
step "own reward: train" stepwell train demo name=rewarded "$part" \
  ${is_short:+"${tiny[@]}" "${few[@]}" warm_start.num_demos=128}
step "own reward: it is in the figures" grep -q '"reward/brevity": -' runs/rewarded/metrics.jsonl

step "SFT from chats" stepwell sft tiny-0.3m helper_chats.jsonl --to warm ${is_short:+--max-updates 5}
step "export" stepwell export runs/own --to exported

cat > load.py <<'PYTHON'
from transformers import AutoModelForCausalLM, AutoTokenizer

for folder in ("exported", "warm"):
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    chat = [{"role": "user", "content": "3 and 5"}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    said = model.generate(**prompt, max_new_tokens=4, do_sample=False)
    assert said.shape[1] > prompt["input_ids"].shape[1], folder
PYTHON
step "load the exported model with transformers" python load.py

serve() {
  stepwell serve gateway --model exported --port 0 > serve.log 2>&1 &
  server=$!
  for _ in $(seq 600); do
    address=$(grep -o 'http://127.0.0.1:[0-9]*' serve.log | head -n 1) && return
    kill -0 "$server" 2>/dev/null || { cat serve.log; return 1; }
    sleep 0.2
  done
  echo "the gateway did not begin to listen"; cat serve.log; return 1
}
cat > call.py <<'PYTHON'
import sys

from anthropic import Anthropic
from openai import OpenAI

root, asked = f"{sys.argv[1]}/s/first-hour", [{"role": "user", "content": "3 and 5"}]
said = OpenAI(base_url=f"{root}/v1", api_key="none").chat.completions.create(
    model="policy", messages=asked, max_tokens=8
)
assert said.choices[0].message.content is not None and said.usage.completion_tokens > 0
answer = Anthropic(base_url=root, api_key="none").messages.create(model="policy", messages=asked, max_tokens=8)
assert answer.role == "assistant" and answer.usage.output_tokens > 0
PYTHON
step "serve" serve
step "call with the openai and anthropic clients" python call.py "$address"
echo "the first hour: all of it worked"
