#!/usr/bin/env bash
# Checks the dependencies against the RustSec advisories. Argument: cargo-deny. ADVISORY_DB names a folder with a clone of
# the advisory database, for machines that cannot fetch it.
set -euo pipefail
cd "$(dirname "$0")/.."
deny=$1
if [ -z "${ADVISORY_DB:-}" ]; then
  "$deny" --locked check advisories && exit
  echo "audit: if the advisory database could not be fetched, clone github.com/rustsec/advisory-db somewhere and run 'make audit ADVISORY_DB=FOLDER'" >&2
  exit 1
fi
[ -d "$ADVISORY_DB/.git" ] || { echo "audit: $ADVISORY_DB is no clone of the advisory database (no .git in it)" >&2; exit 1; }
# cargo-deny looks for the database under a name made from its address, in a folder that the configuration names.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
sed "s|^\[advisories\]|&\ndb-path = \"$work\"\ndb-urls = [\"file://$(readlink -f "$ADVISORY_DB")\"]|" deny.toml >"$work/deny.toml"
"$deny" --locked check --config "$work/deny.toml" advisories
