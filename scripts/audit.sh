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
# cargo-deny finds a database in a folder named after its usual address. How old a given one may be is its giver's affair.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git clone --quiet "$ADVISORY_DB" "$work/advisory-db-3157b0e258782691"
git -C "$work/advisory-db-3157b0e258782691" fetch --quiet
sed "s|^\[advisories\]|&\ndb-path = \"$work\"|" deny.toml >"$work/deny.toml"
echo "audit: with the advisories of $(git -C "$ADVISORY_DB" log -1 --format=%cs)"
"$deny" --locked --config "$work/deny.toml" --offline check advisories
