#!/bin/sh
# Build the image, bring up compose.yaml, show the run until its table, take everything down again.
#
#   docker/demo.sh          build.sh says what it takes from the environment; RUN_CONFIG changes the run
#   docker/demo.sh --gpu    nodes train on the GPU
# Exits with 0 only if the run was completed and no stranger got in.
set -eu
cd "$(dirname "$0")/.."
if docker compose version >/dev/null 2>&1; then compose="docker compose"; else compose=docker-compose; fi
compose="$compose --project-name fedshift-demo --file docker/compose.yaml"
case "${1:-}" in
    "") ;;
    --gpu) compose="$compose --file docker/compose.gpu.yaml" ;;
    *) echo "usage: docker/demo.sh [--gpu]" >&2; exit 2 ;;
esac
docker/build.sh "${FEDSHIFT_IMAGE:-fedshift}"
trap '$compose down --volumes' EXIT
$compose up --detach --no-build
docker/strangers.sh fedshift-demo "${FEDSHIFT_IMAGE:-fedshift}"  # while the run goes on
$compose logs --follow --no-log-prefix run
status=$(docker wait "$($compose ps --all --quiet run 2>/dev/null || $compose ps --quiet run)")
$compose ps
exit "$status"
