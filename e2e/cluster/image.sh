# shellcheck shell=bash
# Images without a container engine: files on an empty base, as a tar archive that `ctr images import` reads.

# image NAME OUT ENTRYPOINT FILE=/PATH...   (ENTRYPOINT: a JSON list)
image() {
  local name=$1 out=$2 entrypoint=$3 work layer config arch pair
  shift 3
  work=$(mktemp -d)
  mkdir "$work/root" "$work/image"
  for pair in "$@"; do install -D -m 755 "${pair%%=*}" "$work/root/${pair#*=}"; done
  # No times and no owners: the same files give the same digest, and an unchanged image is not imported again.
  tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$work/root" -cf "$work/layer.tar" .
  layer=$(sha256sum "$work/layer.tar" | cut -d' ' -f1)
  mv "$work/layer.tar" "$work/image/$layer.tar"
  case $(uname -m) in x86_64) arch=amd64 ;; aarch64) arch=arm64 ;; *) arch=$(uname -m) ;; esac
  printf '{"architecture":"%s","os":"linux","config":{"Entrypoint":%s,"User":"65532:65532"},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]},"history":[{}]}' \
    "$arch" "$entrypoint" "$layer" >"$work/config.json"
  config=$(sha256sum "$work/config.json" | cut -d' ' -f1)
  mv "$work/config.json" "$work/image/$config.json"
  printf '[{"Config":"%s.json","RepoTags":["%s"],"Layers":["%s.tar"]}]' "$config" "$name" "$layer" >"$work/image/manifest.json"
  mkdir -p "$(dirname "$out")"
  tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$work/image" -cf "$out.part" .
  mv "$out.part" "$out"
  rm -rf "$work"
}

# Debian programs with the shared libraries that `ldd` names, and a passwd file for those that look up their user.
debian_image() { # NAME OUT ENTRYPOINT PROGRAM...
  local name=$1 out=$2 entrypoint=$3 work program library files=()
  shift 3
  work=$(mktemp -d)
  printf 'root:x:0:0:root:/:/sbin/nologin\nnobody:x:65534:65534:nobody:/:/sbin/nologin\n' >"$work/passwd"
  files+=("$work/passwd=/etc/passwd")
  for program in "$@"; do
    program=$(command -v "$program")
    files+=("$program=$program")
    while read -r library; do files+=("$library=$library"); done < <(ldd "$program" | grep -o '/[^ ]*')
  done
  image "$name" "$out" "$entrypoint" "${files[@]}"
  rm -rf "$work"
}
