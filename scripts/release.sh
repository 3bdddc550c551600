#!/usr/bin/env bash
# Builds into dist/ what version $1 releases: sdist and wheel of pagewire, and the wheel of
# pagewire-client; checks them, and writes build/notes.md. Fails where $1 is not the version of the tree, or has no changelog.
set -euo pipefail
cd "$(dirname "$0")/.."
version=$1
fail() { printf 'release: %s\n' "$*" >&2; exit 1; }

for file in pyproject.toml packages/*/pyproject.toml; do
  grep -qx "version = \"$version\"" "$file" || fail "$file has another version"
done
grep -qx "__version__ = \"$version\"" pagewire/__init__.py || fail "pagewire/__init__.py has another version"
make -s docs
mkdir -p build
awk -v heading="## $version" 'index($0, "## ") == 1 { found = index($0, heading) == 1 } found' CHANGELOG.md >build/notes.md
[ -s build/notes.md ] || fail "CHANGELOG.md has no section '## $version'"

rm -rf dist
.venv/bin/python -m build --outdir dist . >build/release.log 2>&1 || fail "$(tail -20 build/release.log)"
.venv/bin/python -m build --wheel --outdir dist packages/pagewire-client >build/release.log 2>&1 ||
  fail "$(tail -20 build/release.log)"
.venv/bin/python -m twine check --strict dist/*
tar -tzf "dist/pagewire-$version.tar.gz" >build/contents
! grep -E '/tests?/|/test_[^/]*\.py$|\.pyc$' build/contents || fail "the sdist has tests"
for needed in CHANGELOG.md docs/tutorial.md protos/service_config.json setup.py; do
  grep -qx "pagewire-$version/$needed" build/contents || fail "$needed is not in the sdist"
done
ls -l dist
