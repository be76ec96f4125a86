#!/bin/sh
# Write the lists that images install from: every version with the hashes of its files, so that nothing else gets in.
# Run after a change of pyproject.toml or constraints.txt; needs uv (make setup installs it).
set -eu
cd "$(dirname "$0")/.."
uv=${UV:-.venv/bin/uv}
lock() { # output, then further arguments
    output=$1
    shift
    "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
        --no-emit-index-url --no-emit-find-links --constraints constraints.txt --output-file "$output" "$@"
}
lock docker/requirements-serve.txt pyproject.toml --extra serve
# The kernels, and what the job controller keeps its queue with.
lock docker/requirements-serve-sim.txt pyproject.toml --extra cpn
printf 'setuptools>=77\n' | lock docker/requirements-build.txt -
# With the CUDA libraries that torch brings for Linux; on a node without a GPU the same torch runs on the CPU.
printf 'torch\nnumpy\n' | lock docker/requirements-workload.txt -
# torch by itself, so that an image without a GPU can take another build of it; all else that a stage needs beside it.
gpu="torch triton $(grep -oE '^(cuda|nvidia)-[a-z0-9-]*' docker/requirements-workload.txt)"
others=$(grep -oE '^[a-z0-9-]+==' docker/requirements-workload.txt | tr -d = | grep -vxF "$(echo "$gpu" | tr ' ' '\n')")
# shellcheck disable=SC2046,SC2086
printf 'torch\n' | lock docker/requirements-torch.txt $(printf -- '--no-emit-package %s ' $others) -
# shellcheck disable=SC2046,SC2086
lock docker/requirements-train.txt pyproject.toml --extra train --extra s3 $(printf -- '--no-emit-package %s ' $gpu)
lock docker/requirements-airflow.txt pyproject.toml --extra airflow --extra night --extra s3
