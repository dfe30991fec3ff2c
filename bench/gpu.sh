#!/bin/sh
# Checks and times a plan's kernels on this machine's NVIDIA GPU; under 8 minutes on one H200, nothing is installed.
#
#     bench/gpu.sh PREPARED [RESULTS]
#
# PREPARED is what `python bench/gpu_prepare.py PREPARED` made on a machine with the compiler. Needs torch with CUDA and
# cuda-bindings; neither Triton nor the compiler's packages are imported. RESULTS (PREPARED/results by default) gets
# gpu.json and gpu.md, written behind each kernel. Ends with 1 where a kernel's values are wrong or it failed, with 124 or
# 137 where the time was up: gpu.json then names the kernel that was running.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
prepared=${1:?"give the folder that bench/gpu_prepare.py wrote: bench/gpu.sh PREPARED [RESULTS]"}
results=${2:-$prepared/results}
packages=$(mktemp -d)
trap 'rm -rf "$packages"' EXIT
ln -s "$here" "$packages/dsv41c"
PYTHONPATH="$packages${PYTHONPATH:+:$PYTHONPATH}" timeout -k 10 480 python3 "$here/bench/gpu.py" "$prepared" "$results"
