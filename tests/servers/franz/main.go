// A program on franz-go: it makes a topic, produces, consumes in a group of two members, and lists what there is.
// It prints one line of JSON a record, or one for all that an administrator asked.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

type record struct {
	Partition int32             `json:"partition"`
	Offset    int64             `json:"offset"`
	Key       *string           `json:"key"`
	Value     *string           `json:"value"`
	TimeMs    int64             `json:"time_ms"`
	Headers   map[string]string `json:"headers"`
	Member    int               `json:"member"`
}

func text(data []byte) *string {
	if data == nil {
		return nil
	}
	value := string(data)
	return &value
}

func number(word string) int {
	value, err := strconv.Atoi(word)
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func show(value any) {
	check(json.NewEncoder(os.Stdout).Encode(value))
}

func client(address string, options ...kgo.Opt) *kgo.Client {
	made, err := kgo.NewClient(append(options, kgo.SeedBrokers(address))...)
	check(err)
	return made
}

// Send the numbers [0, count), every seventh without a value; print where they are. franz-go is idempotent by default.
func produce(ctx context.Context, address, topic string, count int) {
	producer := client(address, kgo.DefaultProduceTopic(topic), kgo.ProducerBatchCompression(kgo.ZstdCompression()))
	defer producer.Close()
	var sent []*kgo.Record
	for i := 0; i < count; i++ {
		one := &kgo.Record{Key: []byte(strconv.Itoa(i)), Timestamp: time.UnixMilli(int64(1_000_000 + i))}
		if i%7 != 0 {
			one.Value = []byte("value " + strconv.Itoa(i))
			one.Headers = []kgo.RecordHeader{{Key: "number", Value: one.Key}, {Key: "empty", Value: []byte{}}}
		}
		sent = append(sent, one)
	}
	results := producer.ProduceSync(ctx, sent...)
	check(results.FirstErr())
	for _, result := range results {
		show(record{Partition: result.Record.Partition, Offset: result.Record.Offset, Key: text(result.Record.Key)})
	}
}

// Consume this many records by two members of a group, commit, leave; print the records.
func consume(ctx context.Context, address, topic, group string, count int) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var lock sync.Mutex
	var joined, members sync.WaitGroup
	left := count
	for member := 0; member < 2; member++ {
		joined.Add(1)
		members.Add(1)
		go func() {
			defer members.Done()
			var once sync.Once
			assigned := func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
				if len(partitions) > 0 {
					once.Do(joined.Done)
				}
			}
			consumer := client(address, kgo.ConsumeTopics(topic), kgo.ConsumerGroup(group),
				kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.HeartbeatInterval(200*time.Millisecond),
				kgo.OnPartitionsAssigned(assigned))
			defer consumer.Close()
			joined.Wait() // each reads its share, and the shares do not change any more
			for ctx.Err() == nil {
				fetches := consumer.PollFetches(ctx)
				lock.Lock()
				for _, got := range fetches.Records() {
					headers := map[string]string{}
					for _, header := range got.Headers {
						headers[header.Key] = string(header.Value)
					}
					show(record{got.Partition, got.Offset, text(got.Key), text(got.Value), got.Timestamp.UnixMilli(),
						headers, member})
					left--
				}
				if left <= 0 {
					cancel()
				}
				lock.Unlock()
			}
			check(consumer.CommitUncommittedOffsets(context.Background()))
		}()
	}
	members.Wait()
}

// Print the topics, their ends and the lag of a group.
func list(ctx context.Context, admin *kadm.Client, topic, group string) {
	topics, err := admin.ListTopics(ctx)
	check(err)
	ends, err := admin.ListEndOffsets(ctx, topic)
	check(err)
	lags, err := admin.Lag(ctx, group)
	check(err)
	check(lags.Error())
	groups, err := admin.ListGroups(ctx)
	check(err)
	sum := int64(0)
	ends.Each(func(end kadm.ListedOffset) { sum += end.Offset })
	show(map[string]any{
		"topics": topics.Names(), "partitions": len(topics[topic].Partitions), "end": sum,
		"groups": groups.Groups(), "lag": lags[group].Lag.Total(), "state": lags[group].State,
	})
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Second)
	defer cancel()
	address, topic, words := os.Args[2], os.Args[3], os.Args[4:]
	switch os.Args[1] {
	case "create":
		admin := kadm.NewClient(client(address))
		defer admin.Close()
		_, err := admin.CreateTopic(ctx, int32(number(words[0])), 1, nil, topic)
		check(err)
	case "produce":
		produce(ctx, address, topic, number(words[0]))
	case "consume":
		consume(ctx, address, topic, words[0], number(words[1]))
	case "list":
		admin := kadm.NewClient(client(address))
		defer admin.Close()
		list(ctx, admin, topic, words[0])
	}
}
