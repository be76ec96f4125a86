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

function card(problem, live, manifest) {
  const box = element("section", null, "card" + (live?.degraded ? " degraded" : live?.digest ? " live" : ""));
  const title = element("h3", problem);
  box.append(title);
  if (!live) {
    title.append(element("small", "no policy yet", "soft"));
    box.append(element("p", "The fallback heuristic answers.", "soft"));
    return box;
  }
  title.append(element("small", live.digest ? "live" : "fallback", live.digest ? "good" : "bad"));
  if (live.degraded) box.append(element("p", live.degraded, "bad"));
  const digest = element("code", live.digest ?? "none");
  box.append(digest);
  const gate = manifest?.gate;
  box.append(facts([
    ["since", live.loaded_at && `${live.loaded_at.slice(0, 19).replace("T", " ")} UTC (${ago(live.loaded_at)})`],
    ["counter", live.counter],
    ["before it", live.previous_digest ? short(live.previous_digest) : "nothing"],
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
    const more = element("details");
    more.dataset.key = problem;
    more.append(element("summary", `${metrics.length} metrics from the evaluation`));
    more.append(facts(metrics.map(([name, value]) => [name, number(value)])));
    box.append(more);
  }
  return box;
}

function row(decision) {
  const line = element("tr");
  const by = decision.fallback ? `fallback (${decision.fallback})` : short(decision.digest);
  line.append(
    element("td", decision.at.slice(11, 19)),
    element("td", decision.problem),
    element("td", decision.request),
    element("td", decision.chosen ?? "nowhere", decision.chosen ? "" : "bad"),
    element("td", decision.top.length ? number(decision.top[0][1]) : "", "number"),
    element("td", `${decision.feasible} of ${decision.candidates}`, "number"),
    element("td", by, decision.fallback ? "bad" : ""),
    element("td", decision.reason, "reason"),
  );
  return line;
}

async function refresh() {
  const [policies, decided] = await Promise.all([get("/v1/policies"), get("/v1/decisions")]);
  // What answers by policy comes first: that is what people open the page for.
  const problems = Object.entries(policies.policies).sort((a, b) => Boolean(b[1]) - Boolean(a[1]));
  const manifests = await Promise.all(problems.map(([name, live]) => (live?.digest ? get(`/v1/policies/${name}`) : null)));
  const open = new Set([...document.querySelectorAll("details[open]")].map((node) => node.dataset.key));
  byId("policies").replaceChildren(...problems.map(([name, live], index) => card(name, live, manifests[index])));
  for (const node of document.querySelectorAll("details")) node.open = open.has(node.dataset.key);
  const rows = decided.decisions;
  byId("decisions").replaceChildren(...rows.map(row));
  if (!rows.length) {
    const none = element("td", "None since the service started.", "soft");
    none.colSpan = 8;
    const line = element("tr");
    line.append(none);
    byId("decisions").append(line);
  }
  const fallbacks = Object.values(decided.fallbacks).reduce((sum, count) => sum + count, 0);
  const total = Object.values(decided.totals).reduce((sum, count) => sum + count, 0);
  byId("rate").textContent = total
    ? `· ${total} since the start, ${fallbacks} by the fallback (${((100 * fallbacks) / total).toFixed(1)} %)`
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
  setTimeout(tick, REFRESH_MS);
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

byId("body").value = JSON.stringify(example(), null, 2);
byId("send").addEventListener("click", ask);
tick();
