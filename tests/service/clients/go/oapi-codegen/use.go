// Uses the client that oapi-codegen makes in this package.
package main

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/google/uuid"
	"leadview.example/clients/flow"
)

func client(base, key string) *ClientWithResponses {
	client, err := NewClientWithResponses(base, WithRequestEditorFn(func(_ context.Context, request *http.Request) error {
		if key != "" {
			request.Header.Set("Authorization", "Bearer "+key)
		}
		return nil
	}))
	flow.Must(err)
	return client
}

func policies(body *RateLimitExceeded) (names []string) {
	for _, policy := range body.ViolatedPolicies {
		names = append(names, string(policy))
	}
	return names
}

func main() {
	flow.Use(flow.Client{
		Lead: func(base, key, id, tag string) flow.Answer {
			parameters := &GetLeadParams{}
			if tag != "" {
				parameters.IfNoneMatch = &tag
			}
			response, err := client(base, key).GetLeadWithResponse(context.Background(), uuid.MustParse(id), parameters)
			flow.Must(err)
			answer := flow.Answer{Status: response.StatusCode(), Tag: response.HTTPResponse.Header.Get("ETag")}
			switch {
			case response.JSON200 != nil:
				lead := response.JSON200
				answer.Shown = []any{lead.Stage, flow.Value(lead.Events[0].EventTimezone), flow.Value(lead.QuoteTotal),
					lead.NotesCount, (*lead.Source)["utm_source"]}
			case response.JSON401 != nil:
				answer.Error = response.JSON401.Error
			case response.JSON403 != nil:
				answer.Error = response.JSON403.Error
			case response.JSON404 != nil:
				answer.Error = response.JSON404.Error
			case response.JSON429 != nil:
				body := response.JSON429
				answer.Error, answer.RetryAfter, answer.Policies = body.Error, body.RetryAfter, policies(body)
			case response.JSON503 != nil:
				answer.Error, answer.RetryAfter = response.JSON503.Error, response.JSON503.RetryAfter
			}
			return answer
		},
		Contact: func(base, key, id string) flow.Answer {
			response, err := client(base, key).GetContactWithResponse(context.Background(), uuid.MustParse(id), nil)
			flow.Must(err)
			answer := flow.Answer{Status: response.StatusCode()}
			if response.JSON200 != nil {
				fields := map[string]any{}
				for name, value := range response.JSON200.CustomFields {
					fields[name] = read(value)
				}
				answer.Shown = []any{fields}
			}
			return answer
		},
	})
}

// read returns the value of a custom field, which is nil if it was cleared.
func read(field *Contact_CustomFields_AdditionalProperties) (value any) {
	if field != nil {
		text, err := field.MarshalJSON()
		flow.Must(err)
		flow.Must(json.Unmarshal(text, &value))
	}
	return value
}
