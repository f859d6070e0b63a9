"use strict";
// Draws the panels from the numbers in the element "data". Names come from logs: they are only ever set as text.
const data = JSON.parse(document.getElementById("data").textContent);
const WIDTH = 560, HEIGHT = 300, LEFT = 62, RIGHT = 12, TOP = 12, BOTTOM = 40;
const DASHES = ["6 4", "", "1 4", "9 4 2 4", "4 2"];
const shown = data.runs.map(() => true);
let smooth = data.smooth, log = false;

function element(parent, name, attributes = {}, text = null) {
  const svg = ["svg", "g", "path", "line", "text", "circle", "rect"].includes(name);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  parent.append(made);
  return made;
}

// Numbers on axes

function number(value, digits = 4) {
  const size = Math.abs(value), whole = Math.max(0, Math.floor(Math.log10(size || 1)));
  if (size !== 0 && (size < 1e-4 || (size >= 1e6 && whole >= digits)))
    return value.toExponential(Math.min(digits - 1, 15)).replace(/\.?0+e/, "e").replace("e+", "e");
  return String(Number(value.toPrecision(Math.min(digits + whole, 17))));
}

const place = (x) => (data.x === "step" ? String(x) : number(x));

function labels(values) {
  const most = Math.max(...values.map(Math.abs)), step = Math.abs(values[1] - values[0]);
  const digits = step && most ? Math.floor(Math.log10(most)) - Math.floor(Math.log10(step)) + 1 : 4;
  const whole = values.every(Number.isInteger) && most < 1e9;
  return values.map((value) => [value, whole ? String(value) : number(value, Math.max(3, digits))]);
}

function ticks(low, high, most) {
  const rough = (high - low) / most, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999999);
  const found = [], first = Math.ceil(low / step - 1e-9);
  for (let i = 0; i <= most + 1 && (first + i) * step <= high + step * 1e-9; i++) found.push((first + i) * step);
  return found.map((value) => Number(value.toPrecision(15)));
}

function logTicks(low, high) {
  const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
  if (last - first < 1) {
    const found = ticks(low, high, 5).filter((value) => value > 0);
    return found.length > 1 ? found : [low, high];
  }
  const stride = Math.ceil((last - first + 1) / 8), found = [];
  for (let power = first; power <= last; power += stride) found.push(Number(`1e${power}`));
  return found;
}

// Curves

const tooSmall = (value) => value === null || (log && value <= 0);

function smoothed(line) {
  let total = 0, counts = 0;
  return line.y.map((value, at) => {
    if (value === null) return null;
    const keep = smooth ** (line.count ? line.count[at] : 1);
    total = total * keep + value * (1 - keep);
    counts = counts * keep + 1 - keep;
    return counts ? total / counts : value;
  });
}

function visible(panel) { return panel.lines.filter((line) => shown[line.run] && line.x.length); }

function range(lines) {
  // All panels have the same x-axis.
  let left = Infinity, right = -Infinity, low = Infinity, high = -Infinity;
  for (const line of data.panels.flatMap(visible)) {
    left = Math.min(left, line.x[0]);
    right = Math.max(right, line.x[line.x.length - 1]);
  }
  for (const line of lines)
    line.x.forEach((_, at) => {
      for (const value of [line.low ? line.low[at] : line.y[at], line.high ? line.high[at] : line.y[at]])
        if (!tooSmall(value)) [low, high] = [Math.min(low, value), Math.max(high, value)];
    });
  if (low === Infinity) return null;
  if (left === right) [left, right] = [left - 0.5, right + 0.5];
  if (log) {
    const margin = low === high ? 2 : (high / low) ** 0.04;
    return { left, right, low: low / margin, high: high * margin };
  }
  const margin = low === high ? Math.abs(low) * 0.1 || 0.5 : (high - low) * 0.04;
  return { left, right, low: low - margin, high: high + margin };
}

function path(line, at, from, to) {
  let text = "", gap = true;
  line.x.forEach((x, i) => {
    const ends = (from[i] === to[i] ? [from[i]] : [from[i], to[i]]).filter((value) => !tooSmall(value));
    if (!ends.length) gap = true;
    for (const value of ends) {
      text += `${gap ? "M" : "L"}${at.x(x)},${at.y(value)}`;
      if (gap) text += "h0";
      gap = false;
    }
    if (line.broken.includes(i)) gap = true;
  });
  return text;
}

function color(line) { return `c${(data.runs.length > 1 ? line.run : line.stage) % 8}`; }
function dash(panel, line) {
  const several = data.runs.length > 1 && !line.perStep && new Set(panel.lines.map((one) => one.stage)).size > 1;
  return several ? DASHES[Math.min(line.stage, 4)] : "";
}

function drawLine(svg, panel, line, at) {
  const group = element(svg, "g", { class: color(line) });
  const draws = smooth > 0 && panel.smooths && line.perStep;
  const style = { class: "curve", "stroke-width": line.perStep ? 1.2 : 2.2, "stroke-dasharray": dash(panel, line) };
  element(group, "path", { ...style, d: path(line, at, line.low || line.y, line.high || line.y), opacity: draws ? 0.3 : 1 });
  if (draws) {
    line.smooth = smoothed(line);
    element(group, "path", { ...style, d: path(line, at, line.smooth, line.smooth), "stroke-width": 2 });
  } else {
    line.smooth = null;
  }
  if (!line.perStep && line.x.length <= 60)
    line.x.forEach((x, i) => {
      if (!tooSmall(line.y[i])) element(group, "circle", { cx: at.x(x), cy: at.y(line.y[i]), r: 3, fill: "currentColor" });
    });
  for (const x of line.odd) {
    element(group, "path", { class: "odd", d: `M${at.x(x)},${HEIGHT - BOTTOM - 7}l4,7h-8z` });
  }
}

function drawAxes(svg, box, at) {
  const axis = element(svg, "g", { class: "axis" });
  for (const [value, label] of labels(log ? logTicks(box.low, box.high) : ticks(box.low, box.high, 7))) {
    element(axis, "line", { x1: LEFT, x2: WIDTH - RIGHT, y1: at.y(value), y2: at.y(value) });
    element(axis, "text", { x: LEFT - 6, y: at.y(value) + 4, "text-anchor": "end" }, label);
  }
  for (const [value, label] of labels(ticks(box.left, box.right, 6))) {
    element(axis, "line", { x1: at.x(value), x2: at.x(value), y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM + 4 });
    element(axis, "text", { x: at.x(value), y: HEIGHT - BOTTOM + 18, "text-anchor": "middle" }, label);
  }
  element(axis, "text", { x: WIDTH - RIGHT, y: HEIGHT - 4, "text-anchor": "end" }, data.x);
}

function draw(panel) {
  const lines = visible(panel), box = range(lines);
  panel.svg.replaceChildren();
  panel.values.hidden = true;
  panel.at = null;
  const left = log ? lines.reduce((sum, line) => sum + (line.low || line.y).filter((y) => y !== null && y <= 0).length, 0) : 0;
  panel.note.textContent = left ? `at or below 0, not drawn: ${left}` : "";
  if (box === null) {
    const text = log ? "nothing above 0 to draw" : "nothing to draw";
    element(element(panel.svg, "g", { class: "axis" }), "text", { x: WIDTH / 2, y: HEIGHT / 2, "text-anchor": "middle" }, text);
    return;
  }
  const scale = log ? Math.log10 : (value) => value, low = scale(box.low), high = scale(box.high);
  const round = (value) => Math.round(value * 100) / 100;
  panel.at = {
    x: (x) => round(LEFT + ((x - box.left) / (box.right - box.left)) * (WIDTH - LEFT - RIGHT)),
    y: (y) => round(HEIGHT - BOTTOM - ((scale(y) - low) / (high - low)) * (HEIGHT - TOP - BOTTOM)),
    back: (pixel) => box.left + ((pixel - LEFT) / (WIDTH - LEFT - RIGHT)) * (box.right - box.left),
  };
  drawAxes(panel.svg, box, panel.at);
  for (const line of lines) drawLine(panel.svg, panel, line, panel.at);
  panel.cross = element(panel.svg, "line", { class: "cross", y1: TOP, y2: HEIGHT - BOTTOM, x1: 0, x2: 0, visibility: "hidden" });
}

function nearest(xs, x) {
  let low = 0, high = xs.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle + 1;
    else high = middle;
  }
  return low > 0 && x - xs[low - 1] < xs[low] - x ? low - 1 : low;
}

// What is under the pointer

function tell(panel, x) {
  const lines = visible(panel);
  if (!panel.at || !lines.length) return;
  const longest = lines.reduce((one, other) => (other.x.length > one.x.length ? other : one));
  panel.place = nearest(longest.x, x);
  const at = longest.x[panel.place];
  for (const end of ["x1", "x2"]) panel.cross.setAttribute(end, panel.at.x(at));
  panel.cross.setAttribute("visibility", "visible");
  panel.values.replaceChildren();
  element(panel.values, "div", {}, `${data.x} ${place(at)}`);
  for (const line of lines) {
    const i = nearest(line.x, at);
    let text = line.y[i] === null ? "not finite" : number(line.y[i]);
    if (line.count && line.count[i] > 1) text += ` (${number(line.low[i])} to ${number(line.high[i])}, ${line.count[i]} points)`;
    if (line.smooth && line.smooth[i] !== null) text += `, smoothed ${number(line.smooth[i])}`;
    if (Math.abs(panel.at.x(line.x[i]) - panel.at.x(at)) > 1) text += ` at ${place(line.x[i])}`;
    const row = element(panel.values, "div");
    element(row, "span", { class: color(line) }, "● ");
    element(row, "span", {}, `${data.runs.length > 1 ? `${data.runs[line.run]} · ` : ""}${line.name}: ${text}`);
  }
  panel.values.hidden = false;
  const part = panel.at.x(at) / WIDTH;
  panel.values.style.left = part < 0.5 ? `${part * 100 + 3}%` : "auto";
  panel.values.style.right = part < 0.5 ? "auto" : `${(1 - part) * 100 + 3}%`;
  panel.values.style.top = `${panel.svg.parentNode.offsetHeight - panel.svg.getBoundingClientRect().height}px`;
  panel.longest = longest;
}

function hide(panel) {
  panel.values.hidden = true;
  if (panel.at) panel.cross.setAttribute("visibility", "hidden");
}

function legend(caption, panel) {
  element(caption, "h2", {}, panel.title);
  const seen = new Set();
  for (const line of panel.lines) {
    if (seen.has(line.name)) continue;
    seen.add(line.name);
    const item = element(caption, "span");
    const svg = element(item, "svg", { viewBox: "0 0 26 10", "aria-hidden": "true", class: data.runs.length > 1 ? "" : color(line) });
    element(svg, "path", { class: "curve", d: "M2,5H24", "stroke-width": line.perStep ? 1.4 : 2.4, "stroke-dasharray": dash(panel, line) });
    element(item, "span", {}, line.name);
  }
  if (panel.lines.some((line) => line.odd.length)) element(caption, "span", {}, "▲ not finite");
  panel.note = element(caption, "span", { role: "status" });
}

function setUp(panel) {
  const figure = element(document.getElementById("panels"), "figure");
  legend(element(figure, "figcaption"), panel);
  const names = [...new Set(panel.lines.map((line) => line.name))].join(", ");
  panel.svg = element(figure, "svg", {
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", tabindex: "0", "aria-label": `${panel.title}: ${names} by ${data.x}`,
  });
  panel.values = element(figure, "div", { class: "values", role: "status" });
  panel.svg.addEventListener("pointermove", (event) => {
    const box = panel.svg.getBoundingClientRect();
    if (panel.at) tell(panel, panel.at.back(((event.clientX - box.left) / box.width) * WIDTH));
  });
  panel.svg.addEventListener("pointerleave", () => hide(panel));
  panel.svg.addEventListener("blur", () => hide(panel));
  panel.svg.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || !panel.at) return;
    event.preventDefault();
    const xs = panel.longest ? panel.longest.x : panel.lines[0].x;
    tell(panel, xs[Math.min(xs.length - 1, Math.max(0, panel.place === undefined ? 0 : panel.place + by))]);
  });
  draw(panel);
}

const redraw = () => data.panels.forEach(draw);
data.runs.forEach((name, number) => {
  const label = element(document.getElementById("runs"), "label");
  const box = element(label, "input", { type: "checkbox", checked: "" });
  element(label, "span", { class: data.runs.length > 1 ? `c${number % 8}` : "" }, data.runs.length > 1 ? "●" : "");
  element(label, "span", {}, name);
  box.addEventListener("change", () => { shown[number] = box.checked; redraw(); });
});
document.getElementById("log").addEventListener("change", (event) => { log = event.target.checked; redraw(); });
document.getElementById("smooth").addEventListener("input", (event) => {
  smooth = Number(event.target.value);
  document.getElementById("weight").textContent = smooth.toFixed(2);
  redraw();
});
data.panels.forEach(setUp);
