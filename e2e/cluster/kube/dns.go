// CoreDNS with the few plugins that a cluster without a world around it needs. `template` answers NXDOMAIN for every
// name outside the cluster, as a resolver with an upstream would for a name that does not exist.
package main

import (
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/template"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
)

func runDNS() {
	dnsserver.Directives = []string{"bind", "errors", "cache", "kubernetes", "template"}
	coremain.Run()
}
