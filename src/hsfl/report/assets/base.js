"use strict";
// What all scripts of the page share: elements, numbers as text, scales, the tooltip, tables. Text is set as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";
const $ = (id) => document.getElementById(id);

function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  return element;
}

function fill(element, children) {
  for (const child of children.flat()) if (child !== null && child !== undefined) element.append(child);
  return element;
}

const h = (tag, attributes, ...children) => fill(set(document.createElement(tag), attributes), children);
const s = (tag, attributes, ...children) => fill(set(document.createElementNS(SVG, tag), attributes), children);
const clear = (element) => { element.replaceChildren(); return element; };

// ---- numbers

function digits(value, count = 4) {
  if (value === null || value === undefined || !isFinite(value)) return "–";
  if (value !== 0 && (Math.abs(value) < 1e-4 || Math.abs(value) >= 1e15)) return value.toExponential(count - 1);
  return value.toLocaleString("en-GB", { maximumSignificantDigits: count });
}
const whole = (value) => (value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en-GB"));
const percent = (value, places = 2) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(places).replace(/^-(?=[0.]*$)/, "")} %`);
const ENDLESS_S = 1e15;  // where a rate is next to nothing, seconds are no number that anybody reads
const ENDLESS = "over 30 million years";
const seconds = (value) => (value === null || value === undefined ? "–" : value >= ENDLESS_S ? ENDLESS : `${digits(value)} s`);

function span(value) {  // seconds, with what they are to people once they are many
  if (value === null || value === undefined) return "–";
  if (value < 600 || value >= ENDLESS_S) return seconds(value);
  const [unit, name] = timeUnit(value);
  return `${digits(value / unit, 3)} ${name}`;
}

function scaled(value, unit, steps = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
  if (value === null || value === undefined) return "–";
  for (const [power, letter] of steps) if (value >= power) return `${digits(value / power, 3)} ${letter}${unit}`;
  return `${digits(value, 3)} ${unit}`;
}
const sized = (value) => (value < 1000 ? `${whole(value)} bytes` : scaled(value, "B"));

// ---- scales

function ticks(low, high, count) {
  if (!(high > low)) return [low];
  const rough = (high - low) / Math.max(count, 1), power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((value) => value >= rough * 0.999) || 10 * power;
  const values = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) values.push(+(i * step).toPrecision(12));
  return values;
}

const scale = (low, high, from, to) => (value) => from + (to - from) * (high > low ? (value - low) / (high - low) : 0.5);

function timeUnit(longest) {
  if (longest >= ENDLESS_S) return [longest, `1 is ${ENDLESS}`];
  return [[3.156e7, "years"], [86400, "days"], [3600, "h"], [60, "min"]].find(([unit]) => longest >= 3 * unit) || [1, "s"];
}

// ---- tooltip

function showTip(event, ...children) {
  const tip = fill(clear($("tip")), children);
  tip.hidden = false;
  const box = tip.getBoundingClientRect(), gap = 14;
  const left = event.clientX + gap + box.width > innerWidth ? event.clientX - gap - box.width : event.clientX + gap;
  const top = event.clientY + gap + box.height > innerHeight ? event.clientY - gap - box.height : event.clientY + gap;
  tip.style.left = `${Math.max(4, Math.min(left, innerWidth - box.width - 4))}px`;
  tip.style.top = `${Math.max(4, top)}px`;
}
const hideTip = () => { $("tip").hidden = true; };

// A mouse shows the tip as it moves and hides it when it leaves; a tap, which does not move, shows it until the next tap.
let untap = hideTip;
function tipFor(element, tell, hide = hideTip) {
  set(element, {
    onpointermove: (event) => { if (event.pointerType !== "touch") tell(event); },
    onpointerleave: (event) => { if (event.pointerType !== "touch") hide(); },
    onclick: (event) => { untap = hide; tell(event); },
  });
}
addEventListener("pointerdown", (event) => { if (event.pointerType === "touch") untap(); }, true);

// ---- tables

// columns: [{head, cell(row, index), left, wide}]; the first column names the row.
function table(caption, columns, rows) {
  const head = h("tr", {}, columns.map((column) => h("th", { scope: "col", class: column.left ? "left" : null }, column.head)));
  const body = rows.map((row, index) => h("tr", {}, columns.map((column, place) => {
    const classes = [column.wide ? "wide" : "", column.left ? "left" : ""].join(" ").trim();
    return h(place ? "td" : "th", { scope: place ? null : "row", class: classes || null }, column.cell(row, index));
  })));
  const element = h("table", {}, caption ? h("caption", {}, h("span", {}, caption)) : null, h("thead", {}, head), h("tbody", {}, body));
  return h("div", { class: "table", tabindex: "0", role: "region", "aria-label": caption || "table" }, element);
}

function meter(fraction) {
  const width = 52, filled = Math.max(0, Math.min(1, fraction || 0)) * width;
  return s("svg", { class: "meter", width, height: 8, "aria-hidden": "true" },
    s("rect", { class: "rail", width, height: 8, rx: 2 }), s("rect", { class: "fill", width: filled, height: 8, rx: 2 }));
}
