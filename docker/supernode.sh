#!/bin/sh
# Start the SuperNode of a domain: supernode.sh DOMAIN INDEX.
set -eu
# The demo's images are nobody's: no owner hides anything. A node with images of people has a policy file in place of open.
exec fedshift supernode \
    --policy open \
    --root-certificates /var/fedshift/public/ca.crt \
    --auth-supernode-private-key /var/fedshift/node/node.key \
    --superlink superlink:8000 \
    --port 9094 \
    --node-config "domain=\"$1\" data-dir=\"/var/fedshift/node/images\" partition-id=$2 threads=1"
