// Shows the samples that follow each other as tabs. Without JavaScript they stand one below the other.
const STORED = "leadview-language";

function choose(language) {
  for (const tab of document.querySelectorAll("[role=tab]")) {
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
  if (first.previousElementSibling?.dataset.language) continue;
  const tabs = document.createElement("div");
  tabs.className = "tabs";
  tabs.setAttribute("role", "tablist");
  first.before(tabs);
  for (let sample = first; sample?.dataset?.language; sample = sample.nextElementSibling) {
    const tab = document.createElement("button");
    tab.textContent = sample.dataset.language;
    tab.setAttribute("role", "tab");
    sample.id = `sample-${document.querySelectorAll("[role=tab]").length}`;
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
if (document.querySelector("[role=tab]")) choose(remembered() ?? "curl");
