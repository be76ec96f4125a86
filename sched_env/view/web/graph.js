"use strict";
// A workflow as the graph it is: columns are levels, colours are nodes, the task to be placed is ringed.

class Graph {
  constructor(canvas, run) {
    Object.assign(this, { canvas, run, spots: [] });
    canvas.addEventListener("pointermove", (event) => this.hover(event));
    canvas.addEventListener("pointerleave", () => tell(""));
  }

  static of(run) { return run.head.episodes.some((episode) => episode.graph); }

  lay(graph) { // level: the longest way from a task without parents
    const count = graph.tasks.length, level = new Int32Array(count), children = Array.from({ length: count }, () => []);
    for (const [from, to] of graph.edges) children[from].push(to);
    for (let task = 0; task < count; task++) { // parents come before their children
      for (const child of children[task]) level[child] = Math.max(level[child], level[task] + 1);
    }
    const rows = [];
    for (let task = 0; task < count; task++) (rows[level[task]] ??= []).push(task);
    return { level, rows };
  }

  draw() {
    const run = this.run, episode = run.episodeOf(run.at), graph = run.head.episodes[episode]?.graph;
    const width = wideOf(this.canvas);
    if (!graph) { fit(this.canvas, 20).clearRect(0, 0, width, 20); this.spots = []; return; }
    const { rows } = this.lay(graph), most = Math.max(...rows.map((row) => row.length));
    const height = Math.max(120, Math.min(420, most * 26)), context = fit(this.canvas, height);
    const radius = Math.max(2.5, Math.min(11, (height / most) * 0.38, (width / rows.length) * 0.3));
    const spot = [];
    rows.forEach((row, column) => row.forEach((task, number) => {
      spot[task] = [((column + 0.5) / rows.length) * width, ((number + 0.5) / row.length) * height];
    }));
    const step = run.at - run.begins[episode], placed = new Map();
    for (let f = run.begins[episode]; f < run.at; f++) placed.set(run.words[run.a.who[f]], f);
    context.clearRect(0, 0, width, height);
    context.lineWidth = 1;
    for (const [from, to] of graph.edges) {
      const moved = placed.has(graph.tasks[from]) && placed.has(graph.tasks[to])
        && run.a.place[placed.get(graph.tasks[from])] !== run.a.place[placed.get(graph.tasks[to])];
      context.strokeStyle = moved ? theme.chosen : theme.line;
      context.beginPath();
      const [x0, y0] = spot[from], [x1, y1] = spot[to], middle = (x0 + x1) / 2;
      context.moveTo(x0, y0);
      context.bezierCurveTo(middle, y0, middle, y1, x1, y1);
      context.stroke();
    }
    const now = run.words[run.a.who[run.at]];
    this.spots = [];
    graph.tasks.forEach((task, number) => {
      const [x, y] = spot[number], frame = placed.get(task);
      context.beginPath();
      context.arc(x, y, radius, 0, 2 * Math.PI);
      context.fillStyle = frame === undefined ? theme.panel : placeColour(run.a.place[frame]);
      context.fill();
      context.lineWidth = task === now ? 3 : 1;
      context.strokeStyle = task === now ? theme.chosen : theme.soft;
      context.stroke();
      this.spots.push([x, y, radius, task, frame]);
    });
    this.canvas.setAttribute("aria-label", `${graph.name}: ${step} of ${graph.tasks.length} tasks placed`);
  }

  hover(event) {
    const box = this.canvas.getBoundingClientRect(), px = event.clientX - box.left, py = event.clientY - box.top, run = this.run;
    const found = this.spots.find(([x, y, radius]) => Math.hypot(px - x, py - y) <= radius + 2);
    if (!found) { tell(""); return; }
    const [, , , task, frame] = found;
    tell(frame === undefined ? `${task}\nnot placed yet` : [task, `on ${run.name(run.a.place[frame])}`,
      `starts ${run.clock(run.a.start_s[frame])}, ends ${run.clock(run.a.end_s[frame])}`,
      `runs ${lasting(run.a.end_s[frame] - run.a.start_s[frame])}`].join("\n"), event.clientX, event.clientY);
  }
}

const placeColour = (place) => `hsl(${(place * 137.5 + 212) % 360} ${theme.dark ? "50% 60%" : "55% 50%"})`;
