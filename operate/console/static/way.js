// The way of an event: Kafka, projectors, Redis, API, with figures.

import { badge, byId, clock, count, duration, fill, h, mebibytes, milliseconds, rate, say } from "./view.js";

const SVG = "http://www.w3.org/2000/svg";
const SOON_SECONDS = 10; // what has waited for less than this is simply being applied
const SHORT = 60; // characters of a problem in a part
const FAST = 50; // a second: the arrow moves no faster than at this rate

const figure = (name, value, state = "") =>
  h("div", { class: `figure ${state}` }, h("dt", {}, name), h("dd", {}, value));
const body = (id) => byId(`stage-${id}`).querySelector(".body");

export function showWay(picture) {
  const { status, topics, api } = picture;
  const down = picture.problems.some((said) => said.stops === "all");
  const wrong = (part) => picture.problems.filter((said) => said.where.includes(part));
  const published = total(topics.map((topic) => topic.published));
  const applied = total(topics.map((topic) => topic.applied));
  show("kafka", wrong("kafka"), (well) => kafka(status, topics, well));
  show("projectors", wrong("projectors"), (well) => projectors(status, down, well));
  show("redis", wrong("redis"), (well) => redis(picture, well));
  show("api", wrong("api"), (well) => theApi(picture, well));
  for (const part of ["kafka", "projectors", "redis"]) mark(part, !wrong(part).length);
  mark("api", !wrong("api").length && (!api || (api.unread === "" && failing(api) === 0)));
  arrow("kafka", published, "published", topics.length === 0);
  arrow("projectors", applied, "applied", down);
  const inPart = status.incomplete_shards > 0 && status.incomplete_shards < picture.shards;
  arrow("redis", api ? api.requests : null, "requests", status.generation === null && !inPart);
  fill(byId("partitions").querySelector("tbody"), ...status.partitions.map(partition));
}

// Nothing in a part is green while it has a problem, whatever else works there: `parts` gets the state of badges that
// would be. The beginning of what says the problem is in the part as well.
function show(id, problems, parts) {
  const shown = parts(problems.length ? "plain" : "well").filter((each) => each !== null);
  const isSaid = shown.some((each) => each.matches(".badge.wrong") || each.querySelector(".badge.wrong"));
  fill(body(id), ...(isSaid ? [] : problems.map((said) => badge("wrong", beginning(said.what)))), ...shown);
}

// The verdict has all of it.
function beginning(text) {
  return text.length <= SHORT ? text : `${text.slice(0, text.lastIndexOf(" ", SHORT))} …`;
}

const total = (rates) => {
  const known = rates.filter((value) => value !== null);
  return known.length ? known.reduce((sum, value) => sum + value, 0) : null;
};

const failing = (api) =>
  total(
    Object.entries(api.answers)
      .filter(([status]) => status >= "500")
      .map(([, value]) => value),
  ) ?? 0;

function mark(id, well) {
  byId(`stage-${id}`).classList.toggle("wrong", !well);
}

function kafka(status, topics, well) {
  if (!topics.length) return [badge("wrong", "cannot be read")];
  const rows = topics.map((topic) => {
    const own = status.partitions.filter((partition) => partition.topic === topic.name);
    const lag = own.reduce((sum, partition) => sum + (partition.lag ?? 0), 0);
    const oldest = Math.max(0, ...own.map((partition) => partition.waiting_age ?? 0));
    const known = own.every((partition) => partition.lag !== null);
    const waits = !known
      ? badge("wrong", "lag unknown")
      : !lag
        ? badge(well, "all applied")
        : oldest < SOON_SECONDS
          ? badge("plain", `${count(lag)} being applied`)
          : badge("waits", `${count(lag)} waiting, the oldest for ${duration(oldest)}`);
    return h(
      "li",
      {},
      h("strong", {}, topic.name),
      topic.problem
        ? badge("wrong", topic.problem)
        : h(
            "span",
            { class: "quiet" },
            `${count(topic.partitions)} partition${topic.partitions === 1 ? "" : "s"} · ${rate(topic.published)}`,
          ),
      topic.problem ? null : waits,
    );
  });
  return [h("ul", { class: "rows" }, ...rows)];
}

// `down`: no line can apply anything, whatever the projectors say of their lines.
function projectors(status, down, well) {
  if (status.projectors === null) return [badge("wrong", "not known: Redis cannot be read")];
  const rows = status.writers.map((writer) => {
    const name = writer.role === "run" ? "projector" : writer.role;
    const lines = Object.entries(writer.lines).map(([line, state]) => {
      const word = state.split(": ")[0];
      if (!writer.alive) return badge("plain", `${line}: unknown`);
      if (word !== "running") return badge("wrong", `${line}: ${word}`);
      return down ? badge("waits", `${line}: waits`) : badge(well, `${line}: running`);
    });
    return h(
      "li",
      {},
      h("strong", {}, writer.id),
      h("span", { class: "quiet" }, `${name}, mapping ${writer.mapping_version}`),
      writer.alive ? null : badge("wrong", `silent for ${duration(writer.age)}`),
      h("span", { class: "badges" }, ...lines),
    );
  });
  const none = status.projectors === 0 ? [badge("wrong", "no projector is running")] : [];
  return [...none, h("ul", { class: "rows" }, ...rows)];
}

function redis(picture, well) {
  const { status, shards } = picture;
  if (status.redis_used_memory === null) return [badge("wrong", "cannot be read")];
  const limit = status.redis_max_memory;
  const share = limit ? status.redis_used_memory / limit : null;
  const memory = limit
    ? `${mebibytes(status.redis_used_memory)} of ${mebibytes(limit)} (${Math.round(share * 100)}%)`
    : mebibytes(status.redis_used_memory);
  const missing = status.incomplete_shards ?? 0;
  const complete =
    shards === null
      ? badge("wrong", "empty")
      : missing
        ? badge("wrong", shards === 1 ? "not complete" : `${missing} of ${shards} shards not complete`)
        : badge(well, shards === 1 ? "complete" : `all ${shards} shards complete`);
  return [
    complete,
    h(
      "dl",
      {},
      figure(
        "generation served",
        missing && missing < shards ? "in a part" : (status.generation ?? "none"),
        status.generation === null ? "bad" : "",
      ),
      figure("data as of", status.data_as_of ? clock(Date.parse(status.data_as_of) / 1000, true) : "unknown"),
      figure("dead letters", count(status.dead_letters)),
      figure(limit ? "memory" : "memory, no limit", memory, share !== null && share > 0.98 ? "bad" : ""),
    ),
    share === null
      ? null
      : h("meter", { min: 0, max: 1, high: 0.8, value: Math.min(share, 1).toFixed(3), "aria-label": "memory in use" }),
  ];
}

const CAUSES = {
  400: "bad id or request",
  401: "no valid key",
  403: "no API access",
  404: "not found",
  429: "limit used up",
  500: "defect",
  503: "not available",
};

// What the workers say of themselves. Without their metrics, nobody has asked them.
function serves(api, well) {
  if (!api) return badge("plain", "not asked");
  if (api.ready_workers === 0) return badge("wrong", "answers 503 to all: no worker is ready");
  if (api.workers !== null && api.ready_workers < api.workers)
    return badge("wrong", `${api.workers - api.ready_workers} of ${api.workers} workers answer 503`);
  return api.unavailable > 0 ? badge("wrong", `answers 503: ${rate(api.unavailable)}`) : badge(well, "serves");
}

function theApi({ status, api, shards }, well) {
  const missing = status.incomplete_shards ?? 0;
  const served =
    status.generation !== null
      ? serves(api, well)
      : status.redis_used_memory === null
        ? badge("wrong", "not known: Redis cannot be read")
        : missing && missing < shards
          ? badge("wrong", `answers 503 for the organizations of ${missing} of ${shards} shards`)
          : badge("wrong", "answers 503 to all: nothing complete to serve");
  if (!api)
    return [
      served,
      h("p", { class: "quiet" }, "Start the console with --api-metrics to see whether it serves, requests, refusals and latency."),
    ];
  if (api.unread) return [badge("wrong", api.unread)];
  const bad = Object.entries(api.answers).filter(([answer, value]) => answer >= "400" && value > 0);
  return [
    served,
    h(
      "dl",
      {},
      figure("requests, last seconds", rate(api.requests)),
      ...bad.map(([answer, value]) =>
        figure(`${answer} ${CAUSES[answer] ?? ""}`.trim(), rate(value), answer >= "500" ? "bad" : ""),
      ),
      figure("latency, median", milliseconds(api.p50)),
      figure("latency, p99", milliseconds(api.p99)),
      figure(
        "workers ready",
        api.workers === null ? count(api.ready_workers) : `${count(api.ready_workers)} of ${count(api.workers)}`,
        api.ready_workers < (api.workers ?? 1) ? "bad" : "",
      ),
    ),
  ];
}

// An arrow is drawn once. Its dashes move while something flows, unless somebody prefers less motion.
function arrow(id, flow, name, broken) {
  const element = byId(`arrow-${id}`);
  if (!element.firstChild) {
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", "0 0 64 24");
    for (const [kind, path] of [
      ["track", "M2 12H54"],
      ["flow", "M2 12H54"],
      ["head", "M50 5l10 7-10 7"],
    ]) {
      const line = document.createElementNS(SVG, "path");
      line.setAttribute("d", path);
      line.setAttribute("class", kind);
      svg.append(line);
    }
    element.append(svg, h("span", { class: "label" }));
  }
  element.classList.toggle("flows", !broken && flow > 0);
  element.classList.toggle("broken", broken);
  const seconds = flow > 0 ? Math.max(0.4, 2 - (1.6 * Math.log1p(Math.min(flow, FAST))) / Math.log1p(FAST)) : 2;
  element.style.setProperty("--pace", `${seconds.toFixed(1)}s`);
  say(element.querySelector(".label"), broken ? "✕ stopped" : flow === null ? "" : `${rate(flow)} ${name}`);
}

function partition(at) {
  const cell = (text) => h("td", {}, text);
  return h(
    "tr",
    {},
    h("th", { scope: "row" }, at.topic),
    cell(count(at.partition)),
    cell(at.position === null ? "-" : count(at.position)),
    cell(at.head === null ? "-" : count(at.head)),
    cell(at.lag === null ? "-" : count(at.lag)),
    cell(at.waiting_age === null ? "-" : duration(at.waiting_age)),
    cell(at.newest_event_age === null ? "-" : `${duration(at.newest_event_age)} ago`),
  );
}
