package main

import (
	"errors"

	mqtt "github.com/eclipse/paho.mqtt.golang"
)

type v3 struct{ mqtt.Client }

func connectV3(broker, id string, received func()) (client, error) {
	c := mqtt.NewClient(mqtt.NewClientOptions().
		AddBroker("tcp://" + broker).
		SetClientID(id).
		SetCleanSession(true).
		SetKeepAlive(keepAlive).
		SetConnectTimeout(timeout).
		SetAutoReconnect(false).
		SetDefaultPublishHandler(func(mqtt.Client, mqtt.Message) { received() }))
	return v3{c}, wait(c.Connect())
}

func (c v3) subscribe(topic string, qos byte) error {
	return wait(c.Client.Subscribe(topic, qos, nil))
}

func (c v3) publish(topic string, qos byte, payload []byte) error {
	return wait(c.Client.Publish(topic, qos, false, payload))
}

func wait(token mqtt.Token) error {
	if !token.WaitTimeout(timeout) {
		return errors.New("no answer in time")
	}
	return token.Error()
}
