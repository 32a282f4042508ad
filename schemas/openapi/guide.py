"""What the OpenAPI document says to authors of external tools, as CommonMark."""

API = """
Read the leads and contacts of one organization from your own tools. The API is **read-only**: a
key can never change data. It is in **beta**.

## Authentication
Every request carries `Authorization: Bearer <API_KEY>`. Keys are created in the organization's integration
settings, where API access is switched on as well. A key reads the organization it was created in and no
other. Treat it as a secret and as opaque text: keep it out of URLs, logs and public web pages.

## Rate limits
By default a key may send 100 requests in 10 seconds, and all keys of an organization together 300; an
organization may have limits of its own. There are no fixed windows: room comes back steadily. Every answer
that was counted says where you stand:

- `RateLimit-Policy: "key";q=100;w=10, "organization";q=300;w=10`: the limits, `q` requests in `w` seconds.
- `RateLimit: "key";r=99;t=1, "organization";r=299;t=1`: `r` requests are left, all are back in `t` seconds.
- `X-RateLimit-Limit`, `-Remaining`, `-Reset`: the same for the tighter of both, for clients that know only
  these.

Beyond a limit the answer is 429, with `Retry-After` in seconds: waiting that long is enough. A refused
request costs nothing, and neither does an answer 304.

## Conditional requests
Every record comes with an `ETag` that changes whenever the record does. Keep it beside your copy and send
it back: `If-None-Match: <ETag>`. The answer is 304 without a body, and free of the rate limit, while
nothing has changed. This is the way to watch a record.

## Retries
All requests are safe to repeat. Repeat after 429 and 503 when `Retry-After` is over, and after 408, 500 and
broken connections with growing pauses and some randomness. Do not repeat other 4xx answers unchanged.

## Reading answers
- **Ignore fields that you do not know**: new ones may be added at any time. So may error codes.
- Optional fields are always there, and null when empty. Only `source` of a lead is left out when there is
  none.
- Timestamps are RFC 3339 in UTC. Ids are UUIDs in lower case; in requests any case will do.
- `X-Request-Id` names each answer. Send your own (up to 128 letters, digits and `-_.:`) to find it in your
  logs, and quote it when you ask for help.
- Errors are JSON: branch on `error`, show `message` to people.
- Records follow the product within about a second.
""".strip()

LEAD = """
Returns one lead together with a summary of its contact and the events that the customer requested.

`contact` is the contact as it is now, or null when it was deleted or has not arrived yet; then try again
later. Its custom fields are in the contact's own record.
""".strip()

CONTACT = """
Returns one contact with its custom fields.

`custom_fields` is an object by stable field key. A field that was never set is absent, one that was cleared
is null.
""".strip()

HEAD = "Same as GET, without a body: the cheap way to learn the `ETag`. It is counted like GET."
KEY = "An API key of your organization: `Authorization: Bearer <API_KEY>`."
