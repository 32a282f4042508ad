// Package flow asks what an external tool asks, with a generated client, and prints what came.
package flow

import (
	"encoding/json"
	"fmt"
	"os"
	"time"
)

type order struct{ URL, Away, Newer, Key, Disabled, Limited, Lead, Contact string }

// Answer is what a client returned. Shown is what it read of the document.
type Answer struct {
	Status     int
	Tag        string
	Shown      []any
	Error      string
	RetryAfter int64
	Policies   []string
}

// Client reads a document with a generated client. An empty key or tag is not sent.
type Client struct {
	Lead    func(base, key, id, tag string) Answer
	Contact func(base, key, id string) Answer
}

// Value is where an optional field is; a field that is null has none.
func Value[T any](pointer *T) any {
	if pointer == nil {
		return nil
	}
	return *pointer
}

// Use does what the first argument of the program asks for.
func Use(client Client) {
	var order order
	Must(json.Unmarshal([]byte(os.Args[1]), &order))
	read := client.Lead
	first := read(order.URL, order.Key, order.Lead, "")
	show("200", first.Status, first.Shown...)
	show("304", read(order.URL, order.Key, order.Lead, first.Tag).Status)
	contact := client.Contact(order.URL, order.Key, order.Contact)
	show("contact", contact.Status, contact.Shown...)
	refused("404", read(order.URL, order.Key, order.Contact, ""))
	refused("401", read(order.URL, "", order.Lead, ""))
	refused("403", read(order.URL, order.Disabled, order.Lead, ""))

	limited := read(order.URL, order.Limited, order.Lead, "")
	for limited.Status != 429 {
		limited = read(order.URL, order.Limited, order.Lead, "")
	}
	show("429", limited.Status, limited.Error, limited.Policies)
	time.Sleep(time.Duration(limited.RetryAfter) * time.Second)
	show("retry", read(order.URL, order.Limited, order.Lead, "").Status)

	away := read(order.Away, order.Key, order.Lead, "")
	show("503", away.Status, away.Error, away.RetryAfter > 0)

	newer := read(order.Newer, order.Key, order.Lead, "")
	show("newer", newer.Status, newer.Shown...)
	newer = client.Contact(order.Newer, order.Key, order.Contact)
	show("newer contact", newer.Status, newer.Shown...)
	refused("newer error", read(order.Newer, order.Key, order.Contact, ""))
}

// Must ends the program if something fails that cannot be an answer.
func Must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func refused(name string, answer Answer) { show(name, answer.Status, answer.Error) }

func show(name string, status int, values ...any) {
	line, err := json.Marshal(append([]any{name, status}, values...))
	Must(err)
	fmt.Println(string(line))
}
