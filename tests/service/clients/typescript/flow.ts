// Asks what an external tool asks, with a generated client, and prints what came.

import { setTimeout } from "node:timers/promises";

type Order = Record<"url" | "away" | "newer" | "key" | "disabled" | "limited" | "lead" | "contact", string>;
type Value = string | number | boolean | string[] | null;

/** What a client returned. `shown` is what it read of the document, and `error` the body of a refusal. */
export interface Answer {
  status: number;
  tag?: string | null;
  shown?: unknown[];
  error?: { error: string; retry_after?: number; violated_policies?: string[] };
}

export interface Lead {
  stage: string;
  events: { event_timezone: string | null }[];
  quote_total: number | null;
  notes_count: number;
  source?: { [name: string]: unknown };
}

export interface Contact {
  custom_fields: { [name: string]: Value };
}

export type Read = (url: string, key: string | undefined, id: string, tag?: string) => Promise<Answer>;

export const showLead = (lead?: Lead) =>
  lead && [lead.stage, lead.events[0]?.event_timezone, lead.quote_total, lead.notes_count, lead.source?.utm_source];

export const showContact = (contact?: Contact) => contact && [contact.custom_fields];

export async function use(readLead: Read, readContact: Read): Promise<void> {
  const order: Order = JSON.parse(process.argv[2] ?? "{}");
  const { url, key, newer } = order;
  const show = (name: string, answer: Answer, ...values: unknown[]) =>
    console.log(JSON.stringify([name, answer.status, ...values]));
  const shown = (name: string, answer: Answer) => show(name, answer, ...(answer.shown ?? []));
  const refused = (name: string, answer: Answer) => show(name, answer, answer.error?.error);

  const first = await readLead(url, key, order.lead);
  shown("200", first);
  shown("304", await readLead(url, key, order.lead, first.tag ?? ""));
  shown("contact", await readContact(url, key, order.contact));
  refused("404", await readLead(url, key, order.contact));
  refused("401", await readLead(url, undefined, order.lead));
  refused("403", await readLead(url, order.disabled, order.lead));

  let limited = await readLead(url, order.limited, order.lead);
  while (limited.status !== 429) limited = await readLead(url, order.limited, order.lead);
  show("429", limited, limited.error?.error, limited.error?.violated_policies);
  await setTimeout((limited.error?.retry_after ?? 0) * 1000);
  show("retry", await readLead(url, order.limited, order.lead));

  const away = await readLead(order.away, key, order.lead);
  show("503", away, away.error?.error, (away.error?.retry_after ?? 0) > 0);

  shown("newer", await readLead(newer, key, order.lead));
  shown("newer contact", await readContact(newer, key, order.contact));
  refused("newer error", await readLead(newer, key, order.contact));
}
