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
