// Opens pages in Chromium, as a reader does: `node look.mjs '<order in JSON>'`. Prints what happened, in JSON.
//
// order: chromium      the path of the browser
//        pages         URLs
//        width, dark   of the screen, and the reader's choice of colours
//        offline       whether the network is away
//        screenshots   a folder, or null
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
for (const url of order.pages) {
  await page.goto(url);
  if (url.endsWith("/api.html")) await page.getByRole("heading", { name: "Retries" }).waitFor();
  // A page that is wider than the screen has to be moved sideways to be read.
  if (await page.evaluate(() => document.documentElement.scrollWidth > innerWidth)) wide.push(url);
  if (order.screenshots) {
    const name = `${basename(url, ".html")}-${order.width}-${order.dark ? "dark" : "light"}.png`;
    await page.screenshot({ path: join(order.screenshots, name) });
  }
}
const tried = order.key ? await tryIt() : null;
console.log(JSON.stringify({ requests, problems, wide, tried }));
await browser.close();

async function tryIt() {
  await page.getByText("Read one lead").first().click();
  await page.getByRole("button", { name: "Test Request" }).first().click();
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
