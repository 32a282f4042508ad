"""The console: one page that shows the service at work (`leadview console`, docs/runbook.md).

It shows what `status`, `show` and the metrics know, and changes nothing:

    Sampler ── takes a Picture every second, from Redis, Kafka and the metrics of the API, for all pages together
    Feed    ── hands each Picture to every page that is open (server-sent events)
    explain ── answers "Where did my event go?" (operate/explain)
    Guard   ── who may ask: host, token, and headers that no other site can send
    static/ ── the page, without a build step
"""
