#!/bin/sh
# Submit a run, stream its log with the table at the end, and fail if the run failed (flwr run itself exits with 0).
set -eu
. /app/docker/connection.sh
log=$(mktemp)
flwr run /app site --stream --run-config "$RUN_CONFIG" | tee "$log"
id=$(sed -n 's/.*Successfully started run \([0-9]*\).*/\1/p' "$log")
if [ -z "$id" ]; then
    echo "the run did not start" >&2
    exit 1
fi
status=$(flwr list site --run-id "$id" --format json | python -c '
import json, sys
print(*(run["status"] for run in json.load(sys.stdin).get("runs", [])))')
echo "run $id: ${status:-the SuperLink does not answer}"
[ "$status" = "finished:completed" ]
