"""The prose of the OpenAPI document, as CommonMark. Its readers are the authors of external tools."""

API = """
Read the {resources} of one organization from your own tools. The API is **read-only**: a key can
never change data. The API is in **beta**.

## Authentication
Send `Authorization: Bearer <API_KEY>` with every request. You create keys in the organization's integration
settings, where you also enable API access. A key reads the organization that it was created in, and no other.
Treat a key as a secret and as opaque text: keep it out of URLs, logs and public web pages.

## Rate limits
By default a key may send 100 requests in 10 seconds, and all keys of an organization together may send 300.
An organization may have limits of its own. The limits have no fixed windows: requests become available again
continuously. If the limits were checked, the response shows the state of both:

- `RateLimit-Policy: "key";q=100;w=10, "organization";q=300;w=10`: the limits, `q` requests per `w` seconds.
- `RateLimit: "key";r=99;t=1, "organization";r=299;t=1`: `r` requests remain, and in `t` seconds there
  are more (0: none was used).
- `X-RateLimit-Limit`, `-Remaining`, `-Reset`: quota, remaining requests, and when the full quota is available again
  (in seconds since 1970 UTC), of the limit with fewer requests remaining, for clients that support only these headers.

A request over a limit is answered with 429 and `Retry-After` in seconds; this wait is sufficient. A request
that was answered with 429 or 304 does not count.

Unknown keys are limited for each client address: after too many, the response is 429 with
`"violated_policies": ["address"]`. Keys that are in use are not affected.

## Conditional requests
Every record has an `ETag`, which changes whenever the record changes. Store it with your copy, and send it as
`If-None-Match: <ETag>`. If the record has not changed, the response is 304 without a body, and it does not count
against the rate limits. Use this to poll a record for changes.

## Retries
All requests are safe to repeat. After 429 and 503, retry when `Retry-After` has passed. After 408, 500, broken
connections, and 502 and 504 of a proxy on the way, retry with exponential backoff and jitter. Do not repeat a
request unchanged after any other 4xx response.

## Responses
- **Ignore fields that you do not know**: new fields may be added at any time. New error codes may be added, too.
- Optional fields are always present, and null if they are empty. The only exception is `source` of a lead, which
  is absent if there is none.
- Timestamps are RFC 3339 in UTC. Ids are UUIDs in lower case; in requests, upper case is accepted, too.
- Every response has an `X-Request-Id`. You may send your own (up to 128 letters, digits and `-_.:`) to find the
  request in your logs. Quote it when you ask for help.
- Errors are JSON. Branch on `error`, and show `message` to people.
- A change in the product is visible here within about a second.
""".strip()
"""Replace `{resources}` by the names of all resources."""

HEAD = "Same as GET without the body: the cheapest way to read the `ETag`. It counts against the rate limits like GET."
KEY = "An API key of your organization, sent as `Authorization: Bearer <API_KEY>`."
OPENAPI = "The document that you are reading, as JSON. It is sent compressed if `Accept-Encoding` allows gzip."
HEALTH = "The program responds. It does not ask whether records can be served."
READINESS = "The response is 503 while no complete set of records can be served."
