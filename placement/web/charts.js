"use strict";
// Small charts without a library: SVG for lines and bars, one canvas for a large cluster. Each can be walked through
// with the arrow keys; what is pointed at is written below it, so that nothing is said by colour or hover alone.

const SVG = "http://www.w3.org/2000/svg";

function shape(tag, attributes, text) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

// A figure that keeps its place, its focus and what was pointed at while its content is drawn anew.
function figure(holder, key, title) {
  let box = [...holder.children].find((child) => child.dataset.key === key);
  if (!box) {
    box = element("figure", null, "chart");
    box.dataset.key = key;
    const drawing = element("div", null, "drawing");
    drawing.tabIndex = 0;
    drawing.setAttribute("role", "img");
    box.append(element("figcaption"), drawing, element("p", "", "readout soft"));
    const point = (index) => {
      const last = (box.count ?? 0) - 1;
      if (last < 0) return;
      box.at = Math.max(0, Math.min(last, index));
      box.mark?.(box.at);
      box.querySelector(".readout").textContent = box.tell(box.at);
    };
    drawing.addEventListener("pointermove", (event) => {
      const frame = drawing.getBoundingClientRect();
      const found = box.find?.(event.clientX - frame.left, event.clientY - frame.top);
      if (found !== undefined && found !== null) point(found);
    });
    drawing.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: box.across ?? 1, ArrowUp: -(box.across ?? 1) }[event.key];
      const to = { Home: 0, End: (box.count ?? 0) - 1 }[event.key];
      if (step === undefined && to === undefined) return;
      event.preventDefault();
      point(to ?? (box.at ?? -1) + step);
    });
    box.point = point;
    holder.append(box);
  }
  box.querySelector("figcaption").textContent = title;
  return box;
}

function draw(box, label, width, height, parts) {
  const drawing = box.querySelector(".drawing");
  drawing.setAttribute("aria-label", label);
  const svg = shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
  svg.append(...parts);
  drawing.replaceChildren(svg);
  if (box.at !== undefined) box.point(box.at);
  return svg;
}

function nice(value) {
  if (Number.isInteger(value) || Math.abs(value) >= 100) return value.toFixed(0);
  return String(Number(value.toPrecision(3)));
}

// series: [{name, className, values: [number|null]}], all as long as `times` (ISO text).
function lines(holder, key, title, times, series, unit) {
  const box = figure(holder, key, title);
  const width = Math.max(240, box.querySelector(".drawing").clientWidth || 320), height = 110, left = 44, bottom = 16, top = 8;
  const values = series.flatMap((one) => one.values).filter((value) => value !== null);
  const most = Math.max(...values, 0) || 1;
  const x = (index) => left + ((width - left - 6) * index) / Math.max(1, times.length - 1);
  const y = (value) => height - bottom - ((height - bottom - top) * value) / most;
  const parts = [
    shape("line", { x1: left, x2: width - 6, y1: y(0), y2: y(0), class: "axis" }),
    shape("line", { x1: left, x2: width - 6, y1: y(most), y2: y(most), class: "grid" }),
    shape("text", { x: left - 5, y: y(most) + 4, "text-anchor": "end" }, nice(most)),
    shape("text", { x: left - 5, y: y(0) + 4, "text-anchor": "end" }, "0"),
    shape("text", { x: left, y: height - 2 }, times.length ? times[0].slice(11, 16) : ""),
    shape("text", { x: width - 6, y: height - 2, "text-anchor": "end" }, times.length ? times.at(-1).slice(11, 16) : ""),
  ];
  for (const one of series) {
    let path = "", down = false;
    one.values.forEach((value, index) => {
      if (value === null) { down = false; return; }
      path += `${down ? "L" : "M"}${x(index).toFixed(1)} ${y(value).toFixed(1)}`;
      if (!down && (one.values[index + 1] ?? null) === null) path += "h1"; // alone between gaps: a dot
      down = true;
    });
    if (path) parts.push(shape("path", { d: path, class: `series ${one.className}` }));
  }
  const cursor = shape("line", { x1: -9, x2: -9, y1: top, y2: height - bottom, class: "cursor" });
  parts.push(cursor);
  const say = (index) => `${times[index].slice(11, 19)} UTC: ` + series
    .map((one) => `${one.name} ${one.values[index] === null ? "none" : nice(one.values[index]) + unit}`).join(", ");
  box.count = times.length;
  box.tell = say;
  box.mark = (index) => { cursor.setAttribute("x1", x(index)); cursor.setAttribute("x2", x(index)); };
  box.find = (px) => Math.round(((px - left) / Math.max(1, width - left - 6)) * (times.length - 1));
  draw(box, `${title}. ${times.length ? "Last: " + say(times.length - 1) : "Nothing yet."}`, width, height, parts);
  if (box.at === undefined && times.length) box.querySelector(".readout").textContent = say(times.length - 1);
}

// bars: [{row, from, to, mark, className, text}]; rows: names from top to bottom; times in seconds since 1970.
function gantt(holder, key, title, rows, bars, now) {
  const box = figure(holder, key, title);
  const line = 20, top = 20, width = Math.max(280, box.querySelector(".drawing").clientWidth || 600);
  const left = Math.min(width * 0.35, 12 + 6.4 * Math.max(...rows.map((row) => row.length), 4));
  const begin = Math.min(...bars.map((bar) => bar.from), now);
  const end = Math.max(...bars.map((bar) => Math.max(bar.to, bar.mark ?? 0)), now, begin + 1);
  const x = (time) => left + ((width - left - 8) * (time - begin)) / (end - begin);
  const height = top + line * rows.length + 4;
  const place = new Map(rows.map((row, index) => [row, top + index * line]));
  const parts = rows.flatMap((row) => [
    shape("text", { x: left - 6, y: place.get(row) + 14, "text-anchor": "end" }, fitted(row, left)),
    shape("line", { x1: left, x2: width - 8, y1: place.get(row) + line, y2: place.get(row) + line, class: "grid" }),
  ]);
  for (const share of width > 620 ? [0, 0.5, 1] : [0, 1]) {
    const time = begin + share * (end - begin);
    const anchor = share === 0 ? "start" : share === 1 ? "end" : "middle";
    parts.push(shape("text", { x: x(time), y: 12, "text-anchor": anchor }, clock(time, end - begin < 7200)));
  }
  parts.push(shape("line", { x1: x(now), x2: x(now), y1: top, y2: height, class: "now" }));
  // Jobs that share a card share its line: each begins a little lower.
  const until = new Map();
  const drawn = bars.map((bar) => {
    const lanes = until.get(bar.row) ?? [];
    let lane = lanes.findIndex((busy) => busy <= bar.from);
    if (lane < 0) lane = lanes.length;
    lanes[lane] = bar.to;
    until.set(bar.row, lanes);
    return { ...bar, lane };
  });
  for (const bar of drawn) {
    const deep = until.get(bar.row).length, tall = (line - 4) / deep;
    bar.box = { x: x(bar.from), y: place.get(bar.row) + 2 + bar.lane * tall, w: Math.max(2, x(bar.to) - x(bar.from)), h: tall - 0.5 };
    parts.push(shape("rect", { x: bar.box.x, y: bar.box.y, width: bar.box.w, height: bar.box.h, class: `bar ${bar.className}` }));
    if (bar.mark !== null && bar.mark !== undefined) {
      parts.push(shape("line", { x1: x(bar.mark), x2: x(bar.mark), y1: bar.box.y - 1, y2: bar.box.y + tall, class: "mark" }));
    }
  }
  const cursor = shape("rect", { x: -9, y: 0, width: 0, height: 0, class: "chosen" });
  parts.push(cursor);
  box.count = drawn.length;
  box.tell = (index) => drawn[index].text;
  box.mark = (index) => {
    const at = drawn[index].box;
    for (const [name, value] of [["x", at.x - 1], ["y", at.y - 1], ["width", at.w + 2], ["height", at.h + 2]]) cursor.setAttribute(name, value);
  };
  box.find = (px, py) => {
    const found = drawn.findIndex(({ box: at }) => px >= at.x - 2 && px <= at.x + at.w + 2 && py >= at.y && py <= at.y + at.h);
    return found < 0 ? null : found;
  };
  draw(box, `${title}. ${drawn.length} attempts on ${rows.length} cards.`, width, height, parts);
}

const clock = (seconds, fine) => new Date(seconds * 1000).toISOString().slice(5, fine ? 19 : 16).replace("T", " ");
const fitted = (text, room) => (text.length * 6.4 > room - 8 ? "…" + text.slice(-Math.max(3, Math.floor((room - 16) / 6.4))) : text);

// dots: [{x, y, text}] against the diagonal.
function against(holder, key, title, dots, names, unit) {
  const box = figure(holder, key, title);
  const width = Math.min(420, Math.max(240, box.querySelector(".drawing").clientWidth || 320)), height = 260, left = 52, bottom = 34;
  const most = Math.max(...dots.flatMap((dot) => [dot.x, dot.y]), 1e-9);
  const x = (value) => left + ((width - left - 8) * value) / most, y = (value) => height - bottom - ((height - bottom - 10) * value) / most;
  const parts = [
    shape("line", { x1: x(0), y1: y(0), x2: x(most), y2: y(most), class: "axis" }),
    shape("line", { x1: x(0), y1: y(0), x2: x(most), y2: y(0), class: "grid" }),
    shape("line", { x1: x(0), y1: y(0), x2: x(0), y2: y(most), class: "grid" }),
    shape("text", { x: x(most), y: height - 20, "text-anchor": "end" }, `${nice(most)}${unit}`),
    shape("text", { x: left - 5, y: y(most) + 8, "text-anchor": "end" }, `${nice(most)}${unit}`),
    shape("text", { x: (left + width) / 2, y: height - 4, "text-anchor": "middle" }, names[0]),
    shape("text", { x: 12, y: (height - bottom) / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${(height - bottom) / 2})` }, names[1]),
    ...dots.map((dot) => shape("circle", { cx: x(dot.x), cy: y(dot.y), r: 3.5, class: "dot" })),
  ];
  const cursor = shape("circle", { cx: -9, cy: -9, r: 6, class: "chosen" });
  parts.push(cursor);
  box.count = dots.length;
  box.tell = (index) => dots[index].text;
  box.mark = (index) => { cursor.setAttribute("cx", x(dots[index].x)); cursor.setAttribute("cy", y(dots[index].y)); };
  box.find = (px, py) => {
    let best = null, least = 200;
    dots.forEach((dot, index) => {
      const far = (x(dot.x) - px) ** 2 + (y(dot.y) - py) ** 2;
      if (far < least) [best, least] = [index, far];
    });
    return best;
  };
  draw(box, `${title}. ${dots.length} jobs.`, width, height, parts);
}

// One cell a node, cpu above memory; as many as there are.
function heat(holder, key, title, cells) {
  const box = figure(holder, key, title);
  const width = Math.max(240, box.querySelector(".drawing").clientWidth || 600);
  const side = Math.max(6, Math.min(26, Math.floor(Math.sqrt((width * 320) / Math.max(1, cells.length)))));
  const across = Math.max(1, Math.floor(width / side)), height = side * Math.ceil(cells.length / across);
  const drawing = box.querySelector(".drawing");
  let canvas = drawing.querySelector("canvas");
  if (!canvas) { canvas = document.createElement("canvas"); drawing.replaceChildren(canvas); }
  const scale = window.devicePixelRatio || 1;
  canvas.width = width * scale; canvas.height = height * scale;
  canvas.style.width = `${width}px`; canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  const paint = () => {
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    cells.forEach((cell, index) => {
      const px = (index % across) * side, py = Math.floor(index / across) * side, half = (side - 1) / 2;
      pen.fillStyle = ramp(cell.cpu); pen.fillRect(px, py, side - 1, half);
      pen.fillStyle = ramp(cell.mem); pen.fillRect(px, py + half, side - 1, half);
    });
  };
  box.count = cells.length; box.across = across;
  box.tell = (index) => cells[index].text;
  box.mark = (index) => {
    paint();
    pen.strokeStyle = getComputedStyle(box).color; pen.lineWidth = 2;
    pen.strokeRect((index % across) * side, Math.floor(index / across) * side, side - 1, side - 1);
  };
  box.find = (px, py) => {
    const index = Math.floor(py / side) * across + Math.floor(px / side);
    return index < cells.length && px < across * side ? index : null;
  };
  paint();
  drawing.setAttribute("aria-label", `${title}. ${cells.length} nodes; arrow keys go from node to node.`);
  if (box.at !== undefined) box.point(box.at);
}

// From calm to full, the same in light and dark, told apart without red and green.
const ramp = (share) => `hsl(${230 - 200 * Math.min(1, share)} 75% ${62 - 14 * Math.min(1, share)}%)`;
