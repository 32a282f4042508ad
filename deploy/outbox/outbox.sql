-- The outbox table as Debezium documents it, with three more columns that have defaults; and what the connector needs. The
-- server needs wal_level=logical.

CREATE TABLE outbox (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),  -- the id of the event
    aggregatetype varchar(255) NOT NULL,            -- the topic without its prefix, such as leads or api-keys
    aggregateid varchar(255) NOT NULL,              -- the message key: <organization_id>:<entity_id>
    type varchar(255) NOT NULL,                     -- the type of the event, such as crm.lead.changed
    payload jsonb,                                  -- the data of the event; NULL publishes a tombstone
    specversion text NOT NULL DEFAULT '1.0',        -- the version of CloudEvents
    source text NOT NULL DEFAULT '/crm',            -- where the event comes from
    created_at timestamptz NOT NULL DEFAULT now()   -- the time of the event
);

-- Only inserts are published, so rows may be deleted at any time, even in the transaction that has inserted them.
CREATE PUBLICATION leadview_outbox FOR TABLE outbox WITH (publish = 'insert');

-- The connector's user. Give it a password, or a client certificate.
CREATE ROLE debezium LOGIN REPLICATION;
GRANT SELECT ON outbox TO debezium;

-- A change of a lead adds a row in the same transaction:
--
-- INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES (
--     'leads',
--     '2b9f4d8e-6c3a-4e51-b7d0-9a8c1f2e3d4b:7d0c2f52-0b1e-4f63-9c1c-3c8f6f0d2a11',
--     'crm.lead.changed',
--     '{"id": "7d0c2f52-0b1e-4f63-9c1c-3c8f6f0d2a11", "organization_id": "2b9f4d8e-6c3a-4e51-b7d0-9a8c1f2e3d4b",
--       "version": 1, "contact_id": "c6a1f3b0-58de-4a7b-8a35-0f4b9e1d7722", "stage": "NEW",
--       "created_at": "2026-03-02T09:15:00Z", "updated_at": "2026-03-02T09:15:00Z"}'
-- );
