// Opens pages in Chromium, as a reader does: `node look.mjs '<order in JSON>'`. Prints what happened, in JSON.
//
// order: chromium      the path of the browser
//        pages         URLs
//        width, dark   of the screen, and the reader's choice of colours
//        offline       whether the network is away
//        screenshots   a folder, or null
//        copies        whether each button that copies is pressed
//        examples      whether the example of each operation is read; the pages must then lead to operations
//        words         what is searched for from the last page
//        key, id       null, or what is sent from the box to try the API; the last page must then be that of the API
import { basename, join } from "node:path";
import { createRequire } from "node:module";

// The packages are not beside this file, but in the folder where npm was run.
const { chromium } = createRequire(join(process.cwd(), "package.json"))("playwright-core");
const order = JSON.parse(process.argv[2]);
const browser = await chromium.launch({ executablePath: order.chromium, args: ["--no-sandbox"] });
const context = await browser.newContext({
  viewport: { width: order.width, height: 900 },
  colorScheme: order.dark ? "dark" : "light",
  offline: order.offline,
});
context.setDefaultTimeout(120_000);
const page = await context.newPage();
const requests = [];
const problems = [];
page.on("request", (request) => requests.push(request.url()));
page.on("pageerror", (error) => problems.push(`${page.url()}: ${error}`));
page.on("console", (message) => message.type() === "error" && problems.push(`${page.url()}: ${message.text()}`));

const wide = [];
const overlapping = [];
const lost = [];
const hidden = [];
const examples = [];
const copied = [];
if (order.copies) await context.grantPermissions(["clipboard-read", "clipboard-write"]);
for (const url of order.pages) {
  await page.goto("about:blank"); // else a link to another part of the same page would not open it anew
  await page.goto(url);
  if (url.includes("/api.html")) await page.getByRole("heading", { name: "Retries" }).waitFor();
  // A page that is wider than the screen has to be moved sideways to be read.
  if (await page.evaluate(() => document.documentElement.scrollWidth > innerWidth)) wide.push(url);
  for (const texts of await page.evaluate(overlaps)) overlapping.push([url, ...texts]);
  // Where a link leads to has to exist. The page of the API makes its parts itself, after it was opened.
  const anchor = decodeURIComponent(new URL(url).hash.slice(1));
  if (anchor && !(await page.waitForFunction((id) => document.getElementById(id), anchor).catch(() => null))) lost.push(url);
  for (const status of await page.evaluate(hiddenStatuses)) hidden.push([url, status]);
  if (order.examples) {
    const example = page.waitForFunction(exampleOf, anchor, { timeout: 20_000 });
    examples.push(await example.then((text) => text.jsonValue(), () => ""));
  }
  for (const button of order.copies ? await page.locator(".copy").all() : []) {
    await button.click();
    copied.push(await page.evaluate(() => navigator.clipboard.readText()));
  }
  if (order.screenshots) {
    const name = `${basename(url, ".html")}-${order.width}-${order.dark ? "dark" : "light"}.png`;
    await page.screenshot({ path: join(order.screenshots, name) });
  }
}
const found = [];
for (const words of order.words) found.push(await searched(words));
const tried = order.key ? await tryIt() : null;
console.log(JSON.stringify({ requests, problems, wide, overlapping, lost, hidden, examples, copied, found, tried }));
await browser.close();

// Runs in the page. Returns the pairs of texts that are drawn over each other, or of which one is cut off where the other
// begins.
function overlaps() {
  const boxes = [];
  const nodes = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = nodes.nextNode(); node; node = nodes.nextNode()) {
    if (!node.data.trim() || !node.parentElement.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects()) {
      const seen = clipped(box, node.parentElement);
      // Letters do not fill their line, and lines may stand close: half of the height counts.
      const quarter = (seen.bottom - seen.top) / 4;
      if (seen.right - seen.left > 4 && quarter > 1) {
        boxes.push({ ...seen, top: seen.top + quarter, bottom: seen.bottom - quarter, node });
      }
    }
  }
  boxes.sort((one, other) => one.top - other.top);
  const found = [];
  boxes.forEach((one, index) => {
    for (const other of boxes.slice(index + 1)) {
      if (other.top >= one.bottom) break;
      if (other.node !== one.node && Math.min(one.right, other.right) - Math.max(one.left, other.left) > 2) {
        found.push([one.node.data.trim().slice(0, 60), other.node.data.trim().slice(0, 60)]);
      }
    }
  });
  return found;

  // Returns the part of a box that its ancestors show.
  function clipped({ left, top, right, bottom }, element) {
    for (let each = element; each && each !== document.body; each = each.parentElement) {
      const style = getComputedStyle(each);
      if (style.overflow === "visible" && style.clip === "auto") continue;
      const frame = each.getBoundingClientRect();
      // A text that is cut off without a sign counts with its whole width, unless it can be moved into view, or is only
      // there for screen readers, which is a frame of one pixel.
      if (style.overflowX !== "hidden" || style.textOverflow === "ellipsis" || frame.width < 4) {
        left = Math.max(left, frame.left);
        right = Math.min(right, frame.right);
      }
      top = Math.max(top, frame.top);
      bottom = Math.min(bottom, frame.bottom);
      if (style.position === "fixed") break;
    }
    return { left, top, right, bottom };
  }
}

// Runs in the page. Returns the statuses of an operation that nobody can press without moving them into view first.
function hiddenStatuses() {
  return [...document.querySelectorAll(".response-card [role=tab]")].flatMap((tab) => {
    tab.scrollIntoView({ block: "center" });
    const { left, right, top, bottom } = tab.getBoundingClientRect();
    const both = [left + 2, right - 2].map((x) => tab.contains(document.elementFromPoint(x, (top + bottom) / 2)));
    return both.every(Boolean) ? [] : [tab.textContent];
  });
}

// Runs in the page. Returns the example of an operation's answer, if a reader can see it.
function exampleOf(anchor) {
  const example = document.getElementById(anchor)?.querySelector(".response-card pre");
  return example?.checkVisibility() && example.textContent;
}

// Returns what the page shows for these words: the title and the target of each result.
async function searched(words) {
  await page.getByRole("searchbox", { name: "Search all pages" }).fill(words);
  const list = page.locator("#found li");
  await list.first().waitFor();
  return list.evaluateAll((items) => items.flatMap((item) => [...item.querySelectorAll("a")].map((link) => ({
    title: link.firstChild.data, href: link.href,
  }))));
}

async function tryIt() {
  await searched("Read one lead");
  await page.getByRole("link", { name: "GET /api/v1/ext/leads/{id}" }).click();
  await page.getByRole("region", { name: "Read one lead" }).getByRole("button", { name: "Test Request" }).first().click();
  const box = page.getByRole("dialog");
  await box.getByPlaceholder("Token").fill(order.key);
  const id = box.locator("[contenteditable=true]", { hasText: /^[0-9a-f-]{36}$/ }).first();
  await id.fill(order.id);
  const answered = page.waitForResponse((response) => response.url().endsWith(order.id) && response.request().method() === "GET");
  await box.getByRole("button", { name: /^Send/ }).first().click();
  const response = await answered;
  await box.getByText('"ACCEPTED"').first().waitFor();
  if (order.screenshots) await page.screenshot({ path: join(order.screenshots, "tried.png") });
  return { url: response.url(), status: response.status(), lead: await response.json() };
}
