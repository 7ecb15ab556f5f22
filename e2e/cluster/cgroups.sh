# shellcheck shell=bash
# A cgroup root for each node's kubelet, so that several share a machine: /mlt-node-1, /mlt-node-2, ... in every hierarchy
# of cgroup v1, or in the one of v2.

cgroup_up() { # I
  local group file controller controllers
  if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    # The kubelet looks in its root for every controller that the machine has.
    read -ra controllers </sys/fs/cgroup/cgroup.controllers
    for controller in "${controllers[@]}"; do
      echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control 2>/dev/null || true
    done
    mkdir -p "/sys/fs/cgroup/mlt-node-$1"
    return
  fi
  for group in /sys/fs/cgroup/*/; do mkdir -p "${group}mlt-node-$1"; done
  for file in cpus mems; do cat "/sys/fs/cgroup/cpuset/cpuset.$file" >"/sys/fs/cgroup/cpuset/mlt-node-$1/cpuset.$file"; done
}

# Empty groups only: whoever lives in one must have ended before.
cgroups_down() {
  for _ in $(seq 50); do
    find /sys/fs/cgroup -maxdepth 2 -type d -name 'mlt-node-[1-9]' -prune -exec find {} -depth -type d -delete \; 2>/dev/null || true
    [ -n "$(find /sys/fs/cgroup -maxdepth 2 -type d -name 'mlt-node-[1-9]' -print -quit)" ] || return 0
    sleep 0.1
  done
  say "cgroups $(find /sys/fs/cgroup -maxdepth 2 -type d -name 'mlt-node-[1-9]' | tr '\n' ' ')are still in use"
}
