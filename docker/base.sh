#!/bin/sh
# Make a base image from Debian's packages where no image registry is reached: docker/base.sh IMAGE. As root.
set -eu
image=${1:?usage: docker/base.sh IMAGE}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$folder"
rm -rf "$folder/var/cache/apt/archives" "$folder/var/lib/apt/lists"
tar -C "$folder" -c . | docker import --change 'CMD ["python3"]' - "$image"
