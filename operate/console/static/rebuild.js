// Generations side by side, how far a replay is, and what operators have done.

import { badge, byId, count, duration, fill, h, milliseconds, prose } from "./view.js";

const STATES = {
  live: ["well", "live: it is served"],
  former: ["plain", "former: a rollback returns to it"],
  filling: ["waits", "filling"],
  "filling, unattended": ["wrong", "not being filled"],
  "complete, unattended": ["wrong", "not written any more"],
  complete: ["well", "complete: may be promoted"],
  kept: ["plain", "kept"],
  dropping: ["waits", "dropping"],
};

export function showRebuild(picture) {
  const { status, replay } = picture;
  fill(byId("generations"), ...status.generations.map((generation) => card(generation, status)));
  byId("replay-bar").hidden = !replay;
  fill(byId("replay"), ...prose(replay ? progress(replay) : idle(status)));
  if (replay) byId("replay-bar").value = replay.total ? replay.done / replay.total : 0;
  const acts = picture.history.map((act) => h("li", {}, sentence(act)));
  fill(byId("history"), ...(acts.length ? acts : [h("li", {}, "Nobody has done anything yet.")]));
}

function sentence(act) {
  const chosen = Object.entries(act.chosen).map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`);
  const words = [act.verb, ...act.arguments, ...(chosen.length ? [`(${chosen.join(", ")})`] : [])].join(" ");
  const ended = act.reason ? `${act.outcome}: ${act.reason}` : act.outcome;
  return `${act.time} ${act.by}: ${words}: ${ended}`;
}

function idle(status) {
  if (!status.generations.length)
    return status.redis_used_memory === null
      ? "Not known: Redis cannot be read."
      : "There is no generation: Redis is empty.";
  if (status.rebuild_due)
    return "A rebuild is due: this program has a newer mapping than the generation that is served. Run `rebuild`.";
  return "No rebuild is under way.";
}

function progress(replay) {
  if (!replay.total && replay.processes) return `Generation ${replay.generation} is being prepared: its targets are not known yet.`;
  const share = Math.floor((replay.done / replay.total) * 100);
  const left = replay.left === null ? "" : `, about ${duration(replay.left)} left`;
  const throttle =
    replay.latency === null
      ? "The API answers nobody, so it runs at full speed."
      : `The p99 of the API is ${milliseconds(replay.latency)}: above the limit given to the rebuild, it pauses.`;
  const records = `${share}%, ${count(replay.done)} of ${count(replay.total)} records`;
  const pace = replay.processes ? ` ${throttle}` : "";
  if (!replay.processes) return `No rebuild is running. Generation ${replay.generation} was filled as far as ${records}.`;
  return `Generation ${replay.generation} is being filled: ${records}${left}.${pace}`;
}

function card(generation, status) {
  const unattended = generation.unattended ? `${generation.state}, unattended` : generation.state;
  const [state, words] = STATES[unattended] ?? ["plain", generation.state];
  const written = status.writing.includes(generation.number) && unattended !== "complete, unattended";
  const fact = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));
  return h(
    "li",
    { class: `generation ${generation.state}` },
    h("h3", {}, `Generation ${generation.number}`),
    badge(state, words),
    generation.unattended ? h("p", {}, ...prose(`${generation.unattended}.`)) : null,
    h(
      "dl",
      {},
      fact("mapping version", generation.mapping ?? "-"),
      fact("started", generation.created_at ?? "-"),
      fact("verified by promote", generation.verified_at ?? "no"),
      fact("written by the projectors", written ? "yes" : "no"),
    ),
  );
}
