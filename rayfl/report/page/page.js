"use strict";

/* ---- light and dark ---- */
const root = document.documentElement;
const stored = {
  // A page in a sandbox (MLflow's viewer is one) has no storage; it then forgets the choice.
  get: () => { try { return localStorage.getItem("rayfl-theme"); } catch { return null; } },
  set: (value) => { try { localStorage.setItem("rayfl-theme", value); } catch { /* forgotten */ } },
};
const system = matchMedia("(prefers-color-scheme: dark)");

function applyTheme(name) {
  root.dataset.theme = name;
  const button = document.getElementById("theme");
  if (button) {
    button.textContent = name === "dark" ? "Light" : "Dark";
    button.setAttribute("aria-label", `Switch to the ${name === "dark" ? "light" : "dark"} colours`);
  }
}

function startTheme() {
  applyTheme(stored.get() || (system.matches ? "dark" : "light"));
  system.addEventListener("change", () => stored.get() || applyTheme(system.matches ? "dark" : "light"));
  document.getElementById("theme").addEventListener("click", () => {
    const next = root.dataset.theme === "dark" ? "light" : "dark";
    stored.set(next);
    applyTheme(next);
  });
}

/* ---- tables ---- */
function startTable(table) {
  const heads = [...table.querySelectorAll("thead th[data-column]")];
  for (const head of heads) {
    head.querySelector("button").addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") === "descending"
        || (!head.hasAttribute("aria-sort") && head.classList.contains("row"));
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      sortRows(table.tBodies[0], Number(head.dataset.column), up ? 1 : -1);
    });
  }
}

function sortRows(body, column, sign) {
  const keyed = [...body.rows].map((row) => [row.cells[column].dataset.value ?? row.cells[column].textContent.trim(), row]);
  keyed.sort(([a], [b]) => {
    // What is not there comes last, whichever way the others go.
    if (a === "" || b === "") return (a === "") - (b === "");
    const [x, y] = [Number(a), Number(b)];
    return sign * (Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b, undefined, { numeric: true }) : x - y);
  });
  body.append(...keyed.map(([, row]) => row));
}

/* ---- copying ---- */
async function copy(button) {
  const code = button.parentElement.querySelector("code");
  try {
    await navigator.clipboard.writeText(code.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(code);
    button.textContent = "Selected";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}

/* ---- charts ---- */
const SVG = "http://www.w3.org/2000/svg";
const COLOURS = 7;
const DASHES = ["", "7 4", "2 3"];
const SHAPES = [
  "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z", "M-3.5-3.5h7v7h-7z", "M0-4.5L4.5 3.5h-9z", "M0-5L4.5 0L0 5L-4.5 0z",
  "M0 4.5L4.5-3.5h-9z", "M-1.5-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z", "M-4-2.5L-2.5-4L0-1.5L2.5-4L4-2.5L1.5 0L4 2.5L2.5 4L0 1.5L-2.5 4L-4 2.5L-1.5 0z",
];
const colour = (style) => `var(--c${style % COLOURS})`;
const dash = (style) => DASHES[Math.floor(style / COLOURS) % DASHES.length];

function element(name, attributes = {}, parent = null) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (parent) parent.append(made);
  return made;
}

/** Round numbers, 4 to 8 of them, inside an interval. */
function ticks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i += 1) found.push(i * step);
  return found;
}

const shown = (value) => (value === 0 ? "0" : Math.abs(value) >= 1e5 || Math.abs(value) < 1e-3
  ? value.toExponential(1) : String(Number(value.toPrecision(5))));

class Chart {
  constructor(box) {
    this.box = box;
    this.data = JSON.parse(box.querySelector("script").textContent);
    this.off = new Set();
    this.view = this.whole();
    this.cursor = null;
    this.plot = box.querySelector(".plot");
    this.tip = box.querySelector(".tip");
    this.buildLegend();
    this.svg = element("svg", { tabindex: 0, role: "img", "aria-label": box.dataset.label });
    this.plot.append(this.svg);
    this.listen();
    new ResizeObserver(() => this.draw()).observe(this.plot);
  }

  lines() { return this.data.lines.filter((_, i) => !this.off.has(i)); }

  toScale(x) { return this.data.log ? Math.log10(x) : x; }

  whole() {
    const lines = this.lines();
    const xs = lines.flatMap((line) => line.x.map((x) => this.toScale(x)));
    const ys = lines.flatMap((line) => [...line.y, ...line.low, ...line.high]);
    if (!xs.length) return [0, 1, 0, 1];
    const padded = (low, high, share) => {
      const room = (high - low) * share || Math.abs(high) * 0.05 || 0.5;
      return [low - room, high + room];
    };
    const least = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);
    const most = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity);
    return [...padded(least(xs), most(xs), 0.02), ...padded(least(ys), most(ys), 0.06)];
  }

  buildLegend() {
    const legend = this.box.querySelector(".legend");
    this.data.lines.forEach((line, i) => {
      const button = document.createElement("button");
      button.type = "button";
      button.setAttribute("aria-pressed", "true");
      const key = element("svg", { viewBox: "0 0 30 12", "aria-hidden": "true" });
      if (line.joined) element("path", { d: "M0 6H30", stroke: colour(line.style), "stroke-width": 2, "stroke-dasharray": dash(line.style) }, key);
      this.mark(key, line, 15, 6);
      button.append(key, document.createTextNode(line.name));
      button.addEventListener("click", () => {
        if (!this.off.delete(i)) this.off.add(i);
        button.setAttribute("aria-pressed", String(!this.off.has(i)));
        this.zoomTo(null);
      });
      legend.append(button);
    });
    this.reset = document.createElement("button");
    this.reset.type = "button";
    this.reset.className = "reset";
    this.reset.textContent = "Reset zoom";
    this.reset.hidden = true;
    this.reset.addEventListener("click", () => this.zoomTo(null));
    legend.append(this.reset);
  }

  mark(parent, line, x, y) {
    const open = line.joined ? {} : { fill: "none", stroke: colour(line.style), "stroke-width": 1.6 };
    element("path", { d: SHAPES[line.style % SHAPES.length], transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})`, fill: colour(line.style), ...open }, parent);
  }

  zoomTo(view) {
    this.view = view || this.whole();
    this.reset.hidden = !view;
    this.hide();
    this.draw();
  }

  draw() {
    const width = Math.max(this.plot.clientWidth, 240);
    const height = Math.min(Math.max(width * 0.56, 220), 420);
    this.frame = { left: 52, right: width - 10, top: 8, bottom: height - 44, width, height };
    const { left, right, top, bottom } = this.frame;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.setAttribute("height", height);
    this.svg.replaceChildren();
    const clip = `clip-${this.box.id}`;
    const held = element("clipPath", { id: clip }, element("defs", {}, this.svg));
    element("rect", { x: left, y: top, width: right - left, height: bottom - top }, held);
    this.drawAxes();
    const inside = element("g", { "clip-path": `url(#${clip})` }, this.svg);
    this.lines().forEach((line) => this.drawLine(line, inside));
    this.over = element("g", {}, this.svg);
  }

  px(x) {
    const [low, high] = this.view;
    return this.frame.left + ((this.toScale(x) - low) / (high - low)) * (this.frame.right - this.frame.left);
  }

  py(y) {
    const [, , low, high] = this.view;
    return this.frame.bottom - ((y - low) / (high - low)) * (this.frame.bottom - this.frame.top);
  }

  drawAxes() {
    const { left, right, top, bottom, width, height } = this.frame;
    const [x0, x1, y0, y1] = this.view;
    const text = (content, attributes) => { element("text", attributes, this.svg).textContent = content; };
    for (const tick of ticks(x0, x1, Math.max(2, Math.floor(width / 75)))) {
      const value = this.data.log ? 10 ** tick : tick;
      const x = this.px(value);
      element("path", { class: "grid", d: `M${x} ${top}V${bottom}` }, this.svg);
      text(shown(value), { x, y: bottom + 17, "text-anchor": "middle" });
    }
    for (const tick of ticks(y0, y1, 5)) {
      element("path", { class: "grid", d: `M${left} ${this.py(tick)}H${right}` }, this.svg);
      text(shown(tick), { x: left - 6, y: this.py(tick) + 4, "text-anchor": "end" });
    }
    element("path", { class: "axis", fill: "none", d: `M${left} ${top}V${bottom}H${right}` }, this.svg);
    text(this.data.x, { x: (left + right) / 2, y: height - 8, "text-anchor": "middle" });
    const middle = (top + bottom) / 2;
    text(this.data.y, { x: 12, y: middle, "text-anchor": "middle", transform: `rotate(-90 12 ${middle})` });
  }

  drawLine(line, parent) {
    const at = (values) => values.map((y, i) => `${this.px(line.x[i]).toFixed(1)} ${this.py(y).toFixed(1)}`);
    if (line.low.length) {
      element("path", { class: "band", fill: colour(line.style), d: `M${[...at(line.high), ...at(line.low).reverse()].join("L")}Z` }, parent);
    }
    if (line.joined) {
      element("path", { fill: "none", stroke: colour(line.style), "stroke-width": 2, "stroke-linejoin": "round", "stroke-dasharray": dash(line.style), d: `M${at(line.y).join("L")}` }, parent);
    }
    const every = line.joined ? Math.max(1, Math.floor(line.x.length / 8)) : 1;
    const first = Math.floor((line.style * every) / 8) % every;
    line.x.forEach((x, i) => { if (i % every === first) this.mark(parent, line, this.px(x), this.py(line.y[i])); });
  }

  /* -- pointer and keys -- */

  listen() {
    const svg = this.svg;
    svg.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      this.from = this.at(event);
      svg.setPointerCapture(event.pointerId);
    });
    svg.addEventListener("pointermove", (event) => (this.from ? this.drag(this.at(event), event) : this.hover(this.at(event).x)));
    svg.addEventListener("pointerup", (event) => this.drop(this.at(event), event));
    svg.addEventListener("pointercancel", () => { this.from = null; this.hide(); });
    svg.addEventListener("pointerleave", () => { if (!this.from) this.hide(); });
    svg.addEventListener("dblclick", () => this.zoomTo(null));
    svg.addEventListener("blur", () => this.hide());
    svg.addEventListener("keydown", (event) => this.key(event));
  }

  at(event) {
    const box = this.svg.getBoundingClientRect();
    const { left, right, top, bottom } = this.frame;
    const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
    return { x: clamp(event.clientX - box.left, left, right), y: clamp(event.clientY - box.top, top, bottom) };
  }

  /** Where a drag from `from` to `to` leads; a finger, which also scrolls, chooses columns only. */
  rectangle(to, event) {
    const { top, bottom } = this.frame;
    const flat = event.pointerType === "touch" || Math.abs(to.y - this.from.y) < 10;
    const [x0, x1] = [this.from.x, to.x].sort((a, b) => a - b);
    const [y0, y1] = flat ? [top, bottom] : [this.from.y, to.y].sort((a, b) => a - b);
    return { x0, x1, y0, y1 };
  }

  drag(to, event) {
    const { x0, x1, y0, y1 } = this.rectangle(to, event);
    this.hide();
    element("rect", { class: "zoom", x: x0, y: y0, width: x1 - x0, height: y1 - y0 }, this.over);
  }

  drop(to, event) {
    if (!this.from) return;
    const { x0, x1, y0, y1 } = this.rectangle(to, event);
    this.from = null;
    if (x1 - x0 < 8) { this.hover(to.x); return; }
    const [a, b, c, d] = this.view;
    const { left, right, top, bottom } = this.frame;
    const across = (x) => a + ((x - left) / (right - left)) * (b - a);
    const up = (y) => c + ((bottom - y) / (bottom - top)) * (d - c);
    this.zoomTo([across(x0), across(x1), up(y1), up(y0)]);
  }

  key(event) {
    const places = this.places();
    const known = {
      ArrowLeft: () => this.point(places, -1), ArrowRight: () => this.point(places, 1),
      "+": () => this.scale(0.5), "=": () => this.scale(0.5), "-": () => this.scale(2),
      0: () => this.zoomTo(null), Escape: () => this.zoomTo(null),
    };
    if (!known[event.key] || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    known[event.key]();
  }

  places() {
    const inside = this.lines().flatMap((line) => line.x).filter((x) => this.toScale(x) >= this.view[0] && this.toScale(x) <= this.view[1]);
    return [...new Set(inside)].sort((a, b) => a - b);
  }

  point(places, step) {
    if (!places.length) return;
    const now = places.indexOf(this.cursor);
    const next = now < 0 ? (step > 0 ? 0 : places.length - 1) : Math.min(Math.max(now + step, 0), places.length - 1);
    this.show(places[next]);
  }

  scale(factor) {
    const [a, b, c, d] = this.view;
    const middle = this.cursor === null ? (a + b) / 2 : this.toScale(this.cursor);
    const kept = this.cursor;
    this.zoomTo([middle - (middle - a) * factor, middle + (b - middle) * factor, c, d]);
    if (kept !== null) this.show(kept);
  }

  hover(x) {
    const places = this.places();
    if (!places.length) return;
    this.show(places.reduce((best, place) => (Math.abs(this.px(place) - x) < Math.abs(this.px(best) - x) ? place : best)));
  }

  show(place) {
    this.cursor = place;
    this.over.replaceChildren();
    const x = this.px(place);
    element("path", { class: "cursor", d: `M${x} ${this.frame.top}V${this.frame.bottom}` }, this.over);
    const rows = [];
    for (const line of this.lines()) {
      const i = line.x.indexOf(place);
      if (i >= 0) {
        const spread = line.low.length ? ` (${shown(line.low[i])} to ${shown(line.high[i])})` : "";
        rows.push([line.y[i], `${line.name}: ${shown(line.y[i])}${spread}`, line.style]);
        this.mark(this.over, line, x, this.py(line.y[i]));
      }
    }
    this.tip.replaceChildren(`${this.data.x} ${shown(place)}`);
    for (const [, text, style] of rows.sort((a, b) => b[0] - a[0])) {
      const row = document.createElement("div");
      row.textContent = text;
      row.style.color = colour(style);
      this.tip.append(row);
    }
    this.tip.hidden = false;
    const right = x > this.frame.width / 2;
    this.tip.style.left = right ? "auto" : `${x + 14}px`;
    this.tip.style.right = right ? `${this.frame.width - x + 14}px` : "auto";
    this.tip.style.top = `${this.frame.top + 6}px`;
  }

  hide() {
    this.cursor = null;
    this.tip.hidden = true;
    if (this.over) this.over.replaceChildren();
  }
}

startTheme();
document.querySelectorAll("table.sortable").forEach(startTable);
document.querySelectorAll("button.copy").forEach((button) => button.addEventListener("click", () => copy(button)));
document.querySelectorAll(".chart").forEach((box) => new Chart(box));
