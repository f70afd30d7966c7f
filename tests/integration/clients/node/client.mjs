// A Kafka client in Node (kafkajs) for the tests: reads a task as JSON, prints each record it consumed as a line of JSON.
// kafkajs has no consumer without a group, so consuming is done with its own Fetch request on the partition's leader.
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'

const require = createRequire(import.meta.url)
const { Kafka, CompressionTypes, logLevel } = require('kafkajs')
const inside = (path) => require(join(dirname(require.resolve('kafkajs')), 'src', path))

const task = JSON.parse(readFileSync(0, 'utf8'))
const kafka = new Kafka({ clientId: 'headrace-tests', brokers: [task.bootstrap], logLevel: logLevel.ERROR })
const codecs = { none: CompressionTypes.None, gzip: CompressionTypes.GZIP }
const bytes = (text) => (text === null ? null : Buffer.from(text, 'hex'))
const hex = (data) => (data === null || data === undefined ? null : Buffer.from(data).toString('hex'))

async function produce() {
  const producer = kafka.producer({ allowAutoTopicCreation: false })
  await producer.connect()
  for (const send of task.produce) {
    const messages = send.records.map((record) => ({
      key: bytes(record.key),
      value: bytes(record.value),
      partition: send.partition,
      headers: Object.fromEntries(record.headers.map(([name, value]) => [name, bytes(value)])),
      ...(record.timestamp === null ? {} : { timestamp: String(record.timestamp) }),
    }))
    await producer.send({ topic: send.topic, messages, acks: -1, compression: codecs[send.codec] })
  }
  await producer.disconnect()
}

async function consume() {
  const cluster = await openCluster()
  await cluster.addMultipleTargetTopics([...new Set(task.consume.map((want) => want.topic))])
  for (const want of task.consume) {
    const leaders = cluster.findLeaderForPartitions(want.topic, [want.partition])
    const broker = await cluster.findBroker({ nodeId: Object.keys(leaders)[0] })
    let offset = 0n
    for (let left = want.count; left > 0; ) {
      const partitions = [{ partition: want.partition, fetchOffset: offset.toString(), maxBytes: 4 << 20 }]
      const topics = [{ topic: want.topic, partitions }]
      const answer = await broker.fetch({ maxWaitTime: 100, minBytes: 1, maxBytes: 4 << 20, topics })
      for (const message of answer.responses[0].partitions[0].messages) {
        if (BigInt(message.offset) < offset) continue
        offset = BigInt(message.offset) + 1n
        left -= 1
        print(want, message)
      }
    }
  }
  await cluster.disconnect()
}

async function openCluster() {
  const Cluster = inside('cluster')
  const cluster = new Cluster({
    logger: inside('loggers').createLogger({ level: logLevel.ERROR, logCreator: inside('loggers/console') }),
    brokers: [task.bootstrap],
    clientId: 'headrace-tests',
    socketFactory: inside('network/socketFactory')(),
    connectionTimeout: 1000,
    requestTimeout: 30000,
    metadataMaxAge: 300000,
    allowAutoTopicCreation: false,
    retry: {},
  })
  await cluster.connect()
  return cluster
}

function print(want, message) {
  const headers = Object.entries(message.headers ?? {}).map(([name, value]) => [name, hex(value)])
  const fields = { key: hex(message.key), value: hex(message.value), headers, timestamp: Number(message.timestamp) }
  console.log(JSON.stringify({ topic: want.topic, partition: want.partition, ...fields }))
}

await produce()
if (task.consume.length > 0) await consume()
