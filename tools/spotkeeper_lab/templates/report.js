"use strict";
const day = JSON.parse(document.getElementById("day").textContent);
const charts = document.getElementById("charts");
const readout = document.getElementById("readout");
const LEFT = 40, RIGHT = 10, TOP = 14, BOTTOM = 22;
let view = [0, day.length_s];
const START = day.losses[0] ?? day.turns.availability.t[0] ?? 0;
let at = START;

const colour = (name) => `var(--${name})`;
const svg = (tag, attributes = {}, text = "") => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text) node.textContent = text;
  return node;
};
const clock = (seconds, precise = false) => {
  const all = Math.round(seconds) + day.clock_s;
  const part = (value) => String(value).padStart(2, "0");
  const days = Math.floor(all / 86400) - Math.floor(day.clock_s / 86400);
  if (days === 1 && all % 86400 === 0 && !precise) return "24:00";
  const time = `${part(Math.floor(all / 3600) % 24)}:${part(Math.floor(all / 60) % 60)}`;
  return (days ? `+${days}d ` : "") + time + (precise ? `:${part(all % 60)}` : "");
};
/** Index of the last entry of a rising list at or before a value; -1 before the first. */
const last = (list, value) => {
  let low = 0, high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle] <= value) low = middle + 1; else high = middle;
  }
  return low - 1;
};
const visible = (list) => {
  const first = Math.max(0, last(list, view[0]));
  return [first, Math.min(list.length, last(list, view[1]) + 2)];
};
const niceStep = (span, count) => {
  const rough = span / count, power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((n) => n * power).find((step) => step >= rough);
};
const TIME_STEPS = [10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800];

/** One chart: frame, grid and axes; `draw` gets the svg and both scales. */
function chart({ title, unit, height, top, legend, draw, marks = false, whole = false, log = null }) {
  const width = Math.max(260, charts.clientWidth);
  const x = (t) => LEFT + ((t - view[0]) / (view[1] - view[0])) * (width - LEFT - RIGHT);
  const inner = height - TOP - BOTTOM;
  const share = log ? (v) => Math.log10(Math.max(v, log) / log) / Math.log10(top / log) : (v) => v / top;
  const y = (v) => TOP + inner * (1 - Math.min(1, share(v)));
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": `${title} (${unit})` });
  const clip = `clip-${title.replace(/\W/g, "")}`;
  const box = svg("clipPath", { id: clip });
  box.append(svg("rect", { x: LEFT, y: 0, width: width - LEFT - RIGHT, height: height - BOTTOM + 1 }));
  picture.append(box);
  for (const value of log ? decades(log, top) : steps(top, whole ? Math.max(1, niceStep(top, 4)) : niceStep(top, 4))) {
    picture.append(svg("line", { class: "axis", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }));
    picture.append(svg("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, `${+value.toPrecision(6)}`));
  }
  const body = svg("g", { "clip-path": `url(#${clip})` });
  for (const [from, to] of day.bands) {
    body.append(svg("rect", { x: x(from), y: TOP, width: Math.max(1.5, x(to) - x(from)), height: inner, fill: colour("band") }));
  }
  picture.append(body);
  draw(body, x, y);
  timeAxis(picture, x, width, height);
  if (marks) lossMarks(body, x);
  picture.append(svg("line", { class: "cursor", y1: TOP - 8, y2: height - BOTTOM, visibility: "hidden" }));
  const box2 = document.createElement("div");
  box2.className = "chart";
  box2.innerHTML = `<h3></h3><ul class="legend"></ul>`;
  box2.querySelector("h3").textContent = `${title} (${unit})`;
  for (const [kind, name, text] of legend) {
    const item = document.createElement("li");
    const key = document.createElement("i");
    key.className = kind;
    if (kind === "mark") { key.textContent = "▼"; key.style.color = colour(name); }
    else if (kind === "rule") key.style.color = colour(name);
    else key.style.background = colour(name);
    item.append(key, text);
    box2.querySelector("ul").append(item);
  }
  box2.append(picture);
  charts.append(box2);
}
const mean = (list) => list.reduce((a, b) => a + b, 0) / list.length;
/** What is in view of columns over time, with neighbours put together where they would crowd. */
function thinned(times, columns) {
  const [first, stop] = visible(times);
  const room = Math.max(80, charts.clientWidth / 3);
  const together = Math.max(1, Math.ceil((stop - first) / room));
  const thin = { t: [] };
  for (const name of Object.keys(columns)) thin[name] = [];
  for (let n = first; n < stop; n += together) {
    thin.t.push(times[n]);
    for (const [name, [values, put]] of Object.entries(columns)) {
      const some = values.slice(n, Math.min(n + together, stop)).filter((value) => value !== null);
      thin[name].push(some.length ? put(some) : 0);
    }
  }
  return thin;
}
const highest = (list) => Math.max(...list);
const steps = (top, step) => Array.from({ length: Math.floor(top / step + 1e-9) + 1 }, (_, n) => n * step);
const decades = (low, top) => {
  const found = [];
  for (let value = low; value <= top * 1.001; value *= 10) found.push(value);
  return found;
};
function timeAxis(picture, x, width, height) {
  const most = Math.max(2, Math.floor((width - LEFT) / 70));
  const step = TIME_STEPS.find((s) => (view[1] - view[0]) / s <= most) ?? 86400 * 7;
  const first = Math.ceil((view[0] + day.clock_s) / step) * step - day.clock_s;
  for (let t = first; t <= view[1]; t += step) {
    picture.append(svg("line", { class: "axis", x1: x(t), x2: x(t), y1: height - BOTTOM, y2: height - BOTTOM + 4 }));
    const anchor = x(t) > width - 30 ? "end" : "middle";
    picture.append(svg("text", { x: x(t), y: height - 5, "text-anchor": anchor }, clock(t, step < 60)));
  }
}
/** The path of a step function, closed down to `base` where there is one. */
function path(times, values, x, y, base = null) {
  const [first, stop] = visible(times);
  if (stop <= first) return "";
  const points = [];
  const floor = [];
  for (let n = first; n < stop; n += 1) {
    const from = x(Math.max(times[n], view[0])).toFixed(1);
    const to = x(n + 1 < times.length ? Math.min(times[n + 1], view[1]) : view[1]).toFixed(1);
    if (+to < +from) continue;
    points.push(`${from},${y(values[n]).toFixed(1)} ${to},${y(values[n]).toFixed(1)}`);
    if (base) floor.unshift(`${to},${y(base[n]).toFixed(1)} ${from},${y(base[n]).toFixed(1)}`);
  }
  return base ? `M${points.join(" L")} L${floor.join(" L")} Z` : `M${points.join(" L")}`;
}
const area = (body, times, values, base, x, y, name) =>
  body.append(svg("path", { d: path(times, values, x, y, base), fill: colour(name) }));
const line = (body, times, values, x, y, name, width = 2) =>
  body.append(svg("path", { d: path(times, values, x, y), fill: "none", stroke: colour(name), "stroke-width": width, "stroke-linejoin": "round" }));

function lossMarks(body, x) {
  for (const t of day.losses) {
    if (t < view[0] || t > view[1]) continue;
    body.append(svg("path", { d: `M${x(t) - 4},2 h8 l-4,8 Z`, fill: colour("loss") }));
  }
}

function draw() {
  charts.replaceChildren();
  const { t, target, spot, on_demand: onDemand } = day.fleet;
  const zero = t.map(() => 0);
  const both = t.map((_, n) => spot[n] + onDemand[n]);
  const tall = Math.max(1, ...both, ...target);
  chart({
    title: "Fleet", unit: "instances serving", height: charts.clientWidth < 600 ? 220 : 280, top: tall + 0.4, marks: true, whole: true,
    legend: [["", "spot", "spot"], ["", "on-demand", "on-demand"], ["rule", "target", "target: what the spot group was asked for"],
      ["mark", "loss", "spot taken away"], ["", "band", "something was made to go wrong"]],
    draw: (body, x, y) => {
      area(body, t, spot, zero, x, y, "spot");
      area(body, t, both, spot, x, y, "on-demand");
      line(body, t, target, x, y, "target", 2);
    },
  });
  const pools = day.market;
  const most = pools.map((pool) => Math.max(1, ...pool.capacity));
  const total = most.reduce((a, b) => a + b, 0);
  chart({
    title: "Spot market", unit: "instances that AWS had to give, all zones", height: 130, top: total, whole: true,
    legend: [["", "spot", "capacity"], ["", "dry", "none anywhere"]],
    draw: (body, x, y) => {
      const { t: times, capacity } = day.market_total;
      area(body, times, capacity, times.map(() => 0), x, y, "spot");
      area(body, times, capacity.map((c) => (c ? 0 : total)), times.map(() => 0), x, y, "dry");
    },
  });
  const load = day.load;
  chart({
    title: "Load", unit: "workers", height: 150, top: Math.max(1, ...load.busy, ...load.workers, ...load.needed) * 1.05,
    legend: [["", "load", "busy, on average of a minute"], ["rule", "target", "taking requests"], ["rule", "wait", "needed to keep the promise"]],
    draw: (body, x, y) => {
      const shown = thinned(load.t, { busy: [load.busy, mean] });
      area(body, shown.t, shown.busy, shown.t.map(() => 0), x, y, "load");
      line(body, load.t, load.workers, x, y, "target", 1.5);
      line(body, load.t, load.needed, x, y, "wait", 1);
    },
  });
  const waits = day.waits;
  const longest = Math.max(100, ...waits.worst);
  chart({
    title: "Wait", unit: "seconds from arrival to start, per minute of arrival, logarithmic", height: 160,
    top: 10 ** Math.ceil(Math.log10(longest)), log: 0.1,
    legend: [["", "worst", "longest"], ["rule", "wait", "95th percentile of a minute"], ["rule", "loss", `promised: ${day.wait_objective_s} s`]],
    draw: (body, x, y) => {
      const shown = thinned(waits.t, { p95: [waits.p95, mean], worst: [waits.worst, highest] });
      area(body, shown.t, shown.worst, shown.t.map(() => 0.1), x, y, "worst");
      line(body, shown.t, shown.p95, x, y, "wait", 1.5);
      line(body, [0], [day.wait_objective_s], x, y, "loss", 1);
    },
  });
  point();
}

function describe(t) {
  const list = readout.querySelector("dl");
  const row = (name, text) => {
    const term = document.createElement("dt"), value = document.createElement("dd");
    term.textContent = name;
    value.textContent = text;
    list.append(term, value);
  };
  const n = Math.max(0, last(day.fleet.t, t)), f = day.fleet;
  row("fleet", `target ${f.target[n]}, serving ${f.spot[n]} spot + ${f.on_demand[n]} on demand`);
  const m = last(day.waits.t, t);
  if (m >= 0 && day.waits.p95[m] !== null) row("wait", `p95 ${day.waits.p95[m]} s, longest ${day.waits.worst[m]} s, busy ${day.load.busy[m]} workers`);
  for (const half of ["availability", "health"]) {
    const turns = day.turns[half], k = last(turns.t, t);
    if (k >= 0) row(half, `${clock(turns.t[k], true)} ${day.rules[turns.rule[k]]}: ${day.reasons[turns.reason[k]]}`);
  }
  for (const [from, to, text] of day.bands) if (from <= t && t <= to) row("made to fail", text);
}

function point() {
  for (const picture of charts.querySelectorAll("svg")) {
    const cursor = picture.querySelector(".cursor");
    const width = picture.viewBox.baseVal.width;
    const inside = at >= view[0] && at <= view[1];
    cursor.setAttribute("visibility", inside ? "visible" : "hidden");
    if (!inside) continue;
    const x = LEFT + ((at - view[0]) / (view[1] - view[0])) * (width - LEFT - RIGHT);
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
  }
  readout.innerHTML = "<b></b><dl></dl>";
  readout.querySelector("b").textContent = clock(at, true);
  describe(at);
}

function zoom(span) {
  const centre = at;
  const length = span && span < day.length_s ? span : day.length_s;
  const from = Math.max(0, Math.min(day.length_s - length, centre - length / 2));
  view = [from, from + length];
  for (const button of document.querySelectorAll(".zoom button")) {
    button.setAttribute("aria-pressed", String((+button.dataset.span || day.length_s) === length));
  }
  draw();
}

const allTurns = [...day.turns.availability.t, ...day.turns.health.t].sort((a, b) => a - b);
charts.addEventListener("pointermove", pick);
charts.addEventListener("pointerdown", pick);
function pick(event) {
  const picture = event.target.closest("svg");
  if (!picture) return;
  const box = picture.getBoundingClientRect();
  const share = (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
  at = view[0] + Math.max(0, Math.min(1, share)) * (view[1] - view[0]);
  point();
}
charts.addEventListener("keydown", (event) => {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!step) return;
  const here = last(allTurns, at);
  let next = here + step;
  while (allTurns[next] === at && allTurns[next + step] !== undefined) next += step;
  at = allTurns[Math.max(0, Math.min(allTurns.length - 1, next))] ?? 0;
  point();
  event.preventDefault();
});
for (const button of document.querySelectorAll(".zoom button")) {
  button.addEventListener("click", () => zoom(+button.dataset.span));
}
document.getElementById("moments")?.addEventListener("click", (event) => {
  const row = event.target.closest("tr[data-at]");
  if (!row) return;
  at = +row.dataset.at;
  zoom(3600);
  charts.scrollIntoView({ behavior: "smooth" });
});
addEventListener("resize", draw);
zoom(0);
