#!/bin/sh
# Register each node's public key; one that is known already stays as it is.
set -eu
. /app/docker/connection.sh
for key in /var/fedshift/public/*.pub; do
    name=$(basename "$key" .pub)
    if output=$(flwr supernode register "$key" site 2>&1); then
        echo "$name: $(echo "$output" | grep 'registered')"
    elif echo "$output" | grep -qi 'already in use'; then
        echo "$name: registered before"
    else
        echo "$output" >&2
        exit 1
    fi
done
