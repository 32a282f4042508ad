// Publishes CloudEvents with the SDK for Go and franz-go: `go run publish_cloudevents.go SERVERS TOPIC [binary]`.
// A line of standard input is a message key, a tab and an event in JSON. Without an event it is a tombstone.
// Needs `go get github.com/cloudevents/sdk-go/v2 github.com/twmb/franz-go`.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"log"
	"os"
	"strings"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/twmb/franz-go/pkg/kgo"
)

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// header returns one header of a record.
func header(name, value string) kgo.RecordHeader { return kgo.RecordHeader{Key: name, Value: []byte(value)} }

// record returns the record of an event. The SDK's own protocol for Kafka uses sarama, whose partitions are not those of
// other producers unless it is told to hash by murmur2.
func record(event event.Event, binary bool) *kgo.Record {
	if !binary {
		value, err := json.Marshal(event)
		must(err)
		return &kgo.Record{Value: value, Headers: []kgo.RecordHeader{header("content-type", "application/cloudevents+json")}}
	}
	return &kgo.Record{Value: event.Data(), Headers: []kgo.RecordHeader{
		header("ce_specversion", event.SpecVersion()), header("ce_id", event.ID()), header("ce_source", event.Source()),
		header("ce_type", event.Type()), header("ce_time", event.Time().Format("2006-01-02T15:04:05.999999Z07:00")),
		header("content-type", "application/json"),
	}}
}

func main() {
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(os.Args[1], ",")...), kgo.DefaultProduceTopic(os.Args[2]))
	must(err)
	defer client.Close()
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		key, text, _ := strings.Cut(lines.Text(), "\t")
		made := &kgo.Record{} // a tombstone
		if text != "" {
			var event event.Event
			must(json.Unmarshal([]byte(text), &event))
			made = record(event, len(os.Args) > 3 && os.Args[3] == "binary")
		}
		made.Key = []byte(key)
		must(client.ProduceSync(context.Background(), made).FirstErr())
	}
	must(lines.Err())
}
