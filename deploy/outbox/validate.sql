-- The rows of the outbox table as the lines that `leadview validate` reads (docs/events.md). Where LEADVIEW_TOPIC_PREFIX is
-- another one, replace `crm.`. The payload is the text that the connector sends.

SELECT json_build_object(
    'topic', 'crm.' || aggregatetype,
    'key', aggregateid,
    'headers', json_build_object(
        'ce_specversion', specversion, 'ce_id', id, 'ce_source', source, 'ce_type', type, 'ce_time', created_at
    ),
    'value', payload::text
)
FROM outbox
ORDER BY created_at;
