// Uses the client of @hey-api/openapi-ts.

import { createClient } from "./generated/hey-api/client";
import { getContact, getLead } from "./generated/hey-api";
import { showContact, showLead, use } from "./flow";

const request = (baseUrl: string, auth: string | undefined, id: string, tag?: string) => ({
  client: createClient({ baseUrl, auth }),
  path: { id },
  headers: tag ? { "If-None-Match": tag } : {},
});

void use(
  async (...read) => {
    const { data, error, response } = await getLead(request(...read));
    return { status: response.status, tag: response.headers.get("ETag"), shown: showLead(data || undefined), error };
  },
  async (...read) => {
    const { data, error, response } = await getContact(request(...read));
    return { status: response.status, shown: showContact(data || undefined), error };
  },
);
