// The charts of the last two minutes, of all models or of one, and their readings as a table.

import { Chart, logarithmic, whole } from "./charts.js";
import { byId, element, offer } from "./dom.js";
import { brief } from "./figures.js";

const READINGS = [
  ["Answered/s", "answered"], ["Failed/s", "failed"], ["p50 ms", "p50"], ["p95 ms", "p95"], ["p99 ms", "p99"],
  ["Queue ms", "queue"], ["Compute ms", "compute"], ["Rows waiting", "waiting"],
  ["Mean batch", "rows"], ["Largest batch", "largest"],
];
const LISTED = 12;

export class Traffic {
  constructor() {
    const percentiles = ["p50", "p95", "p99"].map((name) => [name, name]);
    const stages = ["compute", "queue"].map((name) => [name, name]);
    this.charts = [
      new Chart("Requests", "HTTP and gRPC together", "a second", [["answered", "answered"], ["failed", "failed"]]),
      new Chart("Latency", "In the server, over 5 seconds; a log scale", "ms", percentiles, logarithmic),
      new Chart("Waiting and computing", "Medians of the last 5 seconds", "ms", stages),
      new Chart("Queue", "Rows that wait for an instance right now", "rows", [["waiting", "waiting"]], whole),
      new Chart("Batches", "Of each second", "rows each", [["rows", "mean"], ["largest", "largest"]], whole),
    ];
    const about = "Batches of the last two minutes by their rows";
    this.sizes = new Chart("Batch sizes", about, "batches", [["", "most often"]], whole);
    byId("charts").append(...[...this.charts, this.sizes].map((chart) => chart.node));
  }

  show({ models }) {
    offer(byId("watched"), [["", "all models"], ...models.map(({ name }) => [name, name])]);
  }

  /** Draw what the looks tell. */
  update(looks, bounds) {
    const name = byId("watched").value;
    const now_s = looks.held.at(-1)?.now_s ?? 0;
    const points = looks.points(name, bounds);
    for (const chart of this.charts) chart.lines(points, now_s);
    this.sizes.bars(looks.sizes(name));
    if (byId("readings").open) this.list(points, now_s);
  }

  list(points, now_s) {
    const titles = ["Seconds ago", ...READINGS.map(([title]) => title)];
    const head = titles.map((title) => element("th", { scope: "col" }, title));
    const rows = points.slice(-LISTED).reverse().map((point) =>
      element("tr", null,
        element("th", { scope: "row" }, Math.round(now_s - point.at_s)),
        ...READINGS.map(([, field]) => element("td", null, brief(point[field])))));
    byId("readings").lastElementChild.replaceChildren(
      element("table", null, element("thead", null, element("tr", null, ...head)), element("tbody", null, ...rows)));
  }
}
