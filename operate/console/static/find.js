// "Where did my event go?"

import { fault, hash, looksLikeKey } from "./key.js";
import { ask } from "./server.js";
import { badge, byId, commandLine, fill, h, pageLink, prose } from "./view.js";

const WORDS = {
  well: "as it should be",
  wrong: "what follows from it", // the first answer that is wrong says the cause
  waits: "under way",
  plain: "for your information",
};
let started = false;
let asked = 0;

export function startFind() {
  if (started) return;
  started = true;
  const input = byId("find-text");
  input.addEventListener("input", () => {
    input.type = looksLikeKey(input.value) ? "password" : "text";
  });
  byId("find")
    .querySelector("form")
    .addEventListener("submit", (event) => {
      event.preventDefault();
      find(input);
    });
}

async function find(input) {
  const text = input.value.trim();
  if (!text) return input.focus();
  const number = ++asked;
  fill(byId("answers"), h("p", { class: "quiet" }, "Looking for it …"));
  let answers;
  try {
    answers = looksLikeKey(text) ? await ofKey(input, text) : await ask("/api/find", { text });
  } catch (error) {
    answers = [{ title: "no answer", verdict: error.message, state: "wrong", facts: [], events: [], documents: [] }];
  }
  const cause = answers.find((answer) => answer.state === "wrong");
  if (number !== asked) return;
  // The page that says more is named once, if it is that of several answers in a row.
  const page = (index) => (answers[index].page === answers[index - 1]?.page ? null : answers[index].page);
  fill(byId("answers"), ...answers.map((answer, index) => show(answer, answer === cause, page(index))));
}

async function ofKey(input, text) {
  input.value = "";
  input.type = "text";
  const key = text.replace(/^(authorization:\s*)?bearer\s+/i, "");
  const wrong = fault(key);
  if (wrong) {
    const verdict =
      "A request with this key is refused with 401 invalid_api_key (row 4 of the table of answers). " +
      `This is not a key of Leadview: ${wrong}. Redis is not even asked for it.`;
    const page = "runbook.md#why-is-a-key-refused";
    return [{ title: "API key", verdict, state: "wrong", page, facts: [], events: [], documents: [] }];
  }
  return ask("/api/find", { text: await hash(key) });
}

function show(answer, isCause, page) {
  return h(
    "article",
    { class: `answer ${answer.state}` },
    h("h3", {}, answer.title),
    h("p", { class: "say" }, badge(answer.state, isCause ? "here is the cause" : WORDS[answer.state]), " ", ...prose(answer.verdict)),
    answer.command ? commandLine(answer.command) : null,
    page ? h("p", {}, pageLink(page, "More about it")) : null,
    answer.facts.length
      ? h(
          "dl",
          { class: "facts" },
          ...answer.facts.map((fact) => h("div", {}, h("dt", {}, fact.name), h("dd", {}, fact.value))),
        )
      : null,
    answer.events.length ? events(answer.events, answer.title) : null,
    answer.note ? h("p", { class: "hint" }, ...prose(answer.note)) : null,
    ...answer.documents.map(({ title, value }) =>
      h(
        "details",
        {},
        h("summary", {}, title),
        h(
          "pre",
          { tabindex: "0", role: "region", "aria-label": `${title} of ${answer.title}` },
          JSON.stringify(value, null, 2),
        ),
      ),
    ),
  );
}

function events(list, title) {
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": `events of ${title}` },
    h(
      "table",
      {},
      h("caption", {}, "Its events in Kafka, the newest first"),
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          ...["record", "version", "time", "what became of it"].map((name) => h("th", { scope: "col" }, name)),
        ),
      ),
      h(
        "tbody",
        {},
        ...list.map((event) =>
          h(
            "tr",
            {},
            h("th", { scope: "row" }, event.record),
            h("td", {}, event.version ?? "-"),
            h("td", {}, event.time),
            h("td", {}, badge(event.state, event.outcome)),
          ),
        ),
      ),
    ),
  );
}
