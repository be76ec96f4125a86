"use strict";
// Playback of one run or two in step, keys, and the start of the page.

const $ = (id) => document.getElementById(id);
const player = { runs: [], panes: [], frame: 0, playing: false, last: 0, owed: 0, drawn: 0, worded: 0 };

async function open() {
  readTheme();
  const heads = [...document.querySelectorAll("script.run-head")].map((tag) => JSON.parse(tag.textContent));
  const blocks = [...document.querySelectorAll("script.run-block")];
  try {
    player.runs = await Promise.all(heads.map((head, k) => unpack(head, blocks[k].textContent)));
  } catch (error) {
    $("waiting").textContent = `The run cannot be shown: ${error.message}. A browser of 2023 or later is needed.`;
    throw error;
  }
  blocks.forEach((block) => block.remove());
  document.body.classList.toggle("pair", player.runs.length > 1);
  player.panes = player.runs.map((run, number) => new Pane(run, (frame) => goIn(number, frame)));
  $("panes").append(...player.panes.map((pane) => pane.root));
  $("waiting").remove();
  $("slider").max = String(player.runs[0].frames - 1);
  if (player.runs.length > 1 && !sameDecisions()) $("sync").value = "time";
  player.panes.forEach((pane) => pane.colourKeys());
  const wanted = Number(new URLSearchParams(location.hash.slice(1)).get("frame"));
  go(Number.isFinite(wanted) && wanted > 0 ? wanted - 1 : 0);
  document.body.dataset.ready = "yes";
}

function sameDecisions() {
  const [a, b] = player.runs;
  return a.head.scenario === b.head.scenario && a.begins.length === b.begins.length
    && a.head.episodes.every((episode, k) => episode.start === b.head.episodes[k]?.start);
}

function follow(run, frame) { // where the other run is when the first is at this frame: same episode, then step or time
  const lead = player.runs[0], episode = Math.min(lead.episodeOf(frame), run.begins.length - 2);
  if ($("sync").value === "time") {
    const since = lead.a.time_s[frame] - lead.a.time_s[lead.begins[lead.episodeOf(frame)]];
    return run.frameAtTime(run.a.time_s[run.begins[episode]] + since, episode);
  }
  return Math.min(run.begins[episode + 1] - 1, run.begins[episode] + frame - lead.begins[lead.episodeOf(frame)]);
}

function go(frame) {
  const lead = player.runs[0];
  player.frame = Math.max(0, Math.min(lead.frames - 1, Math.round(frame)));
  player.runs.forEach((run, number) => run.seek(number ? follow(run, player.frame) : player.frame));
  // Nobody reads words that change sixty times a second: while it plays they follow ten times a second.
  const words = !player.playing || performance.now() - player.worded >= 100;
  if (words) player.worded = performance.now();
  player.panes.forEach((pane) => pane.draw(words));
  player.drawn++;
  $("slider").value = String(player.frame);
  $("slider").setAttribute("aria-valuetext", `decision ${player.frame + 1} of ${lead.frames}`);
  $("where").textContent = `${whole(player.frame + 1)} / ${whole(lead.frames)}`;
  if (words) player.panes.forEach((pane) => {
    const { run } = pane;
    pane.cluster.canvas.setAttribute("aria-label", `Cluster before decision ${run.at + 1}: ` + run.resources.map((name, r) => `${name} ${percent(run.trend[run.at * run.G + r])}`).join(", "));
  });
}

function goIn(number, frame) { // a frame of either run; the lead goes where that is
  if (number === 0) { go(frame); return; }
  const lead = player.runs[0], run = player.runs[number], episode = Math.min(run.episodeOf(frame), lead.begins.length - 2);
  const step = frame - run.begins[run.episodeOf(frame)];
  go(Math.min(lead.begins[episode + 1] - 1, lead.begins[episode] + step));
}

function play(on) {
  player.playing = on;
  $("play").textContent = on ? "❚❚" : "▶";
  $("play").setAttribute("aria-pressed", String(on));
  $("play").setAttribute("aria-label", on ? "Pause" : "Play");
  if (!on) go(player.frame); // with every word
  if (on && player.frame === player.runs[0].frames - 1) go(0);
  player.last = performance.now();
  player.owed = 0;
  if (on) requestAnimationFrame(tick);
}

function tick(now) {
  if (!player.playing) return;
  player.owed += ((now - player.last) / 1000) * Number($("speed").value);
  player.last = now;
  const steps = Math.floor(player.owed);
  if (steps > 0) {
    player.owed -= steps;
    go(player.frame + steps);
  }
  if (player.frame >= player.runs[0].frames - 1) { play(false); return; }
  requestAnimationFrame(tick);
}

function nextDifference() {
  if (player.runs.length < 2) return;
  const [a, b] = player.runs;
  for (let frame = player.frame + 1; frame < a.frames; frame++) {
    const other = follow(b, frame);
    if (a.a.place[frame] !== b.a.place[other] || a.words[a.a.who[frame]] !== b.words[b.a.who[other]]) { go(frame); return; }
  }
}

function nextEpisode() {
  const run = player.runs[0], episode = run.episodeOf(player.frame);
  go(episode + 2 < run.begins.length ? run.begins[episode + 1] : run.begins[0]);
}

function faster(by) {
  const speed = $("speed");
  speed.selectedIndex = Math.max(0, Math.min(speed.options.length - 1, speed.selectedIndex + by));
}

$("first").addEventListener("click", () => go(0));
$("back").addEventListener("click", () => go(player.frame - 1));
$("play").addEventListener("click", () => play(!player.playing));
$("next").addEventListener("click", () => go(player.frame + 1));
$("last").addEventListener("click", () => go(player.runs[0].frames - 1));
$("slider").addEventListener("input", () => go(Number($("slider").value)));
$("sync").addEventListener("change", () => go(player.frame));
$("differs").addEventListener("click", nextDifference);
$("help").addEventListener("click", () => $("keys").showModal());
addEventListener("keydown", (event) => {
  const typing = ["SELECT", "INPUT", "BUTTON"].includes(event.target.tagName);
  if (event.ctrlKey || event.metaKey || event.altKey || !player.runs.length || $("keys").open) return;
  if (typing && (event.key === " " || event.target.tagName === "SELECT")) return;
  const far = event.shiftKey ? 100 : 1;
  const act = {
    " ": () => play(!player.playing), ArrowRight: () => go(player.frame + far), ArrowLeft: () => go(player.frame - far),
    Home: () => go(0), End: () => go(player.runs[0].frames - 1), "+": () => faster(1), "=": () => faster(1), "-": () => faster(-1),
    e: nextEpisode, d: nextDifference, "?": () => $("keys").showModal(),
  }[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (!act) return;
  event.preventDefault();
  act();
});
addEventListener("resize", () => player.runs.length && go(player.frame));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  readTheme();
  player.panes.forEach((pane) => pane.colourKeys());
  go(player.frame);
});
open();
