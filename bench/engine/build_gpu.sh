#!/bin/bash
# Builds .gpu/, what travels to a bare H200 machine beside the checkout: SGLang 0.5.11 and its needs, patched by our series.
#   bench/engine/build_gpu.sh            everything (354 MB of wheels the first time, then minutes of zstd)
#   bench/engine/build_gpu.sh overlay    only .gpu/patch, after a change of the series: seconds
set -euo pipefail
cd "$(dirname "$0")/../.."
HERE=bench/engine WORK=build/gpu OUT=.gpu
LIMIT_MB=58    # of 64 that may travel; the checkout itself has about 3

fetch() {
  mkdir -p "$WORK/wheels"
  local platforms=() platform pin
  for platform in manylinux_2_34 manylinux_2_28 manylinux_2_27 manylinux_2_26 manylinux_2_24 manylinux_2_17 \
                  manylinux2014 manylinux_2_5 manylinux1; do
    platforms+=(--platform "${platform}_x86_64")
  done
  # one call for each: pip refuses the set as a whole, whose needs we leave out on purpose
  for pin in $(grep -v '^#' "$HERE/gpu_pins.txt"); do
    [ -e "$WORK/wheels/.$pin" ] && continue
    .venv/bin/python -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 \
      --implementation cp "${platforms[@]}" -d "$WORK/wheels" "$pin"
    touch "$WORK/wheels/.$pin"
  done
}

slim() {
  rm -rf "$WORK/site" && mkdir -p "$WORK/site"
  local wheel
  for wheel in "$WORK"/wheels/*.whl; do
    # an H200 with the triton backend needs sm90's common kernels and the spatial ones: 20 MB of 1,200
    case $wheel in
      *sglang_kernel*) unzip -q -o "$wheel" 'sgl_kernel/*' '*.dist-info/*' 'triton_kernels/*' -d "$WORK/site" \
                         -x 'sgl_kernel/flash_ops*' 'sgl_kernel/flashmla_ops*' 'sgl_kernel/sm100/*' ;;
      *) unzip -q -o "$wheel" -d "$WORK/site" ;;
    esac
  done
  rm -rf "$WORK"/site/sglang/{multimodal_gen,test}
  cp -r "$HERE"/stubs/. "$WORK/site/"
}

pack() {
  mkdir -p "$OUT/bin"
  tar -C "$WORK" --owner=0 --group=0 -cf - site | zstd -19 -T2 --long=27 -q -f -o "$OUT/site.tar.zst"
  # the image has no zstd
  cp -L "$(command -v zstd)" "$OUT/bin/"
  ldd "$(command -v zstd)" | awk '/liblz4|liblzma/ {print $3}' | xargs -I{} cp -L {} "$OUT/bin/"
}

overlay() {
  # the series as committed, so that a result can name its commit
  rm -rf "$WORK/head" && mkdir -p "$WORK/head"
  git archive HEAD src deploy engine_patches | tar -x -C "$WORK/head"
  PYTHONPATH=$WORK/head/src .venv/bin/python "$HERE/overlay.py" "$WORK/site/sglang" "$OUT/patch" "$(git rev-parse HEAD)"
}

if [ "${1:-all}" != overlay ]; then fetch; slim; pack; fi
overlay
size=$(du -sm "$OUT" | cut -f1)
echo ".gpu holds $size MB"
if [ "$size" -gt "$LIMIT_MB" ]; then echo "more than $LIMIT_MB MB: it would not travel" >&2; exit 1; fi
