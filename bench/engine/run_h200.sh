#!/bin/bash
# One stage on a bare, offline H200 machine, at most 8 minutes: bench/engine/run_h200.sh kernels|lossless|tp2 [ARGUMENTS]
# Needs .gpu/ (build_gpu.sh) carried along. Output goes to $OUT; carry it back as .gpu/results/ and .gpu/cache*.tar.xz, and a
# stage that was cut continues with what is missing.
set -uo pipefail
cd "$(dirname "$0")/../.."
STAGE=${1:-none}
case $STAGE in
  kernels | lossless | tp2) shift ;;
  *) echo "there is no stage $STAGE: kernels, lossless or tp2" >&2; exit 2 ;;
esac
OUT=${OUT:-build/h200} SCRATCH=${SCRATCH:-/scratch} LIMIT_S=${LIMIT_S:-440}
mkdir -p "$OUT" "$SCRATCH"
OUT=$(realpath "$OUT")
SECONDS=0
told() { echo "## ${SECONDS} s: $*"; }

setup() {
  [ -e "$SCRATCH/ready" ] && return
  chmod +x .gpu/bin/zstd
  LD_LIBRARY_PATH=$PWD/.gpu/bin .gpu/bin/zstd -dc --long=27 .gpu/site.tar.zst | tar -x -C "$SCRATCH" || exit 2
  cp -r .gpu/patch/sglang "$SCRATCH/site/"
  for cache in .gpu/cache*.tar.xz; do if [ -e "$cache" ]; then tar -xJf "$cache" -C "$SCRATCH"; fi; done
  python3 -m compileall -q -j 0 "$SCRATCH/site" >/dev/null 2>&1
  python3 bench/engine/models.py "$SCRATCH/models" || exit 2
  touch "$SCRATCH/ready"
  told "unpacked, patched and made models"
}

environment() {
  export PYTHONPATH=$SCRATCH/site PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 TOKENIZERS_PARALLELISM=false
  export SGLANG_IS_FLASHINFER_AVAILABLE=false CUDA_HOME=${CUDA_HOME:-/usr/local/cuda}
  export TVM_FFI_CACHE_DIR=$SCRATCH/cache/tvm-ffi TRITON_CACHE_DIR=$SCRATCH/cache/triton
  export SGLANG_HOST_IP=127.0.0.1 GLOO_SOCKET_IFNAME=lo NCCL_SOCKET_IFNAME=lo NCCL_NVLS_ENABLE=0
}

keep_caches() {
  tar -C "$SCRATCH" -cf - cache 2>/dev/null | xz -3 -T0 >"$OUT/cache.tar.xz"
  # what comes back in one file is limited to 16 MiB
  if [ "$(stat -c %s "$OUT/cache.tar.xz")" -gt 16000000 ]; then
    tar -C "$SCRATCH" -cf - cache/tvm-ffi | xz -6 -T0 >"$OUT/cache.tar.xz"
    tar -C "$SCRATCH" -cf - cache/triton | xz -6 -T0 >"$OUT/cache2.tar.xz"
  fi
}

engines() {
  setup
  environment
  local results=$OUT/$STAGE.json
  if [ -e ".gpu/results/$STAGE.json" ]; then cp ".gpu/results/$STAGE.json" "$results"; fi
  timeout "$LIMIT_S" python3 bench/engine/lossless.py "$STAGE" --device cuda --models "$SCRATCH/models" --work "$SCRATCH/work" \
    --results "$results" --overlay .gpu/patch/digest.json "$@"
  local status=$?
  told "stage $STAGE ended with $status"
  tar -C "$SCRATCH/work" -czf "$OUT/logs-$STAGE.tar.gz" --exclude='*.pt' . 2>/dev/null
  keep_caches
  told "done"
  return $status
}

case $STAGE in
  kernels) python3 bench/engine/kernels.py "$@" ;;
  *) engines "$@" ;;
esac
