#!/bin/sh
# Show that the SuperLink of a running demo lets nobody else in: docker/strangers.sh PROJECT IMAGE.
set -eu
project=${1:?usage: docker/strangers.sh PROJECT IMAGE}
image=${2:?usage: docker/strangers.sh PROJECT IMAGE}
ca=/var/fedshift/public/ca.crt
join="flower-supernode --superlink superlink:8000 --max-retries 9"
connection="mkdir -p \$FLWR_HOME && printf '[superlink.site]\naddress = \"superlink:8000\"\nroot-certificates = \"$ca\"\n' > \$FLWR_HOME/config.toml"

refused() { # WHO, what the refusal says, COMMAND: a container on the federation's network, with the public files only
    if output=$(docker run --rm --network "${project}_federation" --volume "${project}_public:/var/fedshift/public:ro" \
        "$image" sh -c "$3" 2>&1); then
        echo "$1: got in" >&2
        exit 1
    elif ! echo "$output" | tr -s '\n │' ' ' | grep -q "$2"; then
        printf '%s: failed, but not as a stranger:\n%s\n' "$1" "$output" >&2
        exit 1
    fi
    echo "$1: refused ($2)"
}

refused "a SuperNode without a key" "SuperNode authentication is enabled" "$join --root-certificates $ca"
refused "a SuperNode with an unknown key" "Failed to activate SuperNode" \
    "fedshift credentials node /tmp stranger && $join --root-certificates $ca --auth-supernode-private-key /tmp/stranger.key"
refused "a SuperNode without the CA" "CERTIFICATE_VERIFY_FAILED" "$join"
refused "a key registered over the network" "only the Fleet API is open" \
    "$connection && fedshift credentials node /tmp stranger && flwr supernode register /tmp/stranger.pub site"
refused "a run submitted over the network" "only the Fleet API is open" "$connection && flwr run /app site --stream"
