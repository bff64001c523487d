#!/usr/bin/env bash
# Build a release of HEAD into dist/ and try its wheel; nothing is uploaded.
#
#   release/release.sh build    dist/: wheel and sdist of a clean clone, checked by twine, and NOTES.md
#   release/release.sh try      the wheel of dist/ in a fresh environment of each Python, in an empty folder
#   release/release.sh          both
#
# From the environment, all optional:
#   PYTHONS             commands of the Pythons to try (default: python3.11 python3.13)
#   TORCH_INDEX_URL     index of torch's wheels, such as those for CPUs; else that of pip
#   TMPDIR              folder for environments of 6 GB, one at a time
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
steps=${1:-build try}
case "$steps" in
    build | try | "build try") ;;
    *) echo "usage: release/release.sh [build|try]" >&2; exit 2 ;;
esac

say() { printf '\n=== %s\n' "$*"; }
fail() { echo "release: $*" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset PYTHONPATH

[ -z "$(git status --porcelain)" ] || fail "uncommitted changes: commit or stash them, HEAD is what is released"

pythons=()
for name in ${PYTHONS:-python3.11 python3.13}; do
    if "$name" -c 'import venv' 2>/dev/null; then pythons+=("$name"); else echo "not there, so not tried: $name"; fi
done
[ "${#pythons[@]}" -gt 0 ] || fail "no Python to try: name one with PYTHONS=python3.12"

git clone --quiet "$root" "$work/source"
git -C "$work/source" checkout --quiet --detach "$(git rev-parse HEAD)"
version=$("${pythons[0]}" -c 'import sys, tomllib; print(tomllib.load(open(sys.argv[1], "rb"))["project"]["version"])' \
    "$work/source/pyproject.toml")

build() {
    say "fedshift $version of $(git rev-parse --short HEAD): wheel, sdist, notes"
    "${pythons[0]}" -m venv "$work/tools"
    "$work/tools/bin/pip" install --quiet build twine
    rm -rf dist
    "$work/tools/bin/python" -m build --outdir dist "$work/source" >"$work/build.log" || { cat "$work/build.log"; exit 1; }
    "$work/tools/bin/twine" check --strict dist/*
    { echo "# FedShift $version"; awk '/^## /{on = ($2 == "Unreleased"); next} on' "$work/source/CHANGELOG.md"; } >dist/NOTES.md
    grep -q '^- ' dist/NOTES.md || fail "CHANGELOG.md says nothing under Unreleased"
    ls -l dist
}

# Fail unless the run of this folder averaged as many rounds; `flwr run` exits with 0 also after a failed one.
averaged() {
    python -c 'import json, pathlib, sys
(path,) = pathlib.Path(sys.argv[1]).glob("*/results.json")
rounds = json.loads(path.read_text())["averaged_rounds"]
sys.exit(rounds != int(sys.argv[2]) and f"{path}: {rounds} rounds averaged, not {sys.argv[2]}")' "$1" "$2"
}

try() (
    say "$1: install"
    environment=$work/environment
    "$1" -m venv "$environment"
    PATH=$environment/bin:$PATH
    [ -z "${TORCH_INDEX_URL:-}" ] || pip install --quiet torch torchvision --index-url "$TORCH_INDEX_URL"
    pip install --quiet "$root/dist/fedshift-$version-py3-none-any.whl"
    mkdir "$work/empty"
    cd "$work/empty"
    fedshift version

    say "$1: the bundle's hash, of the wheel, of what Flower makes of it, and of the clone"
    installed=$(fedshift version --bundle)
    built=$(python -c 'import sys; from flwr.cli.build import build_fab_from_disk; from fedshift_app.node import own_code
print(own_code.of_bundle(build_fab_from_disk(__import__("pathlib").Path(sys.argv[1]))).sha256)' "$(fedshift app-dir)")
    cloned=$(cd "$work/source" && python -m fedshift version --bundle)
    printf '%s\n' "$installed" "$built" "$cloned"
    [ "$installed" = "$built" ] && [ "$installed" = "$cloned" ] || fail "they differ"

    say "$1: fedshift run"
    fedshift run handwritten rounds=2 output-dir=run
    averaged run 2

    say "$1: flwr run"
    export FLWR_HOME=$work/flwr FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
    mkdir "$FLWR_HOME"
    trap 'kill $(sed -n "s/.*to end it: kill \([0-9 ]*\).*/\1/p" flwr.log) 2>/dev/null || true' EXIT  # Flower leaves it running
    flwr run "$(fedshift app-dir)" --stream --federation-config "num-supernodes=4 client-resources-num-cpus=1" \
        --run-config 'rounds=1 output-dir="plain"' | tee flwr.log
    averaged plain 1

    say "$1: fedshift deploy-demo"
    fedshift deploy-demo rounds=1 output-dir=deployed
    averaged deployed 1

    say "$1: a notebook"
    pip install --quiet nbclient ipykernel
    cp "$work/source/docs/notebooks/compare.ipynb" .
    jupyter execute compare.ipynb
)

case "$steps" in build*) build ;; esac
case "$steps" in *try) for name in "${pythons[@]}"; do try "$name"; rm -rf "$work"/{environment,empty,flwr}; done ;; esac
say "done: $steps of fedshift $version"
