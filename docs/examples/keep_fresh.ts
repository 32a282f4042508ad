// Keeps copies of leads fresh, and prints each change: `node keep_fresh.ts ID...`, with API and API_KEY set. Node.js 22.18
// runs it as it is; an older one needs a compiler: `npx tsx keep_fresh.ts ID...`.
//
// It prints 200 with the ETag of a copy, or 404 if there is no such lead, or no longer. The copies are in memory alone:
// store yours with their ETags.
//
// The first 60 leads are waited for (`Prefer: wait`): that costs nothing until they change, and then the answer comes at
// once. The others are asked for in turn with their ETags, which costs nothing as long as they stay the same.

const WAITING = 60; // all programs of an organization together have 64 places
const WAIT_SECONDS = 25; // many proxies end a request after 30
const PAUSE_SECONDS = Number(process.env.PAUSE_SECONDS ?? 5); // between two rounds over the leads that are not waited for
const TEMPORARY = [408, 429, 500, 502, 503, 504]; // 502 and 504 come from proxies on the way
const LONGEST_PAUSE_SECONDS = 30;

const sleep = (seconds: number) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));
const now = () => performance.now() / 1000;

class Copies {
  leads = new Map<string, unknown>(); // null: there is no such lead
  etags = new Map<string, string>();
  url: string;
  headers: Record<string, string>;
  quotaAt = 0; // when there is quota for the next request

  constructor(api: string, key: string) {
    this.url = `${api.replace(/\/+$/, "")}/api/v1/ext/leads`;
    this.headers = { Authorization: `Bearer ${key}` };
  }

  /** Ends only with an error: a key that is refused, for example. */
  async keepFresh(ids: string[]): Promise<void> {
    for (const id of ids) await this.refresh(id);
    const waits = ids.slice(0, WAITING).map((id) => this.waitFor(id));
    await Promise.all([...waits, this.askInTurn(ids.slice(WAITING))]);
  }

  async waitFor(id: string): Promise<void> {
    for (;;) {
      const response = await this.refresh(id, { Prefer: `wait=${WAIT_SECONDS}` });
      if (!response.headers.has("Preference-Applied")) await sleep(PAUSE_SECONDS); // all places were taken
    }
  }

  async askInTurn(ids: string[]): Promise<void> {
    for (;;) {
      await sleep(PAUSE_SECONDS);
      for (const id of ids) await this.refresh(id);
    }
  }

  /** Bring the copy of a lead up to date. Returns the response. */
  async refresh(id: string, prefer: Record<string, string> = {}): Promise<Response> {
    const etag = this.etags.get(id);
    const [response, body] = await this.get(`${this.url}/${id}`, {
      ...this.headers,
      ...prefer,
      ...(etag ? { "If-None-Match": etag } : {}),
    });
    if (response.status === 200) {
      this.leads.set(id, JSON.parse(body));
      this.etags.set(id, response.headers.get("ETag") ?? "");
      console.log(200, id, response.headers.get("ETag"));
    } else if (response.status === 404 && response.headers.has("Data-As-Of")) {
      this.etags.delete(id);
      if (this.leads.get(id) !== null) console.log(404, id);
      this.leads.set(id, null);
    } else if (response.status !== 304) {
      throw new Error(`${response.status}: ${body}`); // 401, 403 and a wrong path, for example: to ask again would not help
    }
    return response;
  }

  /** Returns the first response that is not temporary, and its body. */
  async get(url: string, headers: Record<string, string>): Promise<[Response, string]> {
    for (let failures = 0; ; failures++) {
      await sleep(Math.max(0, this.quotaAt - now()));
      let pause = Math.random() * Math.min(2 ** failures, LONGEST_PAUSE_SECONDS);
      let reason: string;
      try {
        const response = await fetch(url, { headers, signal: AbortSignal.timeout((WAIT_SECONDS + 10) * 1000) });
        const body = await response.text();
        if (!isTemporary(response)) {
          this.quotaAt = Math.max(this.quotaAt, now() + secondsWithoutQuota(response.headers.get("RateLimit") ?? ""));
          return [response, body];
        }
        pause = Number(response.headers.get("Retry-After") ?? pause);
        reason = String(response.status);
      } catch (error) {
        reason = String(error); // the connection broke, or nothing came in time
      }
      console.error(`${reason}: asking again in ${pause.toFixed(1)} s`);
      await sleep(pause);
    }
  }
}

/** Returns whether to ask again. A 404 without `RateLimit` is of a wrong path, not of a record. One of a record without
 * `Data-As-Of` comes while the service does not know how current its answer is. */
function isTemporary({ status, headers }: Response): boolean {
  return TEMPORARY.includes(status) || (status === 404 && headers.has("RateLimit") && !headers.has("Data-As-Of"));
}

/** Returns 0 while quota is left. `rateLimit` is like `"key";r=0;t=2, "organization";r=299;t=1`. */
function secondsWithoutQuota(rateLimit: string): number {
  const buckets = [...rateLimit.matchAll(/;r=(\d+);t=(\d+)/g)];
  return Math.max(0, ...buckets.filter(([, remaining]) => remaining === "0").map(([, , seconds]) => Number(seconds)));
}

const ids = process.argv.slice(2);
const { API, API_KEY } = process.env;
if (!API || !API_KEY || !ids.length) {
  console.error("usage: keep_fresh.ts ID..., with API and API_KEY set");
  process.exit(1);
}
new Copies(API, API_KEY).keepFresh(ids).catch((error: Error) => {
  console.error(error.message);
  process.exit(1);
});
