package main

import (
	"context"
	"net"

	"github.com/eclipse/paho.golang/paho"
)

type v5 struct{ *paho.Client }

func connectV5(broker, id string, received func()) (client, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", broker)
	if err != nil {
		return nil, err
	}
	c := paho.NewClient(paho.ClientConfig{
		Conn: conn,
		OnPublishReceived: []func(paho.PublishReceived) (bool, error){
			func(paho.PublishReceived) (bool, error) { received(); return true, nil },
		},
	})
	_, err = c.Connect(ctx, &paho.Connect{ClientID: id, CleanStart: true, KeepAlive: uint16(keepAlive.Seconds())})
	return v5{c}, err
}

func (c v5) subscribe(topic string, qos byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	_, err := c.Client.Subscribe(ctx, &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{Topic: topic, QoS: qos}}})
	return err
}

func (c v5) publish(topic string, qos byte, payload []byte) error {
	_, err := c.Client.Publish(context.Background(), &paho.Publish{Topic: topic, QoS: qos, Payload: payload})
	return err
}
