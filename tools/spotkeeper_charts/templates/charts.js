"use strict";
const LEFT = 40, RIGHT = 10, TOP = 14, BOTTOM = 22;
const TIME_STEPS = [10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];
const SPANS = [[604800, "7 d"], [86400, "1 d"], [14400, "4 h"], [3600, "1 h"], [900, "15 min"]];
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

const colour = (name) => `var(--${name})`;
const mean = (list) => list.reduce((a, b) => a + b, 0) / list.length;
const highest = (list) => list.reduce((a, b) => Math.max(a, b), -Infinity);
const svg = (tag, attributes = {}, text = "") => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text) node.textContent = text;
  return node;
};
const made = (tag, text = "", name = "") => {
  const node = document.createElement(tag);
  node.textContent = text;
  node.className = name;
  return node;
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
const niceStep = (span, count) => {
  const rough = span / count, power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((n) => n * power).find((step) => step >= rough * (1 - 1e-9));
};
const steps = (top, step) => Array.from({ length: Math.floor(top / step + 1e-9) + 1 }, (_, n) => n * step);
const number = (value) => `${+value.toPrecision(4)}`;

/** Charts that share a time axis, a cursor and a zoom. */
function timeline(section) {
  const data = JSON.parse(section.querySelector("script").textContent);
  const box = section.querySelector(".charts"), readout = section.querySelector(".readout");
  const noted = [...new Set(data.notes.flatMap((notes) => notes.t))].sort((a, b) => a - b);
  let view = [0, data.length_s], at = data.start_at;

  const clock = (seconds, precise = false) => {
    const all = Math.round(seconds) + (data.clock_s ?? 0);
    const part = (value) => String(value).padStart(2, "0");
    if (data.clock_s === null) return all % 3600 || precise ? `${Math.floor(all / 3600)}:${part(Math.floor(all / 60) % 60)}` : `${all / 3600} h`;
    const days = Math.floor(all / 86400) - Math.floor(data.clock_s / 86400);
    const time = `${part(Math.floor(all / 3600) % 24)}:${part(Math.floor(all / 60) % 60)}`;
    if (data.date) {
      const day = new Date(Date.parse(data.date) + days * 864e5);
      const name = `${MONTHS[day.getUTCMonth()]} ${day.getUTCDate()}`;
      if (precise) return `${name} ${time}:${part(all % 60)}`;
      return all % 86400 ? time : name;
    }
    if (days === 1 && all % 86400 === 0 && !precise) return "24:00";
    return (days ? `+${days}d ` : "") + time + (precise ? `:${part(all % 60)}` : "");
  };
  const visible = (list) => [Math.max(0, last(list, view[0])), Math.min(list.length, last(list, view[1]) + 2)];

  /** A series with neighbours put together where they would crowd. */
  const shown = (series, width) => {
    const put = { mean, highest }[series.crowded];
    if (!put) return series;
    const [first, stop] = visible(series.t);
    const together = Math.max(1, Math.ceil((stop - first) / Math.max(80, width / 3)));
    const t = [], values = [];
    for (let n = first; n < stop; n += together) {
      const some = series.values.slice(n, Math.min(n + together, stop)).filter((value) => value !== null);
      t.push(series.t[n]);
      values.push(some.length ? put(some) : null);
    }
    return { ...series, t, values };
  };
  /** The path of a step function; an area is closed down to its base. Nulls are gaps. */
  const path = ({ t, values, base, kind }, x, y) => {
    const [first, stop] = visible(t);
    const parts = [];
    let upper = [], lower = [];
    const end = () => {
      if (upper.length) parts.push(kind === "area" ? `M${upper.join(" L")} L${lower.join(" L")} Z` : `M${upper.join(" L")}`);
      upper = []; lower = [];
    };
    for (let n = first; n < stop; n += 1) {
      if (values[n] === null) { end(); continue; }
      const from = x(Math.max(t[n], view[0])).toFixed(1);
      const to = x(n + 1 < t.length ? Math.min(t[n + 1], view[1]) : view[1]).toFixed(1);
      if (+to < +from) continue;
      upper.push(`${from},${y(values[n]).toFixed(1)} ${to},${y(values[n]).toFixed(1)}`);
      const floor = y(base ? base[n] : 0).toFixed(1);
      lower.unshift(`${to},${floor} ${from},${floor}`);
    }
    end();
    return parts.join(" ");
  };
  const timeAxis = (picture, x, width, height) => {
    const most = Math.max(2, Math.floor((width - LEFT) / 70));
    const step = TIME_STEPS.find((s) => (view[1] - view[0]) / s <= most) ?? 2592000;
    const offset = data.clock_s ?? 0;
    for (let t = Math.ceil((view[0] + offset) / step) * step - offset; t <= view[1]; t += step) {
      picture.append(svg("line", { class: "axis", x1: x(t), x2: x(t), y1: height - BOTTOM, y2: height - BOTTOM + 4 }));
      const anchor = x(t) > width - 30 ? "end" : "middle";
      picture.append(svg("text", { x: x(t), y: height - 5, "text-anchor": anchor }, clock(t, step < 60)));
    }
  };
  /** What the colours of charts mean, each only once. */
  const legend = (list, charts) => {
    const known = new Set();
    const add = (kind, name, text) => {
      if (known.has(text)) return;
      known.add(text);
      const item = made("li"), key = made("i", kind === "mark" ? "▼" : "", kind);
      key.style[kind ? "color" : "background"] = colour(name);
      item.append(key, text);
      list.append(item);
    };
    for (const chart of charts) {
      for (const one of chart.series) add(one.kind === "line" ? "rule" : "", one.colour, one.label);
      for (const some of chart.spans) add("", some.colour, some.label);
      if (chart.marks) add("mark", chart.marks.colour, chart.marks.label);
      if (data.bands) add("", data.bands.colour, data.bands.label);
    }
    return list;
  };
  if (!data.legends) legend(section.querySelector(".legend.shared"), data.charts);

  const strip = (body, some, x, height) => {
    for (const [from, to, what] of some.spans) {
      if (to < view[0] || from > view[1]) continue;
      const tall = some.foot ? 7 : height - TOP - BOTTOM;
      const mark = svg("rect", { x: x(from), y: height - BOTTOM - tall, width: Math.max(1.5, x(to) - x(from)), height: tall, fill: colour(some.colour), class: some.foot ? "foot" : "band" });
      mark.append(svg("title", {}, what));
      body.append(mark);
    }
  };
  function draw(chart, place) {
    const holder = made("div", "", "chart");
    box.append(holder);
    const width = Math.max(260, holder.clientWidth), height = chart.height;
    const x = (t) => LEFT + ((t - view[0]) / (view[1] - view[0])) * (width - LEFT - RIGHT);
    const y = (v) => TOP + (height - TOP - BOTTOM) * (1 - Math.min(1, v / chart.top));
    const name = chart.unit ? `${chart.title} (${chart.unit})` : chart.title;
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": name });
    const clip = svg("clipPath", { id: `clip-${section.id}-${place}` });
    clip.append(svg("rect", { x: LEFT, y: 0, width: width - LEFT - RIGHT, height: height - BOTTOM + 1 }));
    picture.append(clip);
    const step = niceStep(chart.top, height < 100 ? 2 : 4);
    for (const value of steps(chart.top, chart.whole ? Math.max(1, step) : step)) {
      picture.append(svg("line", { class: "axis", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }));
      picture.append(svg("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, number(value)));
    }
    const body = svg("g", { "clip-path": `url(#clip-${section.id}-${place})` });
    picture.append(body);
    if (data.bands) strip(body, data.bands, x, height);
    for (const some of chart.spans.filter((one) => !one.foot)) strip(body, some, x, height);
    for (const series of chart.series) {
      const paint = series.kind === "area" ? { fill: colour(series.colour) }
        : { fill: "none", stroke: colour(series.colour), "stroke-width": series.width, "stroke-linejoin": "round" };
      body.append(svg("path", { class: "series", d: path(shown(series, width), x, y), ...paint }));
    }
    for (const some of chart.spans.filter((one) => one.foot)) strip(body, some, x, height);
    for (const t of (chart.marks?.at ?? []).filter((t) => t >= view[0] && t <= view[1])) {
      body.append(svg("path", { class: "mark", d: `M${x(t) - 4},2 h8 l-4,8 Z`, fill: colour(chart.marks.colour) }));
    }
    timeAxis(picture, x, width, height);
    picture.append(svg("line", { class: "cursor", y1: TOP - 8, y2: height - BOTTOM, visibility: "hidden" }));
    holder.append(made("h3", name, chart.ours ? "ours" : ""));
    if (data.legends) holder.append(legend(made("ul", "", "legend"), [chart]));
    if (data.columns) holder.append(made("p", "", "told"));
    holder.append(picture);
  }
  function drawAll() {
    box.replaceChildren();
    data.charts.forEach(draw);
    point();
  }

  function told(chart) {
    const told = [];
    for (const series of chart.series) {
      const n = last(series.t, at);
      if (n >= 0 && series.values[n] !== null) told.push(`${series.label} ${number(series.values[n] - (series.base?.[n] ?? 0))}`);
    }
    for (const some of chart.spans) for (const [from, to, what] of some.spans) if (from <= at && at < to) told.push(what);
    return told.join(", ");
  }
  function point() {
    for (const picture of box.querySelectorAll("svg")) {
      const cursor = picture.querySelector(".cursor"), width = picture.viewBox.baseVal.width;
      const inside = at >= view[0] && at <= view[1];
      cursor.setAttribute("visibility", inside ? "visible" : "hidden");
      const x = LEFT + ((at - view[0]) / (view[1] - view[0])) * (width - LEFT - RIGHT);
      if (inside) for (const end of ["x1", "x2"]) cursor.setAttribute(end, x);
    }
    const list = made("dl");
    const row = (name, text) => text && list.append(made("dt", name), made("dd", text));
    if (data.columns) box.querySelectorAll(".told").forEach((line, place) => { line.textContent = told(data.charts[place]); });
    else for (const chart of data.charts) row(chart.title, told(chart));
    for (const notes of data.notes) {
      const n = last(notes.t, at);
      if (n >= 0) row(notes.name, `${clock(notes.t[n], true)} ${notes.texts[notes.text[n]]}`);
    }
    for (const [from, to, what] of data.bands?.spans ?? []) if (from <= at && at <= to) row(data.bands.label, what);
    readout.replaceChildren(made("b", clock(at, true)), list);
  }
  function zoom(span) {
    const length = span && span < data.length_s ? span : data.length_s;
    const from = Math.max(0, Math.min(data.length_s - length, at - length / 2));
    view = [from, from + length];
    for (const button of section.querySelectorAll(".zoom button")) {
      button.setAttribute("aria-pressed", String((+button.dataset.span || data.length_s) === length));
    }
    drawAll();
  }
  const pick = (event) => {
    const picture = event.target.closest("svg");
    if (!picture) return;
    const frame = picture.getBoundingClientRect();
    const share = (event.clientX - frame.left - LEFT) / (frame.width - LEFT - RIGHT);
    at = view[0] + Math.max(0, Math.min(1, share)) * (view[1] - view[0]);
    point();
  };
  box.addEventListener("pointermove", pick);
  box.addEventListener("pointerdown", pick);
  box.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || !noted.length) return;
    const here = last(noted, at), next = here + step + (step < 0 && noted[here] < at ? 1 : 0);
    at = noted[Math.max(0, Math.min(noted.length - 1, next))];
    point();
    event.preventDefault();
  });
  const buttons = [[0, "all"], ...SPANS.filter(([span]) => span < data.length_s / 1.5)];
  for (const [span, text] of buttons.length > 1 ? buttons : []) {
    const button = made("button", text);
    button.type = "button";
    button.dataset.span = span;
    button.addEventListener("click", () => zoom(span));
    section.querySelector(".zoom").append(button);
  }
  addEventListener("resize", drawAll);
  zoom(0);
  return (instant) => {
    at = instant;
    zoom(3600);
    box.scrollIntoView({ behavior: "smooth" });
  };
}

const leads = [];
for (const section of document.querySelectorAll(".timeline")) {
  section.id = `timeline-${leads.length}`;
  leads.push([section, timeline(section)]);
}
document.addEventListener("click", (event) => {
  const row = event.target.closest("tr[data-at]");
  if (!row) return;
  const before = leads.filter(([section]) => section.compareDocumentPosition(row) & Node.DOCUMENT_POSITION_FOLLOWING);
  before.at(-1)?.[1](+row.dataset.at);
});
