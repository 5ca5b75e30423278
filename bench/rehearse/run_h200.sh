#!/bin/bash
# Rehearsals beside a live server on a bare, offline H200 machine: bench/rehearse/run_h200.sh TP CASE...
# MEMORY="CASE...": then full-size servers with dummy weights, for the preflight's arithmetic (bench/preflight/memory.py).
# Needs .gpu/ (bench/engine/build_gpu.sh) and .gpu/modes.json (the series' modes.yaml as JSON) carried along.
set -uo pipefail
cd "$(dirname "$0")/../.."
TP=$1; shift
OUT=${OUT:-build/rehearse} SCRATCH=${SCRATCH:-/scratch} LIMIT_S=${LIMIT_S:-540}
mkdir -p "$OUT" "$SCRATCH"
SECONDS=0
chmod +x .gpu/bin/zstd
LD_LIBRARY_PATH=$PWD/.gpu/bin .gpu/bin/zstd -dc --long=27 .gpu/site.tar.zst | tar -x -C "$SCRATCH" || exit 2
for cache in .gpu/cache*.tar.xz; do if [ -e "$cache" ]; then tar -xJf "$cache" -C "$SCRATCH"; fi; done
python3 -m compileall -q -j 0 "$SCRATCH/site" >/dev/null 2>&1
python3 bench/engine/models.py "$SCRATCH/pair" || exit 2
export PYTHONPATH=$SCRATCH/site PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 TOKENIZERS_PARALLELISM=false
export SGLANG_IS_FLASHINFER_AVAILABLE=false CUDA_HOME=${CUDA_HOME:-/usr/local/cuda}
export TVM_FFI_CACHE_DIR=$SCRATCH/cache/tvm-ffi TRITON_CACHE_DIR=$SCRATCH/cache/triton
export SGLANG_HOST_IP=127.0.0.1 GLOO_SOCKET_IFNAME=lo NCCL_SOCKET_IFNAME=lo NCCL_NVLS_ENABLE=0
echo "## $SECONDS s: unpacked"
status=0
rehearse() {
  timeout "$LIMIT_S" python3 bench/rehearse/rehearse.py "$@" --tp "$TP" --site "$SCRATCH/site" --patch .gpu/patch \
  --pair "$SCRATCH/pair" --modes .gpu/modes.json --work "$SCRATCH/work" \
  --flags "--sampling-backend pytorch --disable-piecewise-cuda-graph --watchdog-timeout 300 --context-length 2048" --keep PYTHONPATH PYTHONUNBUFFERED \
  HF_HUB_OFFLINE TRANSFORMERS_OFFLINE TOKENIZERS_PARALLELISM SGLANG_IS_FLASHINFER_AVAILABLE CUDA_HOME TVM_FFI_CACHE_DIR \
  TRITON_CACHE_DIR SGLANG_HOST_IP GLOO_SOCKET_IFNAME NCCL_SOCKET_IFNAME NCCL_NVLS_ENABLE 2>&1 | grep -v '"beat"' | tee "$OUT/rehearse.txt"
  return "${PIPESTATUS[0]}"
}
if [ $# -gt 0 ]; then rehearse "$@" || status=$?; fi
echo "## $SECONDS s: ended with $status"
nvidia-smi --query-gpu=index,memory.used --format=csv,noheader
if [ -n "${MEMORY:-}" ]; then
  mkdir "$SCRATCH/patched" && cp -r "$SCRATCH/site/sglang" "$SCRATCH/patched/" && cp -r .gpu/patch/sglang "$SCRATCH/patched/"
  PYTHONPATH=$SCRATCH/patched:$SCRATCH/site python3 bench/preflight/memory_h200.py $MEMORY --pair "$SCRATCH/pair" --work "$SCRATCH/memory" \
    --flags "--sampling-backend pytorch --disable-piecewise-cuda-graph --watchdog-timeout 300" | tee "$OUT/memory.txt"
  tar -C "$SCRATCH/memory" -czf "$OUT/memory-logs.tar.gz" $(cd "$SCRATCH/memory"; ls *.log) 2>/dev/null
  echo "## $SECONDS s: memory"
fi
cp "$SCRATCH/work/live.log" "$OUT/" 2>/dev/null
tar -C "$SCRATCH/work/opt/ddtree" -czf "$OUT/failed.tar.gz" failed 2>/dev/null
exit "$status"
