#!/usr/bin/env bash
# Tests the environment `browsergym` against the real packages, in an environment of their own.
#
#   scripts/test_extra_browsergym.sh [arguments for pytest]
#
# .venvs/browsergym is made on first use (about 220 MB): BrowserGym pins Playwright 1.44. The second line of
# packages is what its WebArena asks for. Chromium must be installed (scripts/install_chromium.sh).
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/venv_beside.sh

venv_beside browsergym browsergym-core==0.14.3 browsergym-miniwob==0.14.3 playwright==1.44.0 pyee==11.1.1 \
  greenlet==3.0.3 lxml==5.4.0 beautifulsoup4==4.13.4 soupsieve miniwob==1.1.0 \
  browsergym-webarena==0.14.3 text-generation==0.7.0 aiohttp aiohappyeyeballs aiosignal frozenlist multidict \
  propcache yarl tiktoken aiolimiter

# without the shared set-up of the tests of the web, whose drivers want a newer Playwright
PYTHONPATH=src:. OMP_NUM_THREADS=1 .venvs/browsergym/bin/python -m pytest --noconftest -p no:cacheprovider -n 0 \
  tests/envs/web/browsergym "$@"
