// Uses the client that openapi-generator makes in this package.
package main

import (
	"context"
	"net/http"

	"leadview.example/clients/flow"
)

func client(base, key string) (*APIClient, context.Context) {
	configuration := NewConfiguration()
	configuration.Servers = ServerConfigurations{{URL: base}}
	ctx := context.Background()
	if key != "" {
		ctx = context.WithValue(ctx, ContextAccessToken, key)
	}
	return NewAPIClient(configuration), ctx
}

// answer is that of any status: but for 200, the client returns an error with the body.
func answer(response *http.Response, err error) flow.Answer {
	if response == nil {
		flow.Must(err)
	}
	answer := flow.Answer{Status: response.StatusCode, Tag: response.Header.Get("ETag")}
	if refused, is := err.(*GenericOpenAPIError); is {
		switch body := refused.Model().(type) {
		case ErrorBody:
			answer.Error = body.Error
		case RateLimitError:
			answer.Error, answer.RetryAfter, answer.Policies = body.Error, body.RetryAfter, body.ViolatedPolicies
		case RetryableError:
			answer.Error, answer.RetryAfter = body.Error, body.RetryAfter
		default:
			if response.StatusCode != http.StatusNotModified {
				flow.Must(err)
			}
		}
	}
	return answer
}

func main() {
	flow.Use(flow.Client{
		Lead: func(base, key, id, tag string) flow.Answer {
			client, ctx := client(base, key)
			request := client.LeadsAPI.GetLead(ctx, id)
			if tag != "" {
				request = request.IfNoneMatch(tag)
			}
			lead, response, err := request.Execute()
			answer := answer(response, err)
			if err == nil {
				event := lead.Events[0]
				answer.Shown = []any{lead.Stage, flow.Value(event.EventTimezone.Get()), flow.Value(lead.QuoteTotal.Get()),
					lead.NotesCount, lead.Source["utm_source"]}
			}
			return answer
		},
		Contact: func(base, key, id string) flow.Answer {
			client, ctx := client(base, key)
			contact, response, err := client.ContactsAPI.GetContact(ctx, id).Execute()
			answer := answer(response, err)
			if err == nil {
				fields := map[string]any{}
				for name, value := range contact.CustomFields {
					fields[name] = read(value)
				}
				answer.Shown = []any{fields}
			}
			return answer
		},
	})
}

// read returns the value of a custom field, which has none if it was cleared.
func read(field ContactCustomFieldsValue) any {
	switch {
	case field.ArrayOfString != nil:
		return *field.ArrayOfString
	case field.Bool != nil:
		return *field.Bool
	case field.Float64 != nil:
		return *field.Float64
	}
	return flow.Value(field.String)
}
