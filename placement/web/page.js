"use strict";
// Everything that comes from the service enters the page as text, never as markup.

const REFRESH_MS = 5000;

function element(tag, text, className) {
  const node = document.createElement(tag);
  if (text !== undefined && text !== null) node.textContent = String(text);
  if (className) node.className = className;
  return node;
}

const byId = (id) => document.getElementById(id);
const short = (digest) => (digest ? digest.replace("sha256:", "").slice(0, 12) : "none");
const number = (value) => (Number.isInteger(value) ? String(value) : Number(value).toPrecision(4));

function facts(pairs) {
  const list = element("dl");
  for (const [name, value, className] of pairs) {
    if (value === undefined || value === null || value === "") continue;
    list.append(element("dt", name), element("dd", value, className));
  }
  return list;
}

function ago(iso) {
  const seconds = Math.max(0, (Date.now() - Date.parse(iso)) / 1000);
  for (const [unit, size] of [["day", 86400], ["hour", 3600], ["minute", 60]]) {
    const count = Math.floor(seconds / size);
    if (count >= 1) return `${count} ${unit}${count > 1 ? "s" : ""} ago`;
  }
  return `${Math.floor(seconds)} s ago`;
}

async function get(path) {
  const answer = await fetch(path, { headers: { Accept: "application/json" } });
  return answer.ok ? answer.json() : null;
}

// Draws anew only what is another than last time: focus, scroll and open details stay where they are.
const seen = new Map();
function changed(key, value) {
  const text = JSON.stringify(value);
  if (seen.get(key) === text) return false;
  seen.set(key, text);
  return true;
}

function mode(live) {
  if (live.degraded) return [live.digest ? "live, degraded" : "fallback, degraded", "bad"];
  return live.digest ? ["live", "good"] : ["left to the heuristic", "bad"];
}

function folded(key, title, content) {
  const more = element("details");
  more.dataset.key = key;
  more.append(element("summary", title), content);
  return more;
}

function card(problem, live, manifest, flips) {
  const box = element("section", null, "card" + (live.degraded ? " degraded" : live.digest ? " live" : ""));
  const title = element("h3", problem);
  const [said, how] = mode(live);
  title.append(element("small", said, how));
  box.append(title);
  if (live.degraded) box.append(element("p", live.degraded, "bad"));
  box.append(element("code", live.digest ?? `${live.fallback} answers`));
  const gate = manifest?.gate;
  box.append(facts([
    ["since", live.loaded_at && `${live.loaded_at.slice(0, 19).replace("T", " ")} UTC (${ago(live.loaded_at)})`],
    ["counter", live.counter],
    ["before it", live.previous_digest ? short(live.previous_digest) : "nothing"],
    ["canary", live.canary && `${short(live.canary.digest)} answers ${number(100 * live.canary.share)} % of the calls, ` +
      `since ${ago(live.canary.since)}`, "tried"],
    ["shadow", live.shadow_digest && `${short(live.shadow_digest)} scores beside it, decides nothing`, "tried"],
    ["went back", live.returned && `from ${short(live.returned.digest)} ${ago(live.returned.at)}: ${live.returned.reason}`, "bad"],
    ["gate", gate ? `${gate.outcome}: ${gate.reason}` : manifest ? "no verdict in the manifest" : null,
      gate?.outcome === "pass" ? "good" : ""],
    ["algorithm", manifest?.algorithm],
    ["data", manifest && `${manifest.lineage.windows_start} to ${manifest.lineage.windows_end}`],
    ["run", manifest?.lineage.run_id],
    ["commit", manifest?.lineage.git_commit.slice(0, 12)],
    ["features", manifest && `version ${manifest.feature_spec.version}, ` +
      `${manifest.feature_spec.candidate.length} a candidate, ${manifest.feature_spec.request.length} a request`],
    ["fallback", live.fallback],
  ]));
  const metrics = Object.entries(manifest?.metrics ?? {});
  if (metrics.length) {
    const list = facts(metrics.map(([name, value]) => [name, number(value)]));
    box.append(folded(problem, `${metrics.length} metrics from the evaluation`, list));
  }
  if (flips?.length) {
    const list = element("ol", null, "flips");
    for (const flip of flips) {
      const line = element("li");
      line.append(element("span", `#${flip.counter}`, "number"), element("span", flip.loaded_at.slice(0, 19).replace("T", " ")),
        element("code", flip.digest ? short(flip.digest) : "the heuristic"));
      list.append(line);
    }
    box.append(folded(`${problem} flips`, `${flips.length} flips, newest first`, list));
  }
  return box;
}

function untouched(problems) {
  const box = element("section", null, "card");
  const title = element("h3", problems.join(", "));
  title.append(element("small", "no policy yet", "soft"));
  box.append(title, element("p", "Nothing was ever pushed: the fallback heuristic answers.", "soft"));
  return box;
}

function detail(decision) {
  const best = Math.max(...decision.top.map(([, score]) => Math.abs(score)), 1e-9);
  const list = element("ol", null, "scores");
  for (const [name, score] of decision.top) {
    const line = element("li");
    const bar = element("meter");
    Object.assign(bar, { min: 0, max: best, value: Math.abs(score) });
    line.append(element("span", name), bar, element("span", number(score), "number"));
    list.append(line);
  }
  const box = element("div");
  box.append(element("p", decision.reason), list, facts([
    ["policy", decision.digest], ["counter", decision.counter], ["answered by", decision.arm],
    ["runner-up", decision.runner_up], ["propensity", decision.propensity === null ? null : number(decision.propensity)],
    ["observation", decision.features],
    ["the way back", decision.digest && `loadmaster registry lineage ${decision.digest}`],
  ]));
  return box;
}

const opened = new Set();
const named = (decision) => `${decision.at} ${decision.request}`;

function rows(decision) {
  const line = element("tr"), key = named(decision);
  const by = decision.fallback ? `fallback (${decision.fallback})` : short(decision.digest) + (decision.arm === "canary" ? " (canary)" : "");
  const button = element("button", decision.request, "plain");
  button.type = "button";
  button.dataset.key = key;
  button.setAttribute("aria-expanded", opened.has(key));
  const request = element("td");
  request.append(button);
  line.append(
    element("td", decision.at.slice(11, 19)),
    element("td", decision.problem),
    request,
    element("td", decision.chosen ?? "nowhere", decision.chosen ? "" : "bad"),
    element("td", decision.top.length ? number(decision.top[0][1]) : "", "number"),
    element("td", `${decision.feasible} of ${decision.candidates}`, "number"),
    element("td", decision.latency_us === null ? "" : `${(decision.latency_us / 1000).toFixed(2)} ms`, "number"),
    element("td", by, decision.fallback ? "bad" : ""),
    element("td", decision.reason, "reason"),
  );
  const below = element("tr", null, "below");
  below.hidden = !opened.has(key);
  const cell = element("td");
  cell.colSpan = 9;
  if (!below.hidden) cell.append(detail(decision));
  below.append(cell);
  button.addEventListener("click", () => {
    below.hidden = !below.hidden;
    if (below.hidden) opened.delete(key);
    else { opened.add(key); cell.replaceChildren(detail(decision)); }
    button.setAttribute("aria-expanded", String(!below.hidden));
  });
  return [line, below];
}

let decided = { decisions: [], totals: {}, fallbacks: {} };

function showDecisions() {
  const problem = byId("of").value, words = byId("with").value.toLowerCase(), only = byId("fallbacks").checked;
  const wanted = decided.decisions.filter((one) => (!problem || one.problem === problem) && (!only || one.fallback) &&
    (!words || `${one.request} ${one.chosen} ${one.reason}`.toLowerCase().includes(words)));
  const focused = document.activeElement?.dataset?.key;
  byId("decisions").replaceChildren(...wanted.flatMap(rows));
  if (focused) [...byId("decisions").querySelectorAll("button")].find((one) => one.dataset.key === focused)?.focus();
  if (!wanted.length) {
    const none = element("td", decided.decisions.length ? "None like this among the last." : "None since the service started.", "soft");
    none.colSpan = 9;
    const line = element("tr");
    line.append(none);
    byId("decisions").append(line);
  }
}

function showHour(overview) {
  const holder = byId("hour"), problems = Object.entries(overview.timeline);
  if (!problems.length) holder.replaceChildren(element("p", "No decision since the service started.", "soft"));
  else if (holder.firstElementChild?.tagName === "P") holder.replaceChildren();
  for (const [problem, moments] of problems) {
    let strip = [...holder.children].find((child) => child.dataset.key === problem);
    if (!strip) {
      strip = element("div", null, "strip");
      strip.dataset.key = problem;
      holder.append(strip);
    }
    for (const key of ["decisions", "fallback", "latency"]) figure(strip, key, ""); // all three, so that widths are final
    const times = moments.map((one) => one.at);
    lines(strip, "decisions", `${problem}: decisions every ${overview.every_s} s`, times,
      [{ name: "decisions", className: "a", values: moments.map((one) => one.decisions) }], "");
    lines(strip, "fallback", "by the fallback, %", times, [{ name: "fallback", className: "bad",
      values: moments.map((one) => (one.decisions ? (100 * one.fallbacks) / one.decisions : null)) }], " %");
    lines(strip, "latency", "latency, ms (p99 bold, p50)", times, [
      { name: "p50", className: "a", values: moments.map((one) => one.p50_ms) },
      { name: "p99", className: "b", values: moments.map((one) => one.p99_ms) }], " ms");
  }
}

const FEW_NODES = 40;

function meters(title, list) {
  const box = element("div", null, "scroll");
  const table = element("table");
  table.append(element("caption", title));
  const body = element("tbody");
  for (const one of list) {
    const line = element("tr");
    line.append(element("td", one.name, one.open === false ? "soft" : ""));
    for (const [share, text] of one.bars) {
      const cell = element("td"), bar = element("meter");
      Object.assign(bar, { min: 0, max: 1, high: 0.9, optimum: 0, value: Math.min(1, share) });
      bar.setAttribute("aria-label", text);
      cell.append(bar, element("span", ` ${text}`, "soft"));
      line.append(cell);
    }
    body.append(line);
  }
  table.append(body);
  box.append(table);
  return box;
}

function showNodes(clusters) {
  const holder = byId("nodes");
  if (!clusters.length) {
    const counts = new Map();
    for (const one of decided.decisions) {
      const place = `${one.chosen ?? "nowhere"} (${one.problem})`;
      counts.set(place, (counts.get(place) ?? 0) + 1);
    }
    if (!changed("nodes", [...counts])) return;
    const list = [...counts].sort((a, b) => b[1] - a[1]).slice(0, FEW_NODES)
      .map(([name, count]) => ({ name, bars: [[count / decided.decisions.length, `${count} of the last ${decided.decisions.length} decisions`]] }));
    holder.replaceChildren(element("p", "No cluster is watched: callers send their nodes with each request, and the service keeps " +
      "nothing of them. Where the last decisions went:", "soft"), meters("", list));
    return;
  }
  for (const [name, load] of clusters) {
    const share = (part, whole) => (whole > 0 ? part / whole : 0);
    const cells = load.names.map((node, at) => ({
      name: node, open: load.open[at],
      cpu: share(load.cpu_deployed[at], load.cpu_capacity[at]), mem: share(load.mem_deployed[at], load.mem_capacity[at]),
      text: `${node}: ${number(load.cpu_deployed[at])} of ${number(load.cpu_capacity[at])} cores, ${number(load.mem_deployed[at])} ` +
        `of ${number(load.mem_capacity[at])} GiB asked for by ${load.pods[at]} pods${load.open[at] ? "" : ", takes no more"}`,
    }));
    const silent = load.silent_s === null ? "never heard of" : `heard of ${load.silent_s} s ago`;
    const title = `${name}: ${cells.length} nodes, ${silent}; requests of cpu (above) and memory (below) by node`;
    if (cells.length > FEW_NODES) heat(holder, name, title, cells);
    else if (changed(`nodes ${name}`, [title, cells])) {
      const bars = cells.map((cell) => ({ name: cell.name, open: cell.open, bars: [
        [cell.cpu, `cpu ${Math.round(100 * cell.cpu)} %`], [cell.mem, `memory ${Math.round(100 * cell.mem)} %`]] }));
      const made = meters(title, bars);
      made.dataset.key = name;
      const before = [...holder.children].find((child) => child.dataset.key === name);
      if (before) before.replaceWith(made); else holder.append(made);
    }
  }
}

const spanned = (seconds) => (seconds >= 5400 ? `${(seconds / 3600).toFixed(1)} h` : seconds >= 90 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds)} s`);

function showJobs(plan, listed) {
  byId("jobs").hidden = false;
  byId("counts").textContent = "· " + (Object.entries(listed.counts).map(([state, count]) => `${count} ${state}`).join(", ") || "none yet");
  const bars = plan.attempts.filter(({ attempt }) => attempt.outcome !== "not_submitted").map(({ name, model, tenant, attempt }) => {
    const from = attempt.started_at ?? attempt.decided_at, to = attempt.ended_at ?? Math.max(plan.now, from);
    const className = attempt.outcome === "finished" ? "finished" : attempt.outcome ? "failed" : attempt.started_at ? "running" : "waits";
    const end = attempt.ended_at ? `ended ${clock(attempt.ended_at)} (${attempt.outcome})` : "not ended";
    const predicted = attempt.predicted_end ? `, predicted ${clock(attempt.predicted_end)}` : "";
    return { row: attempt.card, from, to, mark: attempt.predicted_end, className,
      text: `${name} (${model}, ${tenant}), attempt ${attempt.number} on ${attempt.card}: from ${clock(from)}, ${end}${predicted}` +
        (attempt.waited_for ? `; waited for ${attempt.waited_for}` : "") };
  });
  const cards = [...new Set([...plan.cards, ...bars.map((bar) => bar.row)])];
  gantt(byId("gantt"), "gantt", "By card", cards, bars, plan.now);
  const line = listed.jobs.filter((job) => job.state === "waiting" || job.state === "reserved").reverse();
  if (changed("line", [line, Math.round(plan.now / 10)])) {
    byId("line").replaceChildren(...line.slice(0, 50).map((job) => {
      const row = element("tr");
      row.append(element("td", job.name), element("td", job.tenant), element("td", job.state),
        element("td", spanned(plan.now - job.submitted_at), "number"),
        element("td", job.promised_start ? `${clock(job.promised_start)} on ${job.card}` : ""));
      return row;
    }));
    if (!line.length) {
      const none = element("td", "Nobody waits.", "soft"), row = element("tr");
      none.colSpan = 5;
      row.append(none);
      byId("line").append(row);
    }
  }
  const ended = plan.attempts.filter(({ attempt }) => attempt.outcome === "finished" && attempt.predicted_end !== null && attempt.ended_at > attempt.decided_at);
  if (!ended.length) {
    byId("predicted").replaceChildren(element("p", "No job has finished yet.", "soft"));
    return;
  }
  const dots = ended.map(({ name, attempt }) => {
    const x = Math.max(0, attempt.predicted_end - attempt.decided_at) / 60, y = (attempt.ended_at - attempt.decided_at) / 60;
    return { x, y, text: `${name}: predicted ${number(x)} min, took ${number(y)} min (${number((100 * (y - x)) / y)} % more than predicted)` };
  });
  const errors = dots.map((dot) => Math.abs(dot.y - dot.x) / dot.y).sort((a, b) => a - b);
  const median = errors[Math.floor(errors.length / 2)];
  if (byId("predicted").firstElementChild?.tagName === "P") byId("predicted").replaceChildren();
  against(byId("predicted"), "against", `${dots.length} finished jobs, off by ${(100 * median).toFixed(1)} % (median)`, dots,
    ["predicted, min", "actual, min"], "");
}

async function refresh() {
  const [policies, latest, overview] = await Promise.all([get("/v1/policies"), get("/v1/decisions"), get("/v1/overview")]);
  decided = latest;
  // What answers by policy comes first: that is what people open the page for.
  const problems = Object.entries(policies.policies).sort((a, b) => Boolean(b[1]) - Boolean(a[1]));
  if (changed("policies", [problems, Math.floor(Date.now() / 60000)])) {
    const [manifests, flips] = await Promise.all([
      Promise.all(problems.map(([name, live]) => (live?.digest ? get(`/v1/policies/${name}`) : null))),
      Promise.all(problems.map(([name, live]) => (live ? get(`/v1/policies/${name}/flips`) : null))),
    ]);
    const open = new Set([...document.querySelectorAll("details[open]")].map((node) => node.dataset.key));
    const focused = document.activeElement?.parentElement?.dataset?.key;
    const cards = problems.map(([name, live], at) => live && card(name, live, manifests[at], flips[at]?.flips)).filter(Boolean);
    const bare = problems.filter(([, live]) => !live).map(([name]) => name);
    if (bare.length) cards.push(untouched(bare));
    byId("policies").replaceChildren(...cards);
    for (const node of document.querySelectorAll("details")) {
      node.open = open.has(node.dataset.key);
      if (focused && node.dataset.key === focused) node.querySelector("summary").focus();
    }
    if (byId("of").options.length === 1) byId("of").append(...problems.map(([name]) => element("option", name)));
  }
  byId("frozen").hidden = !overview.frozen_until;
  byId("frozen").textContent = overview.frozen_until ? `Frozen: nothing new goes live until ${overview.frozen_until}.` : "";
  if (changed("decisions", decided.decisions)) showDecisions();
  showHour(overview);
  const loads = await Promise.all(overview.clusters.map(async (name) => [name, await get(`/v1/clusters/${encodeURIComponent(name)}/nodes`)]));
  showNodes(loads.filter(([, load]) => load));
  if (overview.jobs) {
    const [plan, listed] = await Promise.all([get("/v1/network/attempts"), get("/v1/jobs?limit=300")]);
    showJobs(plan, listed);
  }
  const fallbacks = Object.values(decided.fallbacks).reduce((sum, count) => sum + count, 0);
  const total = Object.values(decided.totals).reduce((sum, count) => sum + count, 0);
  byId("rate").textContent = total
    ? `· ${total} decisions since the start, ${fallbacks} by the fallback (${((100 * fallbacks) / total).toFixed(1)} %)`
    : "";
  byId("pulse").textContent = `up to date at ${new Date().toISOString().slice(11, 19)} UTC`;
  byId("pulse").className = "soft";
}

async function tick() {
  try {
    await refresh();
  } catch (error) {
    byId("pulse").textContent = `the service does not answer (${error.message})`;
    byId("pulse").className = "bad";
  }
  // Nobody looks at a page in the background: it asks again when it is looked at.
  if (!document.hidden) setTimeout(tick, REFRESH_MS);
  else document.addEventListener("visibilitychange", tick, { once: true });
}

function example() {
  const node = (name, cpu, mem, price) => ({
    name, state: { cpu_capacity: 8, mem_capacity: 32, cpu_deployed: cpu, mem_deployed: mem, price },
  });
  return {
    problem: "functions",
    requests: [{ id: "try-1", fields: { cpu: 1, mem: 2, requests: 20 } }],
    candidates: [node("node-a", 1, 4, 0.4), node("node-b", 6, 20, 0.4), node("node-c", 0, 0, 1.1), node("node-d", 8, 30, 0.2)],
    top_k: 3,
  };
}

async function ask() {
  const output = byId("answer");
  try {
    const answer = await fetch("/v1/place", {
      method: "POST", headers: { "Content-Type": "application/json" }, body: byId("body").value,
    });
    output.textContent = JSON.stringify(await answer.json(), null, 2);
    output.className = answer.ok ? "" : "bad";
    await refresh();
  } catch (error) {
    output.textContent = error.message;
    output.className = "bad";
  }
}

window.addEventListener("resize", () => refresh().catch(() => {})); // tick says it when the service is gone
byId("body").value = JSON.stringify(example(), null, 2);
byId("send").addEventListener("click", ask);
byId("filters").addEventListener("input", showDecisions);
byId("filters").addEventListener("submit", (event) => event.preventDefault());
tick();
