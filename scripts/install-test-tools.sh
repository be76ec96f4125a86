#!/bin/sh
# Programs that the optional tests need (Debian and Ubuntu); tests skip with a reason where one is absent.
#   prometheus               tests marked prometheus: a real server and promtool
#   chromium                 tests marked browser
#   openjdk-17-jre-headless  tests marked spark (PySpark itself is the extra `spark`)
set -eu
as_root=""
[ "$(id -u)" -eq 0 ] || as_root="sudo"
export DEBIAN_FRONTEND=noninteractive
$as_root apt-get update -q
$as_root apt-get install -y -q --no-install-recommends prometheus chromium openjdk-17-jre-headless
# The package starts a server of its own; the tests start theirs.
if command -v systemctl >/dev/null 2>&1 && systemctl is-active -q prometheus 2>/dev/null; then
    $as_root systemctl disable --now prometheus
fi
