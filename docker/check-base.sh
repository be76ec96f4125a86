#!/bin/sh
# check-base.sh RELEASE BASE: a release is built on a base image named by its digest, or not at all.
set -eu
[ "$1" = 1 ] || exit 0
digest=${2##*@sha256:}
case "$digest" in
    *[!0-9a-f]* | "") ok=no ;;
    *) [ "${#digest}" = 64 ] && [ "$2" != "$digest" ] && ok=yes || ok=no ;;
esac
if [ "$ok" = no ]; then
    echo "error: release built on $2; expected NAME@sha256:<64 hex digits>; pull the base, take its digest, build again" >&2
    exit 2
fi
