"""Drives a broker with paho-mqtt: paho_client.py PORT SCENARIO [tcp|tls|ws|wss CAFILE]. Exit code 0
when it held."""

import queue
import socket
import sys

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

PORT = int(sys.argv[1])
TRANSPORT, CA_FILE = sys.argv[3:5] if len(sys.argv) > 3 else ("tcp", None)
PATIENCE = 15
VERSIONS = [mqtt.MQTTv31, mqtt.MQTTv311, mqtt.MQTTv5]


class Peer:
    """One connected client whose messages wait in a queue."""

    def __init__(self, name, version, persistent=False, will=None):
        self.messages, self.connected, self.done = queue.Queue(), queue.Queue(), queue.Queue()
        session = {} if version == mqtt.MQTTv5 else {"clean_session": not persistent}
        self.client = mqtt.Client(
            mqtt.CallbackAPIVersion.VERSION2,
            client_id=name,
            protocol=version,
            transport="websockets" if TRANSPORT.startswith("ws") else "tcp",
            **session,
        )
        if TRANSPORT in ("tls", "wss"):
            self.client.tls_set(ca_certs=CA_FILE)
        self.client.on_message = lambda _c, _u, message: self.messages.put(message)
        self.client.on_connect = lambda _c, _u, flags, code, _p: self.connected.put((flags, code))
        self.client.on_subscribe = lambda *_: self.done.put("subscribed")
        self.client.on_unsubscribe = lambda *_: self.done.put("unsubscribed")
        if will:
            self.client.will_set(**will)
        options = {}
        if version == mqtt.MQTTv5:
            options["clean_start"] = not persistent
            if persistent:
                options["properties"] = Properties(PacketTypes.CONNECT)
                options["properties"].SessionExpiryInterval = 300
        self.client.connect("localhost" if CA_FILE else "127.0.0.1", PORT, keepalive=60, **options)
        self.client.loop_start()
        self.flags, code = self.connected.get(timeout=PATIENCE)
        assert not code.is_failure, code

    def subscribe(self, *args, **options):
        self.client.subscribe(*args, **options)
        assert self.done.get(timeout=PATIENCE) == "subscribed"

    def publish(self, topic, payload, qos=0, retain=False, properties=None):
        sent = self.client.publish(topic, payload, qos, retain, properties)
        sent.wait_for_publish(PATIENCE)
        assert sent.is_published(), f"{topic} was not acknowledged"

    def take(self):
        return self.messages.get(timeout=PATIENCE)

    def nothing(self, seconds=0.3):
        try:
            raise AssertionError(f"unexpected {self.messages.get(timeout=seconds).payload}")
        except queue.Empty:
            pass

    def leave(self):
        self.client.disconnect()
        self.client.loop_stop()

    def break_off(self):
        """The socket goes without a DISCONNECT."""
        self.client.loop_stop()
        if TRANSPORT.startswith("ws"):
            self.client.socket().close()
        else:
            self.client.socket().shutdown(socket.SHUT_RDWR)


def publish_and_subscribe():
    for version in VERSIONS:
        peer = Peer("paho-pubsub", version)
        for qos in (0, 1, 2):
            peer.subscribe(f"paho/{qos}", qos)
            for number in range(20):
                peer.publish(f"paho/{qos}", f"{number}", qos)
            for number in range(20):
                message = peer.take()
                assert (message.payload, message.qos) == (str(number).encode(), qos)
        peer.nothing()
        peer.leave()


def wills():
    for version in VERSIONS:
        watcher = Peer("paho-watcher", version)
        watcher.subscribe("paho/will", 2)
        will = {"topic": "paho/will", "payload": "gone", "qos": 2, "retain": False}
        Peer("paho-polite", version, will=will).leave()
        watcher.nothing()
        Peer("paho-rude", version, will=will).break_off()
        message = watcher.take()
        assert (message.payload, message.qos) == (b"gone", 2)
        watcher.leave()


def retained():
    for version in VERSIONS:
        publisher = Peer("paho-publisher", version)
        publisher.publish("paho/retained", "kept", 1, retain=True)
        early = Peer("paho-early", version)
        early.subscribe("paho/retained", 1)
        message = early.take()
        assert (message.payload, message.retain) == (b"kept", True)
        publisher.publish("paho/retained", "", 1, retain=True)
        message = early.take()
        assert (message.payload, message.retain) == (b"", False)
        late = Peer("paho-late", version)
        late.subscribe("paho/retained", 1)
        late.nothing()
        for peer in (publisher, early, late):
            peer.leave()


def resume():
    # paho hands a QoS 2 message on at its PUBREL, so the two kinds would overtake each other.
    def qos(number):
        return 1 if number < 25 else 2

    for version in VERSIONS:
        name = f"paho-resume-{version}"
        peer = Peer(name, version, persistent=True)
        peer.subscribe([("paho/resume", 2)])
        peer.leave()
        publisher = Peer("paho-publisher", version)
        for number in range(50):
            publisher.publish("paho/resume", f"{number}", qos(number))
        publisher.leave()
        peer = Peer(name, version, persistent=True)
        if version != mqtt.MQTTv31:
            assert peer.flags.session_present
        for number in range(50):
            message = peer.take()
            assert (message.payload, message.qos) == (str(number).encode(), qos(number))
        peer.nothing()
        peer.leave()


def properties():
    peer = Peer("paho-properties", mqtt.MQTTv5)
    identifier = Properties(PacketTypes.SUBSCRIBE)
    identifier.SubscriptionIdentifier = 77
    options = SubscribeOptions(qos=1, retainAsPublished=True)
    peer.subscribe("paho/properties", options=options, properties=identifier)
    given = Properties(PacketTypes.PUBLISH)
    given.UserProperty = [("b", "1"), ("a", "2"), ("b", "3")]
    given.ContentType = "text/plain"
    given.ResponseTopic = "paho/response"
    given.CorrelationData = b"\x00\xff"
    given.PayloadFormatIndicator = 1
    given.MessageExpiryInterval = 100
    peer.publish("paho/properties", "with", 1, retain=True, properties=given)
    message = peer.take()
    got = message.properties
    assert message.retain, "Retain As Published"
    assert got.UserProperty == [("b", "1"), ("a", "2"), ("b", "3")], got.UserProperty
    assert got.SubscriptionIdentifier == [77], got.SubscriptionIdentifier
    assert (got.ContentType, got.ResponseTopic) == ("text/plain", "paho/response")
    assert (got.CorrelationData, got.PayloadFormatIndicator) == (b"\x00\xff", 1)
    assert 90 <= got.MessageExpiryInterval <= 100, got.MessageExpiryInterval
    peer.publish("paho/properties", "", 1, retain=True)
    peer.take()
    peer.leave()


globals()[sys.argv[2]]()
