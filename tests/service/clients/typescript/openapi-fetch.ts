// Uses the types of openapi-typescript with openapi-fetch.

import createClient from "openapi-fetch";
import type { paths } from "./generated/openapi-typescript";
import { showContact, showLead, use } from "./flow";

const client = (baseUrl: string, key?: string) =>
  createClient<paths>({ baseUrl, headers: key ? { Authorization: `Bearer ${key}` } : {} });

const request = (id: string, tag?: string) => ({
  params: { path: { id }, header: tag ? { "If-None-Match": tag, Prefer: "wait=1" } : {} },
});

void use(
  async (url, key, id, tag) => {
    const { data, error, response } = await client(url, key).GET("/api/v1/ext/leads/{id}", request(id, tag));
    return { status: response.status, tag: response.headers.get("ETag"), shown: showLead(data), error };
  },
  async (url, key, id) => {
    const { data, error, response } = await client(url, key).GET("/api/v1/ext/contacts/{id}", request(id));
    return { status: response.status, shown: showContact(data), error };
  },
);
