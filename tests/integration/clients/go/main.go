// A Kafka client in Go (franz-go) for the tests: reads a task as JSON, prints each record it consumed as a line of JSON.
package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"log"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

type record struct {
	Topic     string       `json:"topic,omitempty"`
	Partition int32        `json:"partition"`
	Key       *string      `json:"key"`
	Value     *string      `json:"value"`
	Headers   [][2]*string `json:"headers"`
	Timestamp *int64       `json:"timestamp"`
}

type task struct {
	Bootstrap string
	Produce   []struct {
		Topic     string
		Partition int32
		Codec     string
		Records   []record
	}
	Consume []struct {
		Topic     string
		Partition int32
		Count     int
	}
}

var codecs = map[string]kgo.CompressionCodec{
	"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
	"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
}

func main() {
	var work task
	check(json.NewDecoder(os.Stdin).Decode(&work))
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Second)
	defer cancel()
	produce(ctx, work)
	consume(ctx, work)
}

func produce(ctx context.Context, work task) {
	for _, send := range work.Produce {
		client, err := kgo.NewClient(kgo.SeedBrokers(work.Bootstrap), kgo.RecordPartitioner(kgo.ManualPartitioner()),
			kgo.ProducerBatchCompression(codecs[send.Codec]), kgo.ProducerBatchMaxBytes(4<<20))
		check(err)
		var records []*kgo.Record
		for _, each := range send.Records {
			made := &kgo.Record{Topic: send.Topic, Partition: send.Partition, Key: unhex(each.Key), Value: unhex(each.Value)}
			for _, pair := range each.Headers {
				made.Headers = append(made.Headers, kgo.RecordHeader{Key: *pair[0], Value: unhex(pair[1])})
			}
			if each.Timestamp != nil {
				made.Timestamp = time.UnixMilli(*each.Timestamp)
			}
			records = append(records, made)
		}
		check(client.ProduceSync(ctx, records...).FirstErr())
		client.Close()
	}
}

func consume(ctx context.Context, work task) {
	left := 0
	assigned := map[string]map[int32]kgo.Offset{}
	for _, want := range work.Consume {
		if assigned[want.Topic] == nil {
			assigned[want.Topic] = map[int32]kgo.Offset{}
		}
		assigned[want.Topic][want.Partition] = kgo.NewOffset().AtStart()
		left += want.Count
	}
	if left == 0 {
		return
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(work.Bootstrap), kgo.ConsumePartitions(assigned),
		kgo.FetchMaxWait(100*time.Millisecond))
	check(err)
	out := json.NewEncoder(os.Stdout)
	for left > 0 {
		fetches := client.PollFetches(ctx)
		check(fetches.Err0())
		fetches.EachError(func(_ string, _ int32, err error) { check(err) })
		fetches.EachRecord(func(got *kgo.Record) {
			left--
			at := got.Timestamp.UnixMilli()
			line := record{Topic: got.Topic, Partition: got.Partition, Key: tohex(got.Key), Value: tohex(got.Value),
				Headers: [][2]*string{}, Timestamp: &at}
			for _, header := range got.Headers {
				name := header.Key
				line.Headers = append(line.Headers, [2]*string{&name, tohex(header.Value)})
			}
			check(out.Encode(line))
		})
	}
	client.Close()
}

func tohex(data []byte) *string {
	if data == nil {
		return nil
	}
	text := hex.EncodeToString(data)
	return &text
}

func unhex(text *string) []byte {
	if text == nil {
		return nil
	}
	data, err := hex.DecodeString(*text)
	check(err)
	return data
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
