#!/usr/bin/env bash
# Chromium for the web environment: installed where that is allowed, else said aloud. Where the system has its
# shell without windows, that one: a page costs it a ninth of the processor time.
set -euo pipefail

find_browser() {
  for name in "$@"; do
    if command -v "$name" >/dev/null; then return 0; fi
  done
  return 1
}
has_window_browser() { find_browser chromium chromium-browser google-chrome google-chrome-stable; }
may_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

if find_browser chromium-headless-shell; then exit 0; fi
if ! may_install; then
  has_window_browser ||
    echo "no Chromium here: apt-get install chromium (as root); tests with a real browser are skipped" >&2
  exit 0
fi
if has_window_browser && ! apt-cache show chromium-headless-shell >/dev/null 2>&1; then exit 0; fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -q || true
if apt-get install -qy --no-install-recommends chromium-headless-shell fonts-dejavu-core; then exit 0; fi
has_window_browser || apt-get install -qy --no-install-recommends chromium fonts-dejavu-core
