#!/bin/sh
# Once: the CA, the SuperLink's certificate, a key for each node, and each node's images into its own volume.
set -eu
home=/var/fedshift
if [ -e "$home/public/ready" ]; then
    echo "credentials and images are there already"
    exit 0
fi
made=$(mktemp -d)
fedshift credentials authority "$made/superlink"
fedshift credentials server "$made/superlink" --host superlink --host localhost --host 127.0.0.1
fedshift export handwritten nodes=4 -o "$made/images"
index=0
for domain in scan texture street sketch; do
    fedshift credentials node "$made/keys" "$domain"
    # Here again only after an attempt that broke off: what it left is replaced.
    rm -rf "$home/nodes/$domain/images" "$home/nodes/$domain/node.key"
    cp -r "$made/images/node-$index-$domain" "$home/nodes/$domain/images"
    cp -p "$made/keys/$domain.key" "$home/nodes/$domain/node.key"
    index=$((index + 1))
done
# The CA's key goes with this container: nobody can sign a second SuperLink.
rm -f "$home/superlink/"*
cp -p "$made/superlink/ca.crt" "$made/superlink/server.crt" "$made/superlink/server.key" "$home/superlink/"
cp -p "$made/superlink/ca.crt" "$made/keys/"*.pub "$home/public/"
touch "$home/public/ready"
