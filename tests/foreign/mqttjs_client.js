// Drives a broker with the npm package mqtt: mqttjs_client.js PORT SCENARIO [tcp|tls|ws|wss CAFILE].
// Exit code 0 when it held.

'use strict';

const assert = require('node:assert');
const mqtt = require('mqtt');

const PORT = Number(process.argv[2]);
const [TRANSPORT, CA_FILE] = process.argv.length > 4 ? process.argv.slice(4) : ['tcp'];
const ADDRESS = {
  tcp: { protocol: 'mqtt', host: '127.0.0.1' },
  tls: { protocol: 'mqtts', host: 'localhost' },
  ws: { protocol: 'ws', host: '127.0.0.1', path: '/mqtt' },
  wss: { protocol: 'wss', host: 'localhost', path: '/mqtt' },
}[TRANSPORT];
if (CA_FILE) ADDRESS.ca = require('node:fs').readFileSync(CA_FILE);
const PATIENCE_MS = 15000;
const LEVELS = [3, 4, 5];

/** One connected client whose messages wait in a list. */
class Peer {
  static async connect(clientId, level, { persistent = false, will } = {}) {
    const properties = level === 5 && persistent ? { sessionExpiryInterval: 300 } : undefined;
    const peer = new Peer();
    peer.messages = [];
    peer.waiting = [];
    peer.client = mqtt.connect({
      ...ADDRESS,
      port: PORT,
      clientId,
      clean: !persistent,
      protocolVersion: level,
      protocolId: level === 3 ? 'MQIsdp' : 'MQTT',
      reconnectPeriod: 0,
      will,
      properties,
    });
    peer.client.on('message', (topic, payload, packet) => {
      const message = { topic, payload: payload.toString(), packet };
      const waiting = peer.waiting.shift();
      if (waiting) waiting(message);
      else peer.messages.push(message);
    });
    peer.connack = await new Promise((resolve, reject) => {
      peer.client.once('connect', resolve);
      peer.client.once('error', reject);
    });
    return peer;
  }

  take() {
    if (this.messages.length > 0) return Promise.resolve(this.messages.shift());
    return new Promise((resolve, reject) => {
      const late = setTimeout(() => reject(new Error('no message')), PATIENCE_MS);
      this.waiting.push((message) => {
        clearTimeout(late);
        resolve(message);
      });
    });
  }

  async nothing() {
    await new Promise((resolve) => setTimeout(resolve, 300));
    assert.deepStrictEqual(this.messages, []);
  }

  subscribe(...args) {
    return this.client.subscribeAsync(...args);
  }

  publish(...args) {
    return this.client.publishAsync(...args);
  }

  leave() {
    return this.client.endAsync();
  }

  /** The socket goes without a DISCONNECT. */
  breakOff() {
    this.client.on('error', () => {});
    this.client.stream.destroy();
  }
}

const scenarios = {
  async publish_and_subscribe() {
    for (const level of LEVELS) {
      const peer = await Peer.connect('js-pubsub', level);
      for (const qos of [0, 1, 2]) {
        await peer.subscribe(`js/${qos}`, { qos });
        for (let number = 0; number < 20; number += 1) {
          await peer.publish(`js/${qos}`, `${number}`, { qos });
        }
        for (let number = 0; number < 20; number += 1) {
          const { payload, packet } = await peer.take();
          assert.deepStrictEqual([payload, packet.qos], [`${number}`, qos]);
        }
      }
      await peer.nothing();
      await peer.leave();
    }
  },

  async wills() {
    for (const level of LEVELS) {
      const watcher = await Peer.connect('js-watcher', level);
      await watcher.subscribe('js/will', { qos: 2 });
      const will = { topic: 'js/will', payload: Buffer.from('gone'), qos: 2, retain: false };
      await (await Peer.connect('js-polite', level, { will })).leave();
      await watcher.nothing();
      (await Peer.connect('js-rude', level, { will })).breakOff();
      const { payload, packet } = await watcher.take();
      assert.deepStrictEqual([payload, packet.qos], ['gone', 2]);
      await watcher.leave();
    }
  },

  async retained() {
    for (const level of LEVELS) {
      const publisher = await Peer.connect('js-publisher', level);
      await publisher.publish('js/retained', 'kept', { qos: 1, retain: true });
      const early = await Peer.connect('js-early', level);
      await early.subscribe('js/retained', { qos: 1 });
      const first = await early.take();
      assert.deepStrictEqual([first.payload, first.packet.retain], ['kept', true]);
      await publisher.publish('js/retained', '', { qos: 1, retain: true });
      const second = await early.take();
      assert.deepStrictEqual([second.payload, second.packet.retain], ['', false]);
      const late = await Peer.connect('js-late', level);
      await late.subscribe('js/retained', { qos: 1 });
      await late.nothing();
      for (const peer of [publisher, early, late]) await peer.leave();
    }
  },

  async resume() {
    // mqtt hands a QoS 2 message on at its PUBREL, so the two kinds would overtake each other.
    const qosOf = (number) => (number < 25 ? 1 : 2);
    for (const level of LEVELS) {
      const name = `js-resume-${level}`;
      let peer = await Peer.connect(name, level, { persistent: true });
      await peer.subscribe('js/resume', { qos: 2 });
      await peer.leave();
      const publisher = await Peer.connect('js-publisher', level);
      for (let number = 0; number < 50; number += 1) {
        await publisher.publish('js/resume', `${number}`, { qos: qosOf(number) });
      }
      await publisher.leave();
      peer = await Peer.connect(name, level, { persistent: true });
      if (level > 3) assert.strictEqual(peer.connack.sessionPresent, true);
      for (let number = 0; number < 50; number += 1) {
        const { payload, packet } = await peer.take();
        assert.deepStrictEqual([payload, packet.qos], [`${number}`, qosOf(number)]);
      }
      await peer.nothing();
      await peer.leave();
    }
  },

  async properties() {
    const peer = await Peer.connect('js-properties', 5);
    const subscriptionIdentifier = 77;
    await peer.subscribe('js/properties', { qos: 1, rap: true, properties: { subscriptionIdentifier } });
    const given = {
      userProperties: { b: ['1', '3'], a: '2' },
      contentType: 'text/plain',
      responseTopic: 'js/response',
      correlationData: Buffer.from([0, 255]),
      payloadFormatIndicator: true,
      messageExpiryInterval: 100,
    };
    await peer.publish('js/properties', 'with', { qos: 1, retain: true, properties: given });
    const { packet } = await peer.take();
    const got = packet.properties;
    assert.strictEqual(packet.retain, true, 'Retain As Published');
    assert.deepStrictEqual({ ...got.userProperties }, given.userProperties);
    assert.strictEqual(got.subscriptionIdentifier, subscriptionIdentifier);
    assert.strictEqual(got.contentType, 'text/plain');
    assert.strictEqual(got.responseTopic, 'js/response');
    assert.deepStrictEqual(got.correlationData, given.correlationData);
    assert.strictEqual(got.payloadFormatIndicator, true);
    assert.ok(got.messageExpiryInterval <= 100 && got.messageExpiryInterval >= 90);
    await peer.publish('js/properties', '', { qos: 1, retain: true });
    await peer.take();
    await peer.leave();
  },
};

scenarios[process.argv[3]]().then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
