#!/bin/bash
# Makes .venv-engine: the real SGLang 0.5.11 on a CPU build of torch, for the lab's hosts. Two gigabytes.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(.venv/bin/python -c 'import sys; print(sys.base_prefix)')/bin/python3
quiet() { "$@" 2> >(grep -v 'is ignored: it is neither' >&2); }
pip() { quiet .venv-engine/bin/python -m pip --disable-pip-version-check "$@"; }

"$python" -m venv .venv-engine
index=${TORCH_INDEX:+--index-url $TORCH_INDEX}
# shellcheck disable=SC2086
wheel=$(pip install -q $index --no-deps --dry-run --report - torch==2.13.0 |
  "$python" -c 'import json, sys; i = json.load(sys.stdin)["install"][0]; print(i["download_info"]["url"])')
case $wheel in
  *cpu* | file:*) echo "engine-env: torch is a CPU build: ${wheel##*/}" ;;
  *)
    echo "engine-env: pip would take ${wheel##*/}, a CUDA build with about 3 GB of further wheels." >&2
    echo "            For the CPU build: make engine-env TORCH_INDEX=<a package index with CPU wheels>" >&2
    if [ -t 0 ]; then read -rp "            Download the CUDA build? [y/N] " answer && [ "$answer" = y ] || exit 3; fi
    ;;
esac
# shellcheck disable=SC2086
pip install -q $index torch==2.13.0
# sglang's own pins name CUDA wheels that a CPU host cannot use: the lock is the set that was seen to serve.
pip install -q --no-deps -r deploy/lab/engine/requirements.lock
.venv-engine/bin/python -m compileall -q -j 0 .venv-engine/lib >/dev/null 2>&1 || true
touch .venv-engine/ready
