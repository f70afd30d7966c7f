//! A Kafka client in Rust (rskafka) for the tests: reads a task as JSON, prints each record it consumed as a line of JSON.

use chrono::{DateTime, Utc};
use rskafka::client::partition::{Compression, PartitionClient, UnknownTopicHandling};
use rskafka::client::{Client, ClientBuilder};
use serde::{Deserialize, Serialize};
use std::error::Error;

#[derive(Deserialize)]
struct Task {
    bootstrap: String,
    produce: Vec<Send>,
    consume: Vec<Want>,
}

#[derive(Deserialize)]
struct Send {
    topic: String,
    partition: i32,
    codec: String,
    records: Vec<Record>,
}

#[derive(Deserialize)]
struct Want {
    topic: String,
    partition: i32,
    count: usize,
}

#[derive(Serialize, Deserialize)]
struct Record {
    #[serde(default)]
    topic: String,
    #[serde(default)]
    partition: i32,
    key: Option<String>,
    value: Option<String>,
    headers: Vec<(String, Option<String>)>,
    timestamp: Option<i64>,
}

type Outcome<T> = Result<T, Box<dyn Error>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    let task: Task = serde_json::from_reader(std::io::stdin())?;
    let client = ClientBuilder::new(vec![task.bootstrap.clone()]).build().await?;
    for send in &task.produce {
        produce(&client, send).await?;
    }
    for want in &task.consume {
        consume(&client, want).await?;
    }
    Ok(())
}

async fn open(client: &Client, topic: &str, partition: i32) -> Outcome<PartitionClient> {
    Ok(client.partition_client(topic, partition, UnknownTopicHandling::Retry).await?)
}

async fn produce(client: &Client, send: &Send) -> Outcome<()> {
    let codec = match send.codec.as_str() {
        "gzip" => Compression::Gzip,
        "snappy" => Compression::Snappy,
        "lz4" => Compression::Lz4,
        "zstd" => Compression::Zstd,
        _ => Compression::NoCompression,
    };
    let mut records = Vec::new();
    for given in &send.records {
        let mut headers = std::collections::BTreeMap::new();
        for (name, value) in &given.headers {
            headers.insert(name.clone(), unhex(value.as_deref())?.unwrap_or_default());
        }
        records.push(rskafka::record::Record {
            key: unhex(given.key.as_deref())?,
            value: unhex(given.value.as_deref())?,
            headers,
            timestamp: match given.timestamp {
                Some(at) => DateTime::from_timestamp_millis(at).ok_or("a timestamp out of range")?,
                None => Utc::now(),
            },
        });
    }
    open(client, &send.topic, send.partition).await?.produce(records, codec).await?;
    Ok(())
}

async fn consume(client: &Client, want: &Want) -> Outcome<()> {
    let reader = open(client, &want.topic, want.partition).await?;
    let (mut left, mut next) = (want.count, 0);
    while left > 0 {
        let (batch, _high_watermark) = reader.fetch_records(next, 1..4_000_000, 100).await?;
        for got in batch {
            left = left.saturating_sub(1);
            next = got.offset + 1;
            let line = Record {
                topic: want.topic.clone(),
                partition: want.partition,
                key: got.record.key.as_deref().map(hex),
                value: got.record.value.as_deref().map(hex),
                headers: got.record.headers.iter().map(|(name, value)| (name.clone(), Some(hex(value)))).collect(),
                timestamp: Some(got.record.timestamp.timestamp_millis()),
            };
            println!("{}", serde_json::to_string(&line)?);
        }
    }
    Ok(())
}

fn hex(data: &[u8]) -> String {
    data.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: Option<&str>) -> Outcome<Option<Vec<u8>>> {
    let Some(text) = text else { return Ok(None) };
    let pairs = (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16));
    Ok(Some(pairs.collect::<Result<_, _>>()?))
}
