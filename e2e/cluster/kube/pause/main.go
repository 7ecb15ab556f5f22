// The first process of every pod's sandbox: it holds the pod's namespaces, does nothing, and leaves on SIGTERM.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, syscall.SIGINT)
	<-end
	os.Exit(0)
}
