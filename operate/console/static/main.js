// The page: hears the pictures of the server, and hands each to the sections.

import { listen } from "./server.js";
import { byId, clock, commandLine, duration, fill, h, pageLink, prose, say } from "./view.js";
import { showWay } from "./way.js";
import { addPoint, redrawLines, showHistory } from "./lines.js";
import { startFind } from "./find.js";
import { showRebuild } from "./rebuild.js";

const OLD_SECONDS = 10;
const LONG = 140; // characters of a verdict, above which it is written smaller

let hello = {};
let heardAt = null;
let why = "connecting";

// The verdict says what to do about a single problem: then only more about it is left to say.
function finding(said, alone) {
  const first = alone ? [] : [h("strong", {}, ...prose(said.what)), ...prose(`: ${said.advice}. `)];
  const more = said.detail ? prose(`${said.detail} `) : [];
  return h("li", {}, ...first, ...more, said.command ? commandLine(said.command) : null, pageLink(said.page));
}

function showVerdict(picture) {
  const { status, problems, notes } = picture;
  byId("verdict").className = `verdict ${status.well ? "well" : "wrong"}`;
  const sign = h("span", { class: "sign", "aria-hidden": "true" }, status.well ? "✓ " : "✕ ");
  const words = status.verdict;
  fill(byId("verdict-text"), sign, ...prose(words));
  byId("verdict-text").classList.toggle("long", words.length > LONG);
  fill(byId("problems"), ...problems.map((said) => finding(said, problems.length === 1)));
  fill(byId("notes"), ...notes.map((said) => finding(said, false)));
  document.title = `${status.well ? "✓" : "✕ not well"} Leadview console`;
}

function heard(event, data) {
  if (event === "hello") {
    if (hello.version && hello.version !== data.version) location.reload();
    hello = data;
    startFind();
  } else if (event === "history") {
    showHistory(data);
  } else {
    heardAt = performance.now();
    why = "";
    showVerdict(data);
    showWay(data);
    addPoint(data);
    showRebuild(data);
    showConnection();
    showTime(data.at); // last: what says when a picture was taken stands for the whole picture
  }
}

function lost(reason) {
  why = reason;
  showConnection();
}

// What is shown is never taken for the present when it is not.
function showConnection() {
  const age = heardAt === null ? null : (performance.now() - heardAt) / 1000;
  const old = age === null || age > OLD_SECONDS || why !== "";
  document.body.classList.toggle("old", old && age !== null);
  const who = hello.who && hello.who !== "local" ? ` as ${hello.who}` : "";
  const seen = age === null ? "" : `: what is below is ${duration(age)} old`;
  say(byId("connection"), old ? `✕ ${why || "no news"}${seen}` : `● live${who}`);
  byId("connection").className = `connection ${old ? "wrong" : "well"}`;
}

function showTime(at) {
  const time = byId("sampled");
  time.dateTime = new Date(at).toISOString();
  say(time, `as of ${clock(at / 1000, true)}`);
}

setInterval(showConnection, 1000);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawLines);
listen(heard, lost);
