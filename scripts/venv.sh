#!/bin/bash
# Makes .venv, the CLI's own environment, from the pinned lock.
set -euo pipefail
cd "$(dirname "$0")/.."
for python in python3.11 python3.12 python3.13 python3; do
  if command -v "$python" >/dev/null && "$python" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    found=$python
    break
  fi
done
[ -n "${found:-}" ] || { echo "ddtree-ops: Python 3.11 or newer with venv is needed and was not found." >&2; exit 3; }
"$found" -m venv .venv
.venv/bin/python -m pip install -q --disable-pip-version-check -r requirements-dev.lock 2> >(grep -v 'is ignored: it is neither' >&2)
.venv/bin/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e . 2> >(grep -v 'is ignored: it is neither' >&2)
