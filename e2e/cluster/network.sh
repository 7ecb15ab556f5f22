# shellcheck shell=bash
# The cluster's network: a bridge on this machine, a network namespace with one leg on it for each node, and no way out.
# Load that goes astray must never reach an address outside this machine: nodes and their pods have routes to each
# other, to Services and to this machine, and a blackhole for everything else; what still comes off the bridge and is
# not for this machine falls into a blackhole of its own. Needs no forwarding by this machine.

TABLE=8810 # the route table, and the priority of the rule, for what comes off the bridge

network_up() { # NODES
  local i j ns
  ip link add "$BRIDGE" type bridge
  ip addr add "$HOST_IP/24" dev "$BRIDGE"
  ip link set "$BRIDGE" up
  # Where bridged frames pass the host's firewall and that forwards nothing by default (Docker), nodes must still meet.
  iptables -w -I FORWARD -i "$BRIDGE" -o "$BRIDGE" -j ACCEPT 2>/dev/null || true
  ip route add blackhole default table "$TABLE"
  ip rule add pref "$TABLE" iif "$BRIDGE" lookup "$TABLE"
  for i in $(seq "$1"); do
    ns=$(node_netns "$i")
    ip netns add "$ns"
    ip link add "mlt-n$i" type veth peer name eth0 netns "$ns"
    ip link set "mlt-n$i" master "$BRIDGE" up
    ip -n "$ns" addr add "$(node_ip "$i")/24" dev eth0
    ip -n "$ns" link set eth0 up
    ip -n "$ns" link set lo up
    for j in $(seq "$1"); do [ "$i" = "$j" ] || ip -n "$ns" route add "$(node_pods "$j")" via "$(node_ip "$j")"; done
    # Service addresses are rewritten on the way out; the route is only there so that the lookup before it succeeds.
    ip -n "$ns" route add "$SERVICES" via "$HOST_IP"
    ip -n "$ns" route add blackhole default
    ip netns exec "$ns" sysctl -qw net.ipv4.ip_forward=1
    ip route add "$(node_pods "$i")" via "$(node_ip "$i")"
  done
}

# Also after a cluster that was killed: takes away whatever is there and minds nothing that is not.
network_down() {
  local i
  while iptables -w -D FORWARD -i "$BRIDGE" -o "$BRIDGE" -j ACCEPT 2>/dev/null; do :; done
  while ip rule del pref "$TABLE" 2>/dev/null; do :; done
  ip route flush table "$TABLE" 2>/dev/null || true
  for i in $(seq "$MAX_NODES"); do
    ip link del "mlt-n$i" 2>/dev/null || true
    ip netns del "$(node_netns "$i")" 2>/dev/null || true
  done
  ip link del "$BRIDGE" 2>/dev/null || true # its routes go with it
}
