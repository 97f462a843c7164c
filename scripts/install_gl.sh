#!/usr/bin/env bash
# Off-screen GL for camera images of robots: installed where that is allowed, else said aloud.
set -euo pipefail

packages="libegl1 libgl1-mesa-dri libosmesa6"
has_gl() { ldconfig -p | grep -qE 'libEGL\.so|libOSMesa\.so'; }

if has_gl; then exit 0; fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "no off-screen GL library here: apt-get install $packages (as root); tests with pictures are skipped" >&2
  exit 0
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -q || true
apt-get install -qy --no-install-recommends $packages
