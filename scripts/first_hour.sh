#!/usr/bin/env bash
# The first hour of a stranger, from the built wheel in a fresh environment outside the repository.
#
#   scripts/first_hour.sh            installs the wheel and its dependencies, trains as the README says (long)
#   scripts/first_hour.sh --short    sees the packages of .venv beside the wheel, trains a few updates (CI)
#   scripts/first_hour.sh --page docs/first_hour.md     also writes its table into that page
#
# Prints the seconds of every step, ends at the first that fails with what it said, and closes with a table of
# what was typed, how long it took and what came out. Packages are installed without constraints, as a stranger
# does. FIRST_HOUR keeps the folder it works in; without it the folder is temporary.
set -euo pipefail
cd "$(dirname "$0")/.."
repository=$PWD
is_short="" page=""
while [ $# -gt 0 ]; do
  case $1 in
    --short) is_short=yes; shift ;;
    --page) [ -f "${2:-}" ] || { echo "--page needs a file that exists"; exit 2; }; page=$(realpath "$2"); shift 2 ;;
    *) echo "usage: scripts/first_hour.sh [--short] [--page FILE]"; exit 2 ;;
  esac
done
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

# NAME COMMAND…: runs it quietly, prints how long it took and keeps a row of the table. `typed` is what a person
# would type, where that is not the command itself. Processor seconds are those of what has ended.
TIMEFORMAT='%R %U %S'
step() {
  local name=$1 typed=${typed:-} said
  shift
  if ! { time "$@" > "$place/step.log" 2>&1; } 2> "$place/step.time"; then
    tail -n 40 "$place/step.log"
    echo "FAILED  $name"
    exit 1
  fi
  said=$(grep -aoE 'held-out success [0-9.]+ -> [0-9.]+' "$place/step.log" | tail -n 1 || true)
  read -r wall user system < <(tail -n 1 "$place/step.time")
  printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$name" "${typed:-$*}" "$wall" "$user" "$system" "$said" >> "$place/steps.tsv"
  awk -v name="$name" -v wall="$wall" -v cpu="$user $system" -v said="$said" 'BEGIN {
    split(cpu, part, " "); printf "ok  %7.1f s  %7.1f s of processor  %s%s\n", wall, part[1] + part[2], name, said ? ": " said : "" }'
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
  "$repository/.venv/bin/python" -m venv ${is_short:+--without-pip} "$place/venv" || return 1
  if [ -n "$is_short" ]; then  # pip, too, is that of .venv
    "$repository/.venv/bin/python" -c "$purelib" > "$("$place/venv/bin/python" -c "$purelib")/beside.pth"
    "$repository/.venv/bin/pip" --python "$place/venv/bin/python" install -q --no-deps "$place"/dist/*.whl || return 1
  else
    "$place/venv/bin/pip" install -q "$(echo "$place"/dist/*.whl)[serve]" openai anthropic || return 1
  fi
  "$place/venv/bin/python" -c 'import stepwell, sys; sys.exit(not stepwell.__file__.startswith(sys.prefix))'
}

rm -f "$place/steps.tsv"
typed="python -m build --wheel" step "build the wheel and check it" build_wheel
typed="pip install '$(basename "$place"/dist/*.whl)[serve]' openai anthropic" \
  step "install it in a fresh environment" install_wheel
export PATH=$place/venv/bin:$PATH
mkdir -p "$place/work"
cd "$place/work"

tiny=() few=() demo=(stepwell demo)
if [ -n "$is_short" ]; then
  # one thread, as CI runs tests beside it; `sft` and `serve` take as many as there are cores
  export OMP_NUM_THREADS=1
  tiny=(eval.num_tasks=4 eval.samples_per_task=1 train.num_updates=2 train.tasks_per_update=4 num_threads=1)
  few=(warm_start.max_updates=4 warm_start.batch_size=4 warm_start.check_every=4)
  demo=(stepwell train demo name=demo "${tiny[@]}" "${few[@]}" warm_start.num_demos=32)
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
  ${is_short:+warm_start.num_demos=32}

step "own agent: its file" stepwell init agent helper
step "own agent: tasks and chats" python helper.py
step "own agent: train" stepwell train helper.toml name=helper "${tiny[@]}" "${few[@]}"

step "own reward: its file" stepwell init reward brevity
part='rewards.parts=[{name="brevity", function="brevity.py:reward", weight=0.1}]'
typed="stepwell train frozenlake-easy name=rewarded '$part'" step "own reward: train" stepwell train frozenlake-easy name=rewarded "$part" \
  ${is_short:+"${tiny[@]}" "${few[@]}" warm_start.num_demos=32}
typed="grep reward/brevity runs/rewarded/metrics.jsonl" step "own reward: it is in the figures" grep -q '"reward/brevity": -' runs/rewarded/metrics.jsonl

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
  for _ in $(seq 1500); do
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
typed="stepwell serve gateway --model exported" step "serve" serve
step "call with the openai and anthropic clients" python call.py "$address"

# The table, on the terminal and in the page between its two marks.
python - "$place/steps.tsv" "$page" ${is_short:+--short} <<'PYTHON'
import os, platform, sys
from importlib.metadata import version

rows = [line.rstrip("\n").split("\t") for line in open(sys.argv[1], encoding="utf-8")]
lines = ["| | typed | seconds | of processor | |", "|---|---|---:|---:|---|"]
for name, typed, wall, user, system, said in rows:
    cells = (name, f"`{typed}`", f"{float(wall):.0f}", f"{float(user) + float(system):.0f}", said)
    lines.append("| " + " | ".join(cells) + " |")
total = sum(float(row[2]) for row in rows)
lines.append(f"| **all** | | **{total:.0f}** | {sum(float(row[3]) + float(row[4]) for row in rows):.0f} | |")
form = "The short form: packages of `.venv` beside the wheel, a few updates per run, which teach nothing" if sys.argv[3:] else (
    "The long form: everything installed without constraints, runs as the README prints them"
)
known = {name: version(name) for name in ("stepwell", "torch", "transformers", "numpy")}
packages = ", ".join(f"{name} {number}" for name, number in known.items())
where = f"{platform.machine()}, {os.cpu_count()} CPU cores, Python {platform.python_version()}, {packages}"
told = "\n".join([f"{form}. {where}.", "", *lines])
print(told)
if sys.argv[2]:
    begin, end = "<!-- table: begin -->", "<!-- table: end -->"
    text = open(sys.argv[2], encoding="utf-8").read()
    before, rest = text.split(begin)
    after = rest.split(end)[1]
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        file.write(f"{before}{begin}\n{told}\n{end}{after}")
PYTHON
echo "the first hour: all of it worked"
