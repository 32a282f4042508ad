// Uses the generated TypeScript client as an external tool would, and prints what came: node useClient.js <order in JSON>

import { setTimeout } from "node:timers/promises";
import { createClient } from "./client/client";
import type { ErrorBody, RateLimitError, RetryableError } from "./client";
import { getContact, getLead } from "./client";

type Order = Record<"url" | "away" | "key" | "disabled" | "limited" | "lead" | "contact", string>;

const show = (...values: unknown[]) => console.log(JSON.stringify(values));

async function main(order: Order): Promise<void> {
  const caller = (auth?: string, baseUrl = order.url) => createClient({ baseUrl, auth });
  const lead = { path: { id: order.lead } };
  const contact = { path: { id: order.contact } };
  const client = caller(order.key);

  const found = await getLead({ ...lead, client });
  if (!found.data) throw new Error(JSON.stringify(found.error));
  show("200", found.response.status, found.data.events[0]?.event_timezone, found.data.stage);
  const tag = found.response.headers.get("ETag") ?? "";
  const again = await getLead({ ...lead, client, headers: { "If-None-Match": tag } });
  show("304", again.response.status, "");
  show("contact", (await getContact({ ...contact, client })).response.status);

  const error = async (name: string, answer: Promise<{ response: Response; error?: unknown }>) => {
    const { response, error: body } = await answer;
    show(name, response.status, (body as ErrorBody).error);
  };
  await error("404", getLead({ ...contact, client }));
  await error("401", getLead({ ...lead, client: caller() }));
  await error("403", getLead({ ...lead, client: caller(order.disabled) }));

  const limited = caller(order.limited);
  let refused = await getLead({ ...lead, client: limited });
  while (refused.response.status !== 429) refused = await getLead({ ...lead, client: limited });
  const body = refused.error as RateLimitError;
  show("429", refused.response.status, body.error, body.violated_policies);
  await setTimeout(body.retry_after * 1000);
  show("retry", (await getLead({ ...lead, client: limited })).response.status);

  const away = await getLead({ ...lead, client: caller(order.key, order.away) });
  const unavailable = away.error as RetryableError;
  show("503", away.response.status, unavailable.error, unavailable.retry_after > 0);
}

void main(JSON.parse(process.argv[2] ?? "{}") as Order);
