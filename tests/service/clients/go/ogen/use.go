// Uses the client that ogen makes in this package.
package main

import (
	"context"
	"encoding/json"

	"github.com/google/uuid"
	"leadview.example/clients/flow"
)

type key string

func (key key) ApiKey(context.Context, OperationName) (ApiKey, error) { return ApiKey{Token: string(key)}, nil }

func client(base, apiKey string) *Client {
	client, err := NewClient(base, key(apiKey))
	flow.Must(err)
	return client
}

func main() {
	flow.Use(flow.Client{
		Lead: func(base, key, id, tag string) flow.Answer {
			parameters := GetLeadParams{ID: uuid.MustParse(id)}
			if tag != "" {
				parameters.IfNoneMatch = NewOptString(tag)
			}
			response, err := client(base, key).GetLead(context.Background(), parameters)
			flow.Must(err)
			switch body := response.(type) {
			case *LeadHeaders:
				lead := body.Response
				return flow.Answer{Status: 200, Tag: body.ETag, Shown: []any{lead.Stage, lead.Events[0].EventTimezone.Value,
					lead.QuoteTotal.Value, lead.NotesCount, json.RawMessage(lead.Source.Value["utm_source"])}}
			case *NotModified:
				return flow.Answer{Status: 304}
			case *UnauthorizedHeaders:
				return flow.Answer{Status: 401, Error: body.Response.Error}
			case *ApiAccessDisabledHeaders:
				return flow.Answer{Status: 403, Error: body.Response.Error}
			case *NotFoundHeaders:
				return flow.Answer{Status: 404, Error: body.Response.Error}
			case *RateLimitExceededHeaders:
				return flow.Answer{Status: 429, Error: body.Response.Error, RetryAfter: body.Response.RetryAfter,
					Policies: policies(body.Response)}
			case *ServiceUnavailableHeaders:
				return flow.Answer{Status: 503, Error: body.Response.Error, RetryAfter: body.Response.RetryAfter}
			}
			return flow.Answer{}
		},
		Contact: func(base, key, id string) flow.Answer {
			response, err := client(base, key).GetContact(context.Background(), GetContactParams{ID: uuid.MustParse(id)})
			flow.Must(err)
			body, is := response.(*ContactHeaders)
			if !is {
				return flow.Answer{}
			}
			fields, err := body.Response.CustomFields.MarshalJSON()
			flow.Must(err)
			return flow.Answer{Status: 200, Shown: []any{json.RawMessage(fields)}}
		},
	})
}

func policies(body RateLimitError) (names []string) {
	for _, policy := range body.ViolatedPolicies {
		names = append(names, string(policy))
	}
	return names
}
