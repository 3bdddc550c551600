#!/usr/bin/env bash
# Builds into dist/ what version $1 releases: sdist and wheel of pagewire, and the wheel of pagewire-client; checks them, and writes
# build/notes.md. Fails where $1 is not the version of the tree and of every image that it names, or where CHANGELOG.md has
# nothing for it, or changes for none.
set -euo pipefail
cd "$(dirname "$0")/.."
version=$1
fail() { printf 'release: %s\n' "$*" >&2; exit 1; }

for file in pyproject.toml packages/*/pyproject.toml; do
  grep -qx "version = \"$version\"" "$file" || fail "$file has another version"
done
grep -qx "__version__ = \"$version\"" pagewire/__init__.py || fail "pagewire/__init__.py has another version"
others=$(git grep -nE '\b20[0-9]{2}\.[0-9]{1,2}\.[0-9]+\b' -- ':!CHANGELOG.md' ':!constraints.txt' ':!*tests/*' | grep -vF "$version" || true)
[ -z "$others" ] || fail "another version: $others"
mkdir -p build
notes() { # below heading $1
  awk -v heading="## $1" '/^## / { found = $0 == heading || index($0, heading " ") == 1; next } found' CHANGELOG.md
}
! notes Unreleased | grep -q . || fail "CHANGELOG.md has changes below '## Unreleased': they are part of $version"
notes "$version" >build/notes.md
grep -q . build/notes.md || fail "CHANGELOG.md has no changes below '## $version'"

make -s docs
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
