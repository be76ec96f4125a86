#!/bin/sh
# try-image.sh FOLDER: build docker/placement.Dockerfile where there is no image registry and no Docker, and start it.
#
# A stand-in base is made of Debian's packages (debootstrap), the image is built by buildah as a release on that base's
# digest, and the service in it is asked over HTTP. This proves our own steps: the hash-locked lists install, the
# wheel builds without an index, the service starts as its own user. Needs root, buildah and debootstrap; the host's
# certificates and pip settings are mounted while building, and do not stay in the image.
set -eu
cd "$(dirname "$0")/.."
work=${1:?a folder for the images, outside this checkout}
port=${PORT:-18100}
mkdir -p "$work"
work=$(cd "$work" && pwd)
export STORAGE_DRIVER="${STORAGE_DRIVER:-overlay}"
buildah="buildah --root $work/store --runroot $work/runroot"
if ! $buildah inspect --type image localhost/base >/dev/null 2>&1; then
    debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv bookworm "$work/rootfs"
    ln -sf python3 "$work/rootfs/usr/bin/python"
    base=$($buildah from --isolation chroot scratch)
    $buildah add -q "$base" "$work/rootfs" /
    $buildah commit -q "$base" localhost/base
    $buildah rm "$base"
fi
digest=$($buildah inspect --type image --format '{{.FromImageDigest}}' localhost/base)
mounts="-v /etc/ssl/certs:/etc/ssl/certs:ro"
for path in /etc/pip.conf /usr/local/share/ca-certificates ${PIP_FIND_LINKS:-}; do
    [ -e "$path" ] && mounts="$mounts -v $path:$path:ro"
done
build() {
    # shellcheck disable=SC2086
    $buildah bud --layers --isolation chroot --pull-never --format docker $mounts -f docker/placement.Dockerfile "$@" .
}
echo "== a release refuses a base without its digest"
if build -q --build-arg BASE=localhost/base --build-arg RELEASE=1 >"$work/refused.log" 2>&1; then
    echo "error: it was built" >&2
    exit 1
fi
grep "expected NAME@sha256" "$work/refused.log"
for list in serve serve-sim; do
    echo "== built from the hash-locked list $list, on localhost/base@$digest"
    build -q --build-arg "BASE=localhost/base@$digest" --build-arg RELEASE=1 --build-arg "REQUIREMENTS=$list" -t "localhost/placement:$list"
done
echo "== the service answers from inside the image, as its own user"
box=$($buildah from --pull-never --isolation chroot localhost/placement:serve)
$buildah run --isolation chroot "$box" -- /opt/loadmaster/bin/python -m placement --host 127.0.0.1 --port "$port" >"$work/serve.log" 2>&1 &
server=$!
trap 'kill $server 2>/dev/null; $buildah rm "$box" >/dev/null' EXIT
for _ in $(seq 120); do
    curl -fsS "http://127.0.0.1:$port/healthz" 2>/dev/null && break
    kill -0 $server 2>/dev/null || { cat "$work/serve.log" >&2; exit 1; }
    sleep 0.5
done
echo
curl -fsS "http://127.0.0.1:$port/v1/policies"
echo
$buildah run --isolation chroot "$box" -- /opt/loadmaster/bin/python -c '
import importlib.util, os
there = [name for name in ("numba", "gymnasium", "torch", "airflow", "dvc", "pipeline") if importlib.util.find_spec(name)]
print("user", os.getuid(), "; of what a service must not carry:", there or "nothing")
raise SystemExit(bool(there) or os.getuid() != 10001)'
# The workload image installs torch with its CUDA libraries, 3 GB: only when asked for.
if [ "${WORKLOAD:-0}" = 1 ]; then
    echo "== the workload image measures every model, on the CPU where there is no GPU"
    # shellcheck disable=SC2086
    $buildah bud --layers --isolation chroot --pull-never --format docker $mounts -f docker/workload.Dockerfile -q \
        --build-arg "BASE=localhost/base@$digest" --build-arg RELEASE=1 -t localhost/workload .
    load=$($buildah from --pull-never --isolation chroot localhost/workload)
    $buildah run --isolation chroot "$load" -- /opt/torch/bin/python /opt/workload/workload.py benchmark --size small --seconds 1
    $buildah rm "$load" >/dev/null
fi
