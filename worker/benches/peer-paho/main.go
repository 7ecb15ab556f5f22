// A peer of the engine benchmark: Eclipse Paho for Go, one client a connection, as its documentation shows it.
//
// It takes the arguments of worker/benches/engine/load.rs and speaks the lines of control.rs: "ready" when all clients
// are connected and subscribed, "go" from the suite, "count" answered with "count N", the end of standard input ends it.
// MQTT 3.1.1 is paho.mqtt.golang, MQTT 5 is paho.golang; no library offers both.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

const (
	keepAlive = 600 * time.Second
	timeout   = 10 * time.Second
	lifetime  = 300 * time.Second
	queue     = 100
)

// client is one MQTT connection. publish returns once the message is acknowledged (QoS 1) or written (QoS 0).
type client interface {
	subscribe(topic string, qos byte) error
	publish(topic string, qos byte, payload []byte) error
}

type load struct {
	kind, broker, protocol, id, topic string
	clients, qos, payload             int
	rate                              int64
}

func main() {
	var l load
	flag.StringVar(&l.kind, "kind", "", "send, receive or idle")
	flag.StringVar(&l.broker, "broker", "", "host:port")
	flag.IntVar(&l.clients, "clients", 0, "number of clients")
	flag.Int64Var(&l.rate, "rate", 0, "messages a second over all clients, 0: as fast as possible")
	flag.IntVar(&l.qos, "qos", 0, "QoS")
	flag.IntVar(&l.payload, "payload", 0, "bytes of payload")
	flag.StringVar(&l.protocol, "protocol", "", "3.1.1 or 5")
	flag.StringVar(&l.id, "id", "", "prefix of the client ids")
	flag.StringVar(&l.topic, "topic", "", "topic; %i is the number of the client")
	flag.Parse()
	time.AfterFunc(lifetime, func() { os.Exit(3) })
	if err := run(l); err != nil {
		fmt.Fprintln(os.Stderr, "paho:", err)
		os.Exit(1)
	}
}

func run(l load) error {
	var count atomic.Int64
	clients := make([]client, l.clients)
	for i := range clients {
		c, err := connect(l, fmt.Sprintf("%s-%d", l.id, i), func() { count.Add(1) })
		if err != nil {
			return fmt.Errorf("client %d: %w", i, err)
		}
		if l.kind == "receive" {
			if err := c.subscribe(l.topicOf(i), byte(l.qos)); err != nil {
				return fmt.Errorf("client %d: %w", i, err)
			}
		}
		clients[i] = c
	}
	fmt.Println("ready")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		switch lines.Text() {
		case "go":
			if l.kind == "send" {
				go send(l, clients, &count)
			}
		case "count":
			fmt.Println("count", count.Load())
		}
	}
	return nil
}

func connect(l load, id string, received func()) (client, error) {
	if l.protocol == "5" {
		return connectV5(l.broker, id, received)
	}
	return connectV3(l.broker, id, received)
}

// send hands each due slot to its client: slot k is due at k/rate seconds and belongs to client k mod clients.
func send(l load, clients []client, count *atomic.Int64) {
	payload := make([]byte, l.payload)
	for i := range payload {
		payload[i] = byte('a' + i*7%26)
	}
	due := make([]chan struct{}, len(clients))
	for i, c := range clients {
		due[i] = make(chan struct{}, queue)
		go func() {
			topic := l.topicOf(i)
			for l.rate == 0 || take(due[i]) {
				if err := c.publish(topic, byte(l.qos), payload); err != nil {
					fmt.Fprintln(os.Stderr, "paho: publish:", err)
					os.Exit(1)
				}
				count.Add(1)
			}
		}()
	}
	if l.rate == 0 {
		return
	}
	start := time.Now()
	for slot := int64(0); ; {
		at := time.Duration(slot * int64(time.Second) / l.rate)
		time.Sleep(at - time.Since(start))
		for now := time.Since(start); time.Duration(slot*int64(time.Second)/l.rate) <= now; slot++ {
			due[slot%int64(len(due))] <- struct{}{}
		}
	}
}

func take(due <-chan struct{}) bool {
	<-due
	return true
}

func (l load) topicOf(i int) string {
	return strings.ReplaceAll(l.topic, "%i", strconv.Itoa(i))
}
