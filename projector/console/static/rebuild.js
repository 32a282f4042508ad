// Generations side by side, how far a replay is, and what an operator may do.

import { ask } from "./server.js";
import { badge, byId, count, duration, fill, h, milliseconds, prose, say } from "./view.js";

const ABOUT = {
  compare: ["Compare", "Compares every document with the one that is served. It takes a while, and changes nothing."],
  promote: [
    "Promote",
    "Compares it with the generation that is served, and serves it if nothing differs. A rollback returns.",
  ],
  rollback: ["Roll back", "Serves this generation again."],
  drop: ["Drop", "Deletes all of its documents. That cannot be undone."],
};
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

const verbs = (state) =>
  ({ complete: ["compare", "promote", "drop"], former: ["rollback", "drop"], filling: ["drop"], kept: ["drop"] })[
    state
  ] ?? [];

export function showRebuild(picture, hello) {
  const { status, replay, action } = picture;
  const busy = action?.state === "under way";
  fill(byId("generations"), ...status.generations.map((generation) => card(generation, status, hello, busy)));
  byId("replay-bar").hidden = !replay;
  fill(byId("replay"), ...prose(replay ? progress(replay) : idle(status)));
  if (replay) byId("replay-bar").value = replay.total ? replay.done / replay.total : 0;
  fill(byId("action"), ...(action ? outcome(action) : []));
  const acts = picture.history.map((act) => h("li", {}, sentence(act)));
  fill(byId("history"), ...(acts.length ? acts : [h("li", {}, "Nobody has done anything yet.")]));
}

function sentence(act) {
  const words = [act.verb, ...act.arguments].join(" ");
  const ended = act.reason ? `${act.outcome}: ${act.reason}` : act.outcome;
  return `${new Date(act.time).toLocaleString()} ${act.by}: ${words} (${ended})`;
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

function card(generation, status, hello, busy) {
  const unattended = generation.unattended ? `${generation.state}, unattended` : generation.state;
  const [state, words] = STATES[unattended] ?? ["plain", generation.state];
  const written = status.writing.includes(generation.number) && unattended !== "complete, unattended";
  const fact = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));
  const buttons = hello.actions
    ? verbs(generation.state).map((verb) => {
        const button = h(
          "button",
          { type: "button", disabled: busy, "data-verb": verb, "data-generation": generation.number },
          `${ABOUT[verb][0]} ${generation.number}`,
        );
        return button;
      })
    : [];
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
      fact("verified", generation.verified_at ?? "not yet"),
      fact("written by the projectors", written ? "yes" : "no"),
    ),
    buttons.length ? h("div", { class: "row" }, ...buttons) : null,
  );
}

function outcome(action) {
  const at = new Date(action.at).toLocaleTimeString();
  const [name] = ABOUT[action.verb];
  const state = { "under way": "waits", done: "well", refused: "wrong" }[action.state];
  const parts = [
    h("p", {}, badge(state, action.state), ` ${name} ${action.generation}, by ${action.who} at ${at}. `, action.text),
  ];
  const fields = Object.entries(action.by_field);
  if (fields.length) {
    parts.push(
      h(
        "table",
        {},
        h("caption", {}, "Documents that differ, by field"),
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "field"), h("th", { scope: "col" }, "documents"))),
        h(
          "tbody",
          {},
          ...fields
            .sort((one, other) => other[1] - one[1])
            .map(([field, number]) => h("tr", {}, h("th", { scope: "row" }, field), h("td", {}, count(number)))),
        ),
      ),
    );
  }
  return parts;
}

let wanted = null;
const dialog = byId("confirm");
const typed = byId("confirm-number");

byId("generations").addEventListener("click", (event) => {
  const button = event.target.closest("button[data-verb]");
  if (!button) return;
  wanted = { verb: button.dataset.verb, generation: Number(button.dataset.generation) };
  const [name, about] = ABOUT[wanted.verb];
  say(byId("confirm-title"), `${name} generation ${wanted.generation}?`);
  say(byId("confirm-text"), about);
  typed.value = "";
  byId("confirm-yes").disabled = true;
  dialog.showModal();
});
typed.addEventListener("input", () => {
  byId("confirm-yes").disabled = typed.value.trim() !== String(wanted.generation);
});
byId("confirm-no").addEventListener("click", () => dialog.close("no"));
dialog.addEventListener("close", async () => {
  if (dialog.returnValue !== "yes") return;
  dialog.returnValue = "";
  try {
    await ask("/api/act", { verb: wanted.verb, generation: Number(typed.value.trim()) });
  } catch (error) {
    fill(byId("action"), badge("wrong", error.message));
  }
});
