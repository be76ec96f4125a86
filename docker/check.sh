#!/bin/sh
# check.sh FOLDER [RESULT.json]: build the images on a stand-in Debian base and hold them to what they promise.
#
# Needs root, buildah and debootstrap; says so and ends with 77 (skipped) where they are missing. What is held: our own steps
# build from the hash-locked lists, no image has a compiler, a key, pip settings or root as its user, each carries its SBOM, and
# the size of each is written down. One training runs inside the train image (STAGE_CHECK=0 leaves that out). The GPU build of
# torch is 3 GB more: TORCH=cuda builds it, otherwise the build that pip is offered here stands in.
set -eu
cd "$(dirname "$0")/.."
work=${1:?a folder for the images, outside this checkout}
for needed in buildah debootstrap; do
    command -v $needed >/dev/null || { echo "skipped: there is no $needed here (apt-get install $needed)"; exit 77; }
done
[ "$(id -u)" = 0 ] || { echo "skipped: debootstrap and buildah's chroot need root"; exit 77; }
scripts/try-image.sh "$work"
work=$(cd "$work" && pwd)
result=${2:-$work/images.json}
export STORAGE_DRIVER="${STORAGE_DRIVER:-overlay}"
buildah="buildah --root $work/store --runroot $work/runroot"
mounts="-v /etc/ssl/certs:/etc/ssl/certs:ro"
for path in /etc/pip.conf /usr/local/share/ca-certificates ${PIP_FIND_LINKS:-}; do
    [ -e "$path" ] && mounts="$mounts -v $path:$path:ro"
done
for name in train airflow; do
    echo "== $name"
    # shellcheck disable=SC2086
    $buildah bud --layers --isolation chroot --pull-never --format docker $mounts -f docker/$name.Dockerfile --build-arg BASE=localhost/base \
        --build-arg "TORCH=${TORCH:-cpu}" --build-arg "PIP_FIND_LINKS=${PIP_FIND_LINKS:-}" \
        -t "localhost/$name" . >"$work/$name.log" 2>&1 || { tail -n 30 "$work/$name.log"; exit 1; }
done
: >"$work/sizes"
for name in placement:serve train airflow; do
    plain=${name%%:*}
    box=$($buildah from --pull-never --isolation chroot "localhost/$name")
    root=$($buildah mount "$box")
    echo "== $plain: what is in it"
    user=$($buildah inspect --type image --format '{{.OCIv1.Config.User}}' "localhost/$name")
    [ "$user" = 10001:10001 ] || { echo "error: $plain runs as '$user'" >&2; exit 1; }
    for tool in gcc cc g++ clang ld as make; do
        for folder in usr/bin usr/local/bin opt/loadmaster/bin; do
            [ ! -e "$root/$folder/$tool" ] || { echo "error: $plain has a compiler: /$folder/$tool" >&2; exit 1; }
        done
    done
    found=$(find "$root" -xdev \( -path "$root/proc" -o -path "$root/usr/share" -o -path "$root/etc/ssl" -o -path '*/site-packages/*' \) -prune \
        -o -type f \( -name '*.pem' -o -name '*.key' -o -name 'id_*' -o -name '.env' -o -name '.netrc' -o -name 'config.local' \) -print)
    [ -z "$found" ] || { echo "error: $plain holds what may be a secret: $found" >&2; exit 1; }
    [ ! -s "$root/etc/pip.conf" ] || { echo "error: $plain keeps the builder's pip settings" >&2; exit 1; }
    if $buildah inspect --type image "localhost/$name" | grep -qiE 'PASSWORD=|SECRET=|TOKEN=|PIP_FIND_LINKS=/'; then
        echo "error: $plain's settings name a secret or the builder's folders" >&2
        exit 1
    fi
    parts=$(grep -c '"purl"' "$root/usr/share/sbom/loadmaster-$plain.cdx.json")
    bytes=$(du -sxb "$root" | cut -f1)
    base=$(du -sxb "$work/rootfs" | cut -f1)
    echo "{\"image\": \"$plain\", \"mib\": $((bytes / 1048576)), \"of_which_base_mib\": $((base / 1048576)), \"parts_in_sbom\": $parts}" | tee -a "$work/sizes"
    $buildah umount "$box" >/dev/null
    $buildah rm "$box" >/dev/null
done
box=$($buildah from --pull-never --isolation chroot localhost/airflow)
echo "== airflow: its own tasks load, and nothing that trains is there"
$buildah run --isolation chroot "$box" -- python -c '
import importlib, importlib.util
for name in "workspace approval promote push verify_live rollback notify airflow_notes watch.command registry.command pods.command".split():
    importlib.import_module("pipeline." + name)
import airflow.providers.cncf.kubernetes.operators.pod, psycopg, dvc_s3
there = [name for name in ("torch", "numba", "gymnasium", "stable_baselines3", "duckdb", "placement") if importlib.util.find_spec(name)]
print("of what Airflow must not carry:", there or "nothing")
raise SystemExit(bool(there))'
$buildah rm "$box" >/dev/null
if [ "${STAGE_CHECK:-1}" = 1 ]; then
    echo "== train: a stage inside the image gives the bytes that it gives here"
    .venv/bin/python scripts/stage_in_image.py "$work" | tee "$work/stage"
fi
{
    printf '{"date": "%s", "torch": "%s", "images": [' "$(date -u +%F)" "${TORCH:-cpu}"
    paste -sd, "$work/sizes"
    printf '], "stage": %s}\n' "$(tail -n 1 "$work/stage" 2>/dev/null || echo null)"
} | tr -d '\n' >"$result"
echo >>"$result"
cat "$result"
