// Shows the samples that follow each other as tabs. Without JavaScript they stand one below the other.
const STORED = "leadview-language";
const TABS = ".tabs [role=tab]"; // the renderer of the API's page has tabs of its own

function choose(language) {
  for (const tab of document.querySelectorAll(TABS)) {
    const chosen = tab.textContent === language;
    tab.setAttribute("aria-selected", chosen);
    document.getElementById(tab.getAttribute("aria-controls")).hidden = !chosen;
  }
}

function remembered() {
  try {
    return localStorage.getItem(STORED);
  } catch {
    return null; // the browser stores nothing for files
  }
}

for (const first of document.querySelectorAll(".sample[data-language]")) {
  if (first.previousElementSibling?.dataset.language || !first.nextElementSibling?.dataset.language) continue;
  const tabs = document.createElement("div");
  tabs.className = "tabs";
  tabs.setAttribute("role", "tablist");
  first.before(tabs);
  for (let sample = first; sample?.dataset?.language; sample = sample.nextElementSibling) {
    const tab = document.createElement("button");
    tab.textContent = sample.dataset.language;
    tab.setAttribute("role", "tab");
    sample.id = `sample-${document.querySelectorAll(TABS).length}`;
    tab.setAttribute("aria-controls", sample.id);
    tab.addEventListener("click", () => {
      choose(tab.textContent);
      try {
        localStorage.setItem(STORED, tab.textContent);
      } catch {
        // The choice lasts as long as this page.
      }
    });
    tabs.append(tab);
  }
}
if (document.querySelector(TABS)) choose(remembered() ?? "curl");

// Copies what a reader types: of a block with prompts, the commands behind them.
function typed(text) {
  const lines = text.trimEnd().split("\n");
  if (!lines.some((line) => line.startsWith("$ "))) return lines.join("\n");
  return lines
    .filter((line, place) => line.startsWith("$ ") || lines[place - 1]?.endsWith("\\"))
    .map((line) => line.replace(/^\$ /, ""))
    .join("\n");
}

for (const sample of document.querySelectorAll(".sample")) {
  const button = document.createElement("button");
  button.className = "copy";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(typed(sample.querySelector("code").textContent));
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
  if (navigator.clipboard) sample.append(button); // a page that came over http has none, but from this machine
}

// Searches all pages. What is needed for it is loaded when somebody begins to search.
const search = document.querySelector("[type=search]");
const found = document.getElementById("found");
const MOST = 12;
let index;

function loaded(name) {
  return new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = name;
    script.onload = resolve;
    script.onerror = () => reject(new Error(`${name} cannot be loaded`));
    document.head.append(script);
  });
}

// Names such as Data-As-Of, crm.leads and invalid_id are words; somebody may also look for a part of one.
const whole = (text) => text.toLowerCase().match(/[\p{L}\p{N}]+([-._]+[\p{L}\p{N}]+)*/gu) ?? [];
const parts = (text) => text.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? [];

async function indexed() {
  await Promise.all([loaded("search.js"), loaded("searched.js")]);
  const made = new MiniSearch({
    fields: ["title", "page", "text"],
    storeFields: ["title", "page", "href"],
    tokenize: (text) => [...new Set([...whole(text), ...parts(text)])],
    searchOptions: { boost: { title: 3 }, combineWith: "AND", prefix: true, tokenize: whole },
  });
  made.addAll(SEARCHED.map((part, id) => ({ id, ...part })));
  return made;
}

async function show() {
  index ??= indexed();
  const words = search.value;
  const results = (await index).search(words).slice(0, MOST);
  if (words !== search.value) return; // somebody has typed meanwhile
  const items = results.map(({ title, page, href }) => {
    const item = document.createElement("li");
    const link = document.createElement("a");
    const where = document.createElement("small");
    link.href = href;
    link.textContent = title;
    where.textContent = page;
    link.append(where);
    item.append(link);
    return item;
  });
  if (!items.length && words.trim()) {
    const item = document.createElement("li");
    item.textContent = "Nothing was found.";
    items.push(item);
  }
  found.replaceChildren(...items);
}

search.addEventListener("input", show);
found.addEventListener("click", () => found.replaceChildren());
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    search.value = "";
    found.replaceChildren();
  } else if (event.key === "/" && !event.target.closest("input, textarea, [contenteditable]")) {
    event.preventDefault();
    search.focus();
  }
});
