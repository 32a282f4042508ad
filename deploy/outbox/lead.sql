-- What a change of a lead adds to its transaction: a row in the outbox.

INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES (
    'leads',
    '2b9f4d8e-6c3a-4e51-b7d0-9a8c1f2e3d4b:7d0c2f52-0b1e-4f63-9c1c-3c8f6f0d2a11',
    'crm.lead.changed',
    '{"id": "7d0c2f52-0b1e-4f63-9c1c-3c8f6f0d2a11", "organization_id": "2b9f4d8e-6c3a-4e51-b7d0-9a8c1f2e3d4b",
      "version": 1, "contact_id": "c6a1f3b0-58de-4a7b-8a35-0f4b9e1d7722", "stage": "NEW",
      "created_at": "2026-03-02T09:15:00Z", "updated_at": "2026-03-02T09:15:00Z"}'
);
