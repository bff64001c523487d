#!/bin/sh
# Build the image: docker/build.sh [IMAGE, default fedshift].
#
# From the environment, all optional:
#   BASE_IMAGE, TORCH_INDEX_URL  arguments of the Dockerfile
#   PIP_CONF, CA_FILE            files that go in as secrets: pip's configuration, and the CA that it names
#   BUILD_NETWORK                host, where only the host reaches the package index
set -eu
cd "$(dirname "$0")/.."
image=${1:-fedshift}
set --
[ -z "${BASE_IMAGE:-}" ] || set -- "$@" --build-arg "BASE_IMAGE=$BASE_IMAGE"
[ -z "${TORCH_INDEX_URL:-}" ] || set -- "$@" --build-arg "TORCH_INDEX_URL=$TORCH_INDEX_URL"
[ -z "${PIP_CONF:-}" ] || set -- "$@" --secret "id=pip.conf,src=$PIP_CONF"
[ -z "${CA_FILE:-}" ] || set -- "$@" --secret "id=ca.crt,src=$CA_FILE"
[ -z "${BUILD_NETWORK:-}" ] || set -- "$@" --network "$BUILD_NETWORK"
DOCKER_BUILDKIT=1 docker build --file docker/Dockerfile --tag "$image" "$@" .
