// Asks the console's server. The token, if one is needed, is kept in this tab only, and is never a cookie.

import { byId } from "./view.js";

const KEY = "leadview-token";
const RETRY_MS = 1000;

function headers(more = {}) {
  const token = sessionStorage.getItem(KEY);
  return { "X-Leadview-Console": "page", ...(token ? { Authorization: `Bearer ${token}` } : {}), ...more };
}

// Returns the answer as JSON. Throws an Error whose message says what is wrong.
export async function ask(path, question) {
  let response;
  try {
    response = await fetch(path, {
      method: "POST",
      headers: headers({ "Content-Type": "application/json" }),
      body: JSON.stringify(question),
    });
  } catch {
    throw new Error("The console does not answer. Is it still running?");
  }
  const answer = await response.json().catch(() => ({ message: `The console answered with ${response.status}.` }));
  if (!response.ok) throw new Error(answer.message);
  return answer;
}

// Calls `heard` with each event of the stream, and `lost` when the stream has ended; connects again for ever.
export async function listen(heard, lost) {
  for (;;) {
    try {
      const response = await fetch("/api/events", { headers: headers(), cache: "no-store" });
      if (response.status === 401) {
        await login(Boolean(sessionStorage.getItem(KEY)));
        continue;
      }
      if (!response.ok) throw new Error((await response.json()).message);
      await read(response.body.pipeThrough(new TextDecoderStream()).getReader(), heard);
      lost("the console has ended");
    } catch (error) {
      lost(error instanceof TypeError ? "the console does not answer" : error.message);
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

async function read(reader, heard) {
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
      const [event, data] = text.slice(0, end).split("\n");
      text = text.slice(end + 2);
      heard(event.slice("event: ".length), JSON.parse(data.slice("data: ".length)));
    }
  }
}

function login(again) {
  const dialog = byId("login");
  if (again)
    byId("login-text").textContent =
      "This token is not known. The file that was given to the console has those that are.";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener(
      "close",
      () => {
        const input = byId("login-token");
        sessionStorage.setItem(KEY, input.value.trim());
        input.value = "";
        resolve();
      },
      { once: true },
    );
  });
}
