"use strict";
// Who was where when: a row a place, a bar a thing (VM, pod, instance, task, job); a migration begins with a notch.

const LEAST_ROW = 18, TALL = 360, MOST_ROWS = 24, BARS_AT_ONCE = 420;

class Timeline {
  constructor(canvas, run) {
    Object.assign(this, { canvas, run, top: 0, left: 110, bars: [], labels: new Map() });
    canvas.addEventListener("pointermove", (event) => this.hover(event));
    canvas.addEventListener("pointerleave", () => tell(""));
  }

  rows() { return Math.min(MOST_ROWS, this.run.a.places[this.run.at]); }

  window() { // all of a short episode; of a long one so much that about BARS_AT_ONCE bars are seen
    const run = this.run, episode = run.episodeOf(run.at), first = run.begins[episode], last = run.begins[episode + 1] - 1;
    let begin = run.a.time_s[first], end = run.a.time_s[last];
    for (let f = first; f <= last && last - first < 2000; f++) if (run.a.end_s[f] > end) end = run.a.end_s[f];
    const shown = ((last - first + 1) * this.rows()) / Math.max(1, run.a.places[run.at]);
    if (shown > BARS_AT_ONCE) {
      const span = ((end - begin) * BARS_AT_ONCE) / shown, now = run.a.time_s[run.at];
      begin = Math.max(begin, now - span * 0.7);
      end = begin + span;
    }
    return [begin, Math.max(end, begin + 1e-6), run.a.time_s[run.at], episode];
  }

  draw() {
    const run = this.run, rows = this.rows(), width = wideOf(this.canvas);
    const ROW = Math.max(LEAST_ROW, Math.min(52, Math.floor(TALL / rows))), height = rows * ROW + 22;
    const context = fit(this.canvas, height), [begin, end, now, episode] = this.window(), { lives } = run;
    const place = run.a.place[run.at], left = (this.left = width < 520 ? 64 : 120);
    if (place >= 0 && (place < this.top || place >= this.top + rows)) {
      this.top = Math.max(0, Math.min(run.a.places[run.at] - rows, place - (rows >> 1)));
    }
    const x = (time) => left + ((time - begin) / (end - begin)) * (width - left);
    context.clearRect(0, 0, width, height);
    context.font = "11px system-ui, sans-serif";
    this.bars = [];
    const beginFrame = run.begins[episode], endFrame = run.begins[episode + 1];
    for (let row = 0; row < rows; row++) {
      const where = this.top + row, y = row * ROW;
      context.fillStyle = where === place ? theme.chosen : theme.soft;
      context.textAlign = "left";
      context.fillText(this.label(where, left - 8, context), 0, y + ROW / 2 + 4);
      context.fillStyle = theme.track;
      context.fillRect(left, y + ROW - 2, width - left, 1);
      const ends = [];
      for (let i = lives.first[where]; i < lives.first[where + 1]; i++) {
        const life = lives.byPlace[i];
        if (lives.fromFrame[life] > run.at || lives.fromFrame[life] < beginFrame - 1 || lives.fromFrame[life] >= endFrame) continue;
        if (lives.from[life] > end || lives.to[life] < begin) continue;
        let lane = ends.findIndex((until) => until <= lives.from[life] + 1e-9);
        if (lane < 0) lane = ends.length;
        ends[lane] = lives.to[life];
        this.bars.push([life, x(Math.max(begin, lives.from[life])), x(Math.min(end, lives.to[life])), y, lane, row]);
      }
      const lanes = Math.max(1, ends.length), high = (ROW - 4) / lanes;
      for (const bar of this.bars) if (bar[5] === row && bar.length === 6) bar.push(y + 1 + bar[4] * high, Math.max(1, high - 0.5));
    }
    for (const [life, from, to, , , , y, high] of this.bars) {
      const running = lives.to[life] > now, name = run.words[lives.who[life]];
      context.fillStyle = `hsl(${hue(name)} ${theme.dark ? "45%" : "55%"} ${running ? (theme.dark ? 58 : 52) : theme.dark ? 34 : 76}%)`;
      context.fillRect(from, y, Math.max(1.5, to - from - 0.5), high);
      if (lives.moved[life]) { context.fillStyle = theme.chosen; context.fillRect(from, y, 3, high); }
    }
    context.fillStyle = theme.chosen;
    context.fillRect(Math.min(width - 1, Math.max(left, x(now))) - 0.5, 0, 1.5, rows * ROW);
    context.fillStyle = theme.soft;
    context.textAlign = "left";
    context.fillText(run.clock(begin), left, height - 6);
    context.textAlign = "right";
    context.fillText(run.clock(end), width, height - 6);
  }

  label(place, room, context) { // measuring text is dear, and rows are the same from frame to frame
    if (this.room !== room) { this.labels.clear(); this.room = room; }
    if (!this.labels.has(place)) {
      const name = this.run.name(place);
      this.labels.set(place, fitted(context.measureText(name).width <= room ? name : this.run.short(place), room, context));
    }
    return this.labels.get(place);
  }

  hover(event) {
    const box = this.canvas.getBoundingClientRect(), px = event.clientX - box.left, py = event.clientY - box.top;
    const found = this.bars.find(([, from, to, , , , y, high]) => px >= from - 1 && px <= Math.max(to, from + 2) && py >= y && py <= y + high);
    if (!found) { tell(""); return; }
    const run = this.run, { lives } = run, life = found[0], lines = [run.words[lives.who[life]], `on ${run.name(lives.place[life])}`];
    lines.push(`from ${run.clock(lives.from[life])} to ${run.clock(lives.to[life])}`);
    lines.push(`${lasting(lives.to[life] - lives.from[life])}${lives.moved[life] ? ", moved here" : ""}`);
    tell(lines.join("\n"), event.clientX, event.clientY);
  }
}

function fitted(text, width, context) {
  if (context.measureText(text).width <= width) return text;
  let kept = text;
  while (kept.length > 2 && context.measureText(`${kept}…`).width > width) kept = kept.slice(0, -1);
  return `${kept}…`;
}
