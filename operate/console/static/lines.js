// The last 15 minutes as lines. The server keeps them; after a restart of it, this page still has its own.

import uPlot from "./vendor/uplot/uPlot.esm.js";
import { byId, clock, count, duration, h, mebibytes, milliseconds, rate, say } from "./view.js";

const SECONDS = 900;
const HEIGHT = 150;
const FIELDS = ["at", "published", "applied", "lag", "age", "requests", "refused", "failed", "p50", "p99", "memory"];
const DASHES = [[], [6, 4], [2, 3]];
const BORDERS = ["solid", "dashed", "dotted"];

const WHOLE = [
  1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6, 1e7, 1e8,
];
const CHARTS = [
  {
    title: "Events per second",
    show: rate,
    lines: [
      ["published", "published"],
      ["applied", "applied"],
    ],
  },
  { title: "Records that wait", show: count, steps: WHOLE, lines: [["lag", "waiting"]] },
  { title: "Age of the oldest that waits", show: duration, lines: [["age", "age"]] },
  {
    title: "Requests per second",
    api: true,
    show: rate,
    lines: [
      ["requests", "all"],
      ["refused", "refused (4xx)"],
      ["failed", "failed (5xx)"],
    ],
  },
  {
    title: "Latency of the API",
    api: true,
    show: milliseconds,
    none: "no request",
    lines: [
      ["p50", "median"],
      ["p99", "p99"],
    ],
  },
  { title: "Memory of Redis", show: mebibytes, lines: [["memory", "used"]] },
];

let points = [];
let charts = [];
let withApi = null;

export function showHistory(history) {
  const first = history.length ? history[0][0] : Infinity;
  points = [...points.filter((point) => point[0] < first), ...history];
  draw();
}

export function addPoint(picture) {
  const { status, topics, api } = picture;
  const sum = (name) => {
    const known = topics.map((topic) => topic[name]).filter((value) => value !== null);
    return known.length ? known.reduce((all, value) => all + value, 0) : null;
  };
  const answers = (digit) =>
    api && api.requests !== null
      ? Object.entries(api.answers)
          .filter(([answer]) => answer.startsWith(digit))
          .reduce((all, [, value]) => all + value, 0)
      : null;
  if (points.length && points.at(-1)[0] >= picture.at) return;
  points.push([
    picture.at,
    sum("published"),
    sum("applied"),
    status.lag,
    status.freshness,
    api?.requests ?? null,
    answers("4"),
    answers("5"),
    api?.p50 ?? null,
    api?.p99 ?? null,
    status.redis_used_memory,
  ]);
  while (points[0][0] < picture.at - SECONDS * 1000) points.shift();
  if (withApi !== (api !== null)) {
    withApi = api !== null;
    build();
  }
  draw();
}

export function redrawLines() {
  build();
  draw();
}

function column(name) {
  const at = FIELDS.indexOf(name);
  return points.map((point) => (name === "at" ? point[0] / 1000 : point[at]));
}

function build() {
  for (const each of charts) {
    each.watch.disconnect();
    each.plot.destroy();
  }
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const parent = document.querySelector("#lines .charts");
  parent.replaceChildren();
  charts = CHARTS.filter((chart) => withApi || !chart.api).map((chart) => make(chart, parent, colour));
}

function make(chart, parent, colour) {
  const inks = ["--line-1", "--line-2", "--line-3"].map(colour);
  const holder = h("div", { class: "plot", tabindex: "0", role: "img" });
  const box = h("figure", {}, h("figcaption", {}, chart.title), holder);
  parent.append(box);
  const axis = {
    stroke: colour("--muted"),
    grid: { stroke: colour("--rule"), width: 1 },
    ticks: { stroke: colour("--rule"), width: 1 },
    font: "12px system-ui, sans-serif",
  };
  const plot = new uPlot(
    {
      width: Math.max(200, holder.clientWidth),
      height: HEIGHT,
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "UTC"),
      padding: [8, 24, 0, 0],
      cursor: { sync: { key: "leadview" }, drag: { x: false, y: false }, points: { size: 7 } },
      scales: {
        x: {
          range: () => [(points.at(-1)?.[0] ?? Date.now()) / 1000 - SECONDS, (points.at(-1)?.[0] ?? Date.now()) / 1000],
        },
        y: { range: (_, __, most) => [0, Math.max((most ?? 0) * 1.1, chart.steps ? 4 : 1)] },
      },
      axes: [
        { ...axis, values: (_, times) => times.map((at) => clock(at, false)) },
        {
          ...axis,
          size: 70,
          ...(chart.steps ? { incrs: chart.steps } : {}),
          values: (_, values) => values.map((value) => chart.show(value)),
        },
      ],
      series: [
        { label: "time", value: (_, at) => (at == null ? "-" : clock(at, true)) },
        ...chart.lines.map(([, label], index) => ({
          label,
          stroke: inks[index],
          width: 2,
          dash: DASHES[index],
          points: { show: isAlone },
          spanGaps: false,
          value: (_, value, __, index) => (index == null ? "-" : reading(chart, value)),
        })),
      ],
      legend: { markers: { width: 2, dash: (_, index) => BORDERS[index - 1] } },
    },
    [[], ...chart.lines.map(() => [])],
    holder,
  );
  const watch = new ResizeObserver(() => plot.setSize({ width: Math.max(200, holder.clientWidth), height: HEIGHT }));
  watch.observe(holder);
  holder.addEventListener("keydown", (event) => move(event, plot, chart));
  return { chart, holder, plot, watch };
}

const reading = (chart, value) => (value == null ? (chart.none ?? "not known") : chart.show(value));

// A single point has no line that would show it.
const isAlone = (plot, series) => plot.data[series].filter((value) => value != null).length === 1;

function draw() {
  if (!charts.length) return;
  const times = column("at");
  for (const { chart, holder, plot } of charts) {
    plot.setData([times, ...chart.lines.map(([name]) => column(name))]);
    if (plot.cursor.idx == null || plot.cursor.left < 0) plot.setLegend({ idx: times.length - 1 });
    const parts = chart.lines.map(([name, label]) => summary(chart, column(name), label));
    const said = `${chart.title}: ${parts.join("; ")}`;
    if (holder.getAttribute("aria-label") !== said) holder.setAttribute("aria-label", said);
  }
}

function summary(chart, values, label) {
  const known = values.filter((value) => value != null);
  if (!known.length) return `${label} not known`;
  return `${label} now ${chart.show(known.at(-1))}, at most ${chart.show(Math.max(...known))}`;
}

// The arrow keys move the moment, in steps of ten points, with Shift of one; it is said for screen readers.
function move(event, plot, chart) {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!step || !points.length) return;
  event.preventDefault();
  const last = points.length - 1;
  const from = plot.cursor.left >= 0 && plot.cursor.idx != null ? plot.cursor.idx : last;
  const index = Math.min(last, Math.max(0, from + step * (event.shiftKey ? 1 : 10)));
  plot.setCursor({ left: plot.valToPos(points[index][0] / 1000, "x"), top: 10 }, true, true);
  const said = chart.lines.map(([name, label]) => {
    const value = points[index][FIELDS.indexOf(name)];
    return `${label} ${reading(chart, value)}`;
  });
  say(byId("moment"), `${clock(points[index][0] / 1000, true)}: ${said.join(", ")}`);
}
