"use strict";
// The cluster as it is before the shown decision: bars for few places, a heat map for many.

const MOST_BARS = 200; // places
const CELL_GAP = 1;
const MOST_STEPS = 400; // beyond that all cells are painted anew

class Cluster {
  constructor(canvas, run) {
    Object.assign(this, { canvas, run, mode: run.P <= MOST_BARS ? "bars" : "heat", resource: 0, over: -1 });
    this.still = document.createElement("canvas");
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "img");
    canvas.addEventListener("pointermove", (event) => this.hover(event));
    canvas.addEventListener("pointerleave", () => { this.over = -1; tell(""); this.draw(); });
    canvas.addEventListener("keydown", (event) => this.walk(event));
    canvas.addEventListener("blur", () => { this.over = -1; tell(""); this.draw(); });
  }

  grid() { // halves of a server, cards of a node stand together
    const { run } = this, width = wideOf(this.canvas), count = run.a.places[run.at];
    const together = run.head.kind === "half" ? 2 : 1;
    const groups = Math.ceil(run.P / together);
    if (this.mode === "bars") {
      const bars = together * run.G, least = bars * 7 + (together - 1) * 3 + 10;
      const fitting = Math.max(1, Math.min(groups, Math.floor(width / Math.max(least, Math.min(74, width / groups)))));
      const rows = Math.ceil(groups / fitting), columns = Math.ceil(groups / rows);
      const high = Math.max(46, Math.min(130, Math.floor(440 / rows) - 22));
      return { together, columns, rows, wide: Math.min(170, width / columns), high, step: high + 22, count, height: rows * (high + 22) };
    }
    // As square as the width and about 320 px of height allow.
    const area = (width * Math.min(320, Math.max(120, groups * 4))) / groups;
    const columns = Math.max(1, Math.min(groups, Math.floor(width / Math.max(2, Math.sqrt(area * together) * 1.0))));
    const wide = width / columns, step = Math.max(2, Math.min(28, wide / together));
    const rows = Math.ceil(groups / columns);
    return { together, columns, rows, wide, high: step, step, count, height: Math.ceil(rows * step) };
  }

  draw() {
    this.g = this.grid();
    const context = fit(this.canvas, this.g.height);
    if (this.mode === "bars") { context.clearRect(0, 0, wideOf(this.canvas), this.g.height); this.bars(context); } else this.heat(context);
    const place = this.run.a.place[this.run.at];
    if (place >= 0) this.outline(context, place, theme.chosen, 2);
    if (this.over >= 0) this.outline(context, this.over, theme.text, 1.5);
  }

  box(place) {
    const { together, columns, wide, step, high } = this.g, group = Math.floor(place / together), part = place % together;
    const column = group % columns, row = Math.floor(group / columns);
    if (this.mode === "bars") {
      const inner = wide - 8, one = (inner - (together - 1) * 3) / together;
      return [column * wide + 4 + part * (one + 3), row * step + 2, one, high];
    }
    return [column * wide + (part * wide) / together, row * step, wide / together, step];
  }

  bars(context) {
    const { run, g } = this, { use, G } = run;
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "center";
    for (let place = 0; place < g.count; place++) {
      const [x, y, wide, high] = this.box(place), gap = G > 1 ? 1.5 : 0, bar = (wide - (G - 1) * gap) / G;
      for (let r = 0; r < G; r++) {
        const share = use[place * G + r], left = x + r * (bar + gap);
        context.fillStyle = theme.track;
        context.fillRect(left, y, bar, high);
        const full = Math.min(1, Math.max(0, share)) * high;
        context.fillStyle = resourceColour(r);
        context.fillRect(left, y + high - full, bar, full);
        if (share > run.hot) { context.fillStyle = theme.hot; context.fillRect(left, y + high - full, bar, 5); }
      }
      if (place % g.together === 0) {
        context.fillStyle = theme.soft;
        const name = g.together > 1 ? run.head.groups[place] : run.name(place);
        const text = [name, run.short(place).replace(/\.0$/, ""), String(parseInt(run.short(place), 10))];
        const label = text.find((each) => each !== "NaN" && context.measureText(each).width <= g.wide - 2) ?? "";
        context.fillText(label, Math.floor(x - 4 + g.wide / 2), y + high + 14);
      }
    }
  }

  heat(context) { // kept as a picture: a step paints only the cells that changed
    const { run, g } = this, ratio = devicePixelRatio || 1, { still } = this;
    const key = [wideOf(this.canvas), g.height, ratio, theme.version, this.resource, g.count, run.episodeOf(run.at)].join();
    const inside = still.getContext("2d", { alpha: false });
    if (key !== this.painted || run.at < this.paintedAt || run.at - this.paintedAt > MOST_STEPS) {
      still.width = this.canvas.width;
      still.height = this.canvas.height;
      inside.fillStyle = theme.panel;
      inside.fillRect(0, 0, still.width, still.height);
      for (let place = 0; place < g.count; place++) this.cell(inside, place, ratio);
      this.painted = key;
    } else {
      const { used_at, used_of } = run.a;
      for (let i = used_at[this.paintedAt + 1]; i < used_at[run.at + 1]; i++) this.cell(inside, used_of[i], ratio);
    }
    this.paintedAt = run.at;
    context.drawImage(still, 0, 0, still.width / ratio, still.height / ratio);
  }

  cell(inside, place, ratio) { // on whole pixels, so that a cell painted alone covers what it covered before
    const { run, g } = this, { use, G } = run, group = Math.floor(place / g.together), part = place % g.together;
    if (place >= g.count) return;
    let share = 0;
    if (this.resource < G) share = use[place * G + this.resource];
    else for (let r = 0; r < G; r++) share = Math.max(share, use[place * G + r]);
    const across = (group % g.columns) * g.wide + (part * g.wide) / g.together, down = Math.floor(group / g.columns) * g.step;
    const gap = g.step > 9 ? CELL_GAP : 0; // where it does not hide the cells
    const left = Math.round(across * ratio), top = Math.round(down * ratio);
    const right = Math.round((across + g.wide / g.together) * ratio) - (part + 1 === g.together ? gap : 0);
    inside.fillStyle = share > run.hot ? theme.hot : theme.rampCss[level(share)];
    inside.fillRect(left, top, right - left, Math.round((down + g.step) * ratio) - gap - top);
  }

  outline(context, place, colour, width) {
    const [x, y, wide, high] = this.box(place);
    const grow = this.mode === "heat" && wide < 10 ? 3 : 1; // a cell of two pixels would not be seen
    context.lineWidth = width;
    context.strokeStyle = theme.panel;
    context.strokeRect(x - grow - 1, y - grow - 1, wide + 2 * grow + 2, high + 2 * grow + 2);
    context.strokeStyle = colour;
    context.strokeRect(x - grow, y - grow, wide + 2 * grow, high + 2 * grow);
  }

  placeAt(x, y) {
    const { together, columns, wide, step, count } = this.g;
    const column = Math.floor(x / wide), row = Math.floor(y / step);
    if (column < 0 || column >= columns || row < 0) return -1;
    const part = Math.min(together - 1, Math.floor(((x - column * wide) / wide) * together));
    const place = (row * columns + column) * together + part;
    return place < count ? place : -1;
  }

  hover(event) {
    const box = this.canvas.getBoundingClientRect();
    this.show(this.placeAt(event.clientX - box.left, event.clientY - box.top), event.clientX, event.clientY);
  }

  walk(event) { // the same numbers for those who use the keyboard
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.g.columns * this.g.together,
      ArrowDown: this.g.columns * this.g.together }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    const place = Math.max(0, Math.min(this.g.count - 1, (this.over < 0 ? 0 : this.over) + (this.over < 0 ? 0 : step)));
    const [x, y, wide, high] = this.box(place), box = this.canvas.getBoundingClientRect();
    this.show(place, box.left + x + wide / 2, box.top + y + high);
  }

  show(place, x, y) {
    if (place !== this.over) { this.over = place; this.draw(); }
    tell(place < 0 ? "" : describePlace(this.run, place), x, y);
  }
}

function resourceColour(number) {
  if (number === 0) return theme.mid;
  return `hsl(${[262, 168, 40][(number - 1) % 3]} ${theme.dark ? "55% 64%" : "48% 46%"})`;
}

function describePlace(run, place) {
  const { a, at, G } = run, lines = [run.name(place)];
  run.resources.forEach((name, r) => lines.push(`${name} ${percent(run.use[place * G + r])}`));
  for (let i = a.top_at[at]; i < a.top_at[at + 1]; i++) {
    if (a.top_place[i] === place) { lines.push(`score ${exact(a.top_score[i])} (rank ${i - a.top_at[at] + 1})`); break; }
  }
  if (a.place[at] === place) lines.push("chosen for this request");
  const there = run.present(place, at);
  if (there.length) {
    lines.push(`${there.length} there:`);
    for (const life of there.slice(-8).reverse()) {
      lines.push(`  ${run.words[run.lives.who[life]]} since ${run.clock(run.lives.from[life])}`);
    }
    if (there.length > 8) lines.push(`  and ${there.length - 8} more`);
  }
  return lines.join("\n");
}
