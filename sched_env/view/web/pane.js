"use strict";
// One run on the page: figures, request, scores, cluster, trend, timeline or graph, events.

const SCORES_SHOWN = 8, EVENTS_SHOWN = 7;

function element(tag, attributes = {}, ...inside) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") made.className = value; else made.setAttribute(name, value);
  }
  made.append(...inside);
  return made;
}

class Pane {
  constructor(run, go) {
    Object.assign(this, { run, go, tab: Graph.of(run) ? "graph" : "timeline" });
    this.root = element("section", { class: "pane", "aria-label": `${run.head.policy} on ${run.head.scenario}` });
    this.build();
  }

  build() {
    const { head } = this.run, root = this.root;
    const title = element("div", { class: "title" }, element("h2", {}, head.policy),
      element("span", { class: "soft" }, [head.scenario, head.seed && `seed ${head.seed}`, head.source].filter(Boolean).join(" · ")));
    if (this.run.begins.length > 2) {
      this.episodes = element("select", { "aria-label": "Episode" });
      this.run.begins.slice(0, -1).forEach((_, number) => this.episodes.append(element("option", { value: number }, `episode ${number + 1}`)));
      this.episodes.addEventListener("change", () => this.go(this.run.begins[Number(this.episodes.value)]));
      title.append(element("label", {}, this.episodes));
    }
    this.tiles = element("div", { class: "tiles" });
    this.tiles.style.setProperty("--tiles", head.resources.length + (head.live ? 3 : head.problem === "pods" ? 5 : 4));
    this.gauges = head.resources.map((name) => this.tile(`${name}, mean`, true));
    this.figures = { score: head.live ? null : this.tile("Score so far"), decision: this.tile(head.still ? "Sample" : "Decision"),
      places: this.tile({ half: "Servers", card: "Cards", node: "Nodes" }[head.kind] ?? "Candidates"), time: this.tile("Cluster time") };
    if (head.problem === "pods" && !head.live) this.figures.moves = this.tile("Migrations");
    this.who = element("div", { class: "who" });
    this.fields = element("dl", { class: "fields" });
    this.values = head.request.map(([name, unit]) => {
      const value = element("dd");
      const unitText = ["flag", "ratio", "count"].includes(unit) ? "" : ` ${unit === "seconds" ? "s" : unit}`;
      this.fields.append(element("div", {}, element("dt", { title: `${name}, ${unit}` }, name.replaceAll("_", " ")), value));
      return [value, unit === "flag" ? null : unitText];
    });
    this.note = element("p", { class: "note" });
    this.scores = element("div", { class: "scores" });
    this.bars = Array.from({ length: SCORES_SHOWN }, () => {
      const name = element("span"), fill = element("i"), number = element("span", { class: "number" });
      const line = element("div", { class: "score" }, name, element("div", { class: "track" }, fill), number);
      this.scores.append(line);
      return { line, name, fill, number };
    });
    const two = element("div", { class: "two" },
      element("div", { class: "panel request" }, element("h3", {}, "Request to place"), this.who, this.fields, this.note),
      element("div", { class: "panel" }, element("h3", {}, "Scores of the policy"), this.scores));
    root.append(title, this.tiles, this.clusterPanel(), two, this.trendPanel(), this.historyPanel(), this.eventPanel());
    this.sheet = element("details", { class: "panel" }, element("summary", {}, "How the episode came out"));
    this.sheetFields = element("div", { class: "sheet" });
    this.sheet.append(this.sheetFields);
    if (head.episodes.some((episode) => episode.metrics)) root.append(this.sheet);
  }

  tile(name, meter) {
    const value = element("div", { class: "value" }), more = element("div", { class: "more" }), fill = element("i");
    const box = element("div", { class: "tile" }, element("div", { class: "name" }, name), value);
    if (meter) box.append(element("div", { class: "meter" }, fill)); else box.append(more);
    this.tiles.append(box);
    return { value, more, fill };
  }

  keys() {
    const keys = this.run.resources.map((name, r) => {
      const mark = element("i");
      mark.dataset.resource = r;
      return element("span", { class: "key" }, mark, name);
    });
    return keys;
  }

  clusterPanel() {
    const canvas = element("canvas"), { run } = this;
    this.cluster = new Cluster(canvas, run);
    const which = element("select", { "aria-label": "Resource of the heat map" });
    [...run.resources, ...(run.G > 1 ? ["the fullest"] : [])].forEach((name, r) => which.append(element("option", { value: r }, name)));
    which.addEventListener("change", () => { this.cluster.resource = Number(which.value); this.cluster.draw(); });
    const mode = element("button", { title: "Bars or heat map" });
    const legend = element("span", { class: "key" });
    const show = () => {
      const heat = this.cluster.mode === "heat";
      mode.textContent = heat ? "Show bars" : "Show heat map";
      which.hidden = !heat;
      legend.replaceChildren(...(heat ? ["0", element("span", { class: "ramp" }), "100 %"] : [...this.keys(), ...(run.hot < 1 ? [`red edge: above ${run.hot * 100} %`] : [])]));
      this.colourKeys();
    };
    mode.addEventListener("click", () => { this.cluster.mode = this.cluster.mode === "heat" ? "bars" : "heat"; show(); this.cluster.draw(); });
    const panel = element("div", { class: "panel" }, element("div", { class: "head" }, element("h3", {}, run.head.still ? "The cluster as it was" : run.head.live ? "How often each was chosen" : "Cluster before the decision"),
      element("div", { class: "right" }, legend, which, mode)), element("div", { class: "scrolled" }, canvas));
    this.showKeys = show;
    show();
    return panel;
  }

  trendPanel() {
    const canvas = element("canvas", { role: "img", "aria-label": "Mean load over the episode" });
    this.trend = new Trend(canvas, this.run, (frame) => this.go(frame));
    this.trendKeys = element("span", { class: "right" }, ...this.keys());
    return element("div", { class: "panel" }, element("div", { class: "head" }, element("h3", {}, "Load trend"), this.trendKeys), canvas);
  }

  historyPanel() {
    const { run } = this, timeline = element("canvas", { role: "img", "aria-label": "Who was where when" }), graph = element("canvas", { role: "img" });
    this.timeline = new Timeline(timeline, run);
    this.graph = Graph.of(run) ? new Graph(graph, run) : null;
    const head = element("div", { class: "head" }, element("h3", {}, { card: "Jobs on cards", half: "VMs on servers" }[run.head.kind] ?? "What is where, and when"));
    if (this.graph) {
      const tabs = element("div", { class: "right tabs", role: "tablist" });
      for (const [name, text] of [["graph", "Workflow"], ["timeline", "Timeline"]]) {
        const tab = element("button", { role: "tab", "aria-selected": name === this.tab }, text);
        tab.addEventListener("click", () => {
          this.tab = name;
          for (const each of tabs.children) each.setAttribute("aria-selected", each === tab);
          timeline.hidden = name !== "timeline"; graph.hidden = name !== "graph";
          this.draw();
        });
        tabs.append(tab);
      }
      head.append(tabs);
    }
    timeline.hidden = this.tab !== "timeline";
    graph.hidden = this.tab !== "graph";
    this.history = element("div", { class: "panel" }, head, graph, timeline);
    this.history.hidden = run.lives.count === 0;
    return this.history;
  }

  eventPanel() {
    this.events = element("ul", { class: "events" });
    return element("div", { class: "panel" }, element("h3", {}, "Latest"), this.events);
  }

  colourKeys() {
    for (const mark of this.root.querySelectorAll("[data-resource]")) mark.style.background = resourceColour(Number(mark.dataset.resource));
  }

  draw(words = true) { // drawings first: they need what the page measures before words are written
    this.cluster.draw();
    this.trend.draw();
    if (!this.history.hidden) (this.tab === "graph" && this.graph ? this.graph : this.timeline).draw();
    if (!words) return;
    this.drawFigures();
    this.drawRequest();
    this.drawScores();
    this.drawEvents();
  }

  drawFigures() {
    const { run } = this, { a, at, G } = run, episode = run.episodeOf(at), first = run.begins[episode];
    this.gauges.forEach((gauge, r) => {
      const share = run.trend[at * G + r];
      gauge.value.textContent = percent(share);
      gauge.fill.style.transform = `scaleX(${Math.max(0, Math.min(1, share))})`;
      gauge.fill.className = share > run.hot ? "hot" : "";
    });
    const { score, decision, places, time } = this.figures;
    if (score) {
      score.value.textContent = exact(Number((at > first ? run.score[at - 1] : 0).toFixed(3)));
      score.more.textContent = `this one ${a.reward[at] < 0 ? "" : "+"}${exact(Number(a.reward[at].toPrecision(3)))}`;
    }
    decision.value.textContent = whole(at - first + 1);
    decision.more.textContent = `of ${whole(run.begins[episode + 1] - first)}`;
    const together = run.head.kind === "half" ? 2 : 1;
    places.value.textContent = whole(a.places[at] / together);
    const joined = (a.places[at] - a.places[first]) / together;
    places.more.textContent = joined > 0 ? `${whole(joined)} joined` : `${whole(a.feasible[at])} feasible`;
    time.value.textContent = run.clock(a.time_s[at]);
    if (this.figures.moves) this.figures.moves.value.textContent = whole(run.moves[at]);
    time.more.textContent = run.head.live ? new Date(a.time_s[at] * 1000).toISOString().slice(0, 10) : "since the start";
    if (this.episodes) this.episodes.value = String(episode);
    if (this.shownSheet !== episode) this.drawSheet(episode);
  }

  drawSheet(episode) {
    this.shownSheet = episode;
    const metrics = this.run.head.episodes[episode]?.metrics ?? {};
    this.sheetFields.replaceChildren(...Object.entries(metrics).filter(([, value]) => value !== null).map(([name, value]) =>
      element("div", {}, element("span", { class: "soft" }, name), element("span", {}, exact(value)))));
  }

  drawRequest() {
    const { run } = this, { a, at } = run, R = this.values.length;
    this.who.textContent = a.place[at] < 0 ? (run.head.still ? "A snapshot: nothing is asked" : "Nothing is placed now") : `${run.words[a.who[at]] || "request"} → ${run.name(a.place[at])}`;
    this.values.forEach(([cell, unit], number) => {
      const value = a.request[at * R + number];
      cell.textContent = unit === null ? (value ? "yes" : "no") : exact(value) + unit;
    });
    const ends = a.end_s[at] - a.start_s[at];
    this.note.textContent = a.note ? run.words[a.note[at]] : Number.isFinite(ends) ? `Stays ${lasting(ends)}, as known now.` : "";
  }

  drawScores() {
    const { run } = this, { a, at } = run, from = a.top_at[at], to = Math.min(a.top_at[at + 1], from + SCORES_SHOWN);
    const named = a.top_who_at[at + 1] > a.top_who_at[at];
    const best = a.top_score[from], least = a.top_score[Math.max(from, to - 1)], range = best - least;
    this.bars.forEach(({ line, name, fill, number }, k) => {
      const i = from + k;
      line.style.visibility = i < to ? "visible" : "hidden";
      if (i >= to) return;
      const who = named ? run.words[a.top_who[a.top_who_at[at] + k]] : "";
      name.textContent = a.top_place[i] < 0 ? "wait" : (who ? `${who} → ` : "") + run.name(a.top_place[i]);
      name.title = name.textContent;
      fill.style.transform = `scaleX(${range > 0 ? 0.06 + 0.94 * ((a.top_score[i] - least) / range) : 1})`;
      number.textContent = exact(Number(a.top_score[i].toPrecision(6)));
      const whose = !named || who === run.words[a.who[at]];
      line.classList.toggle("chosen", a.top_place[i] === a.place[at] && whose);
    });
    if (from === to) {
      this.bars[0].line.style.visibility = "visible";
      this.bars[0].name.textContent = "none recorded";
      this.bars[0].number.textContent = "";
      this.bars[0].fill.style.transform = "scaleX(0)";
      this.bars[0].line.classList.remove("chosen");
    }
  }

  drawEvents() {
    const { run } = this, { a, at } = run, first = run.begins[run.episodeOf(at)], lines = [];
    const put = (time, kind, text, now) => lines.push([run.clock(time), kind, text, now]);
    for (let f = at; f >= first && lines.length < EVENTS_SHOWN; f--) {
      if (f < at) {
        for (let e = a.event_at[f + 1] - 1; e >= a.event_at[f] && lines.length < EVENTS_SHOWN; e--) {
          const kind = KINDS[a.event[e]], who = run.words[a.event_who[e]];
          if (kind === "there" || (kind === "move" && a.event_who[e] === a.who[f])) continue;
          put(a.event_s[e], kind, kind === "end" ? `${who} left ${run.name(a.event_from[e])}` : kind === "move" ? `${who}: ${run.name(a.event_from[e])} → ${run.name(a.event_to[e])}` : `${who} on ${run.name(a.event_to[e])}`);
        }
        if (a.places[f + 1] > a.places[f] && lines.length < EVENTS_SHOWN) {
          const together = run.head.kind === "half" ? 2 : 1;
          put(a.time_s[f + 1], "join", `${whole((a.places[f + 1] - a.places[f]) / together)} joined: now ${whole(a.places[f + 1] / together)}`);
        }
      }
      if (lines.length < EVENTS_SHOWN) put(a.time_s[f], "place", this.decided(f), f === at);
    }
    this.events.replaceChildren(...lines.map(([time, kind, text, now]) =>
      element("li", now ? { class: "now" } : {}, element("span", { class: "soft" }, time), element("b", {}, kind), element("span", {}, text))));
  }

  decided(frame) {
    const { run } = this, { a } = run, who = run.words[a.who[frame]];
    if (run.head.still) return "sample";
    if (a.place[frame] < 0) return run.head.live ? `${who}: nowhere` : "wait";
    for (let e = a.event_at[frame]; e < a.event_at[frame + 1]; e++) {
      if (a.event_who[e] === a.who[frame] && KINDS[a.event[e]] === "move") return `${who}: ${run.name(a.event_from[e])} → ${run.name(a.event_to[e])}`;
    }
    const stays = run.head.problem === "pods" ? " stays on " : " → ";
    return `${who || "request"}${stays}${run.name(a.place[frame])}`;
  }
}
