"use strict";
// Colours of the canvases, read from the style so that light and dark are said once; numbers as people read them.

const theme = { version: 0 };
const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true });

function rgb(name) { // light-dark() is resolved by a real element, and the canvas turns any colour into numbers
  const mark = document.createElement("i");
  mark.style.color = `var(--${name})`;
  document.body.append(mark);
  probe.fillStyle = getComputedStyle(mark).color;
  mark.remove();
  probe.fillRect(0, 0, 1, 1);
  return [...probe.getImageData(0, 0, 1, 1).data.slice(0, 3)];
}

function readTheme() {
  for (const name of ["text", "soft", "line", "panel", "accent", "chosen", "low", "mid", "high", "hot", "track"]) {
    const [r, g, b] = rgb(name);
    theme[name] = `rgb(${r} ${g} ${b})`;
    theme[`${name}Rgb`] = [r, g, b];
  }
  theme.ramp = Array.from({ length: 256 }, (_, i) => {
    const share = i / 255;
    const [from, to, part] = share < 0.5
      ? [theme.lowRgb, theme.midRgb, share / 0.5] : [theme.midRgb, theme.highRgb, (share - 0.5) / 0.5];
    return from.map((value, k) => Math.round(value + (to[k] - value) * part));
  });
  theme.rampCss = theme.ramp.map(([r, g, b]) => `rgb(${r} ${g} ${b})`);
  theme.dark = matchMedia("(prefers-color-scheme: dark)").matches;
  theme.version++;
}

const level = (share) => Math.max(0, Math.min(255, Math.round(share * 255)));
const HUES = [212, 28, 152, 282, 52, 190, 336, 96];

const hues = new Map();

function hue(text) {
  if (!hues.has(text)) hues.set(text, hueOf(text));
  return hues.get(text);
}

function hueOf(text) { // a function, or a model of a job, has a colour of its own; other things differ from their neighbours
  const kind = text.match(/^job \d+ (.+)$|^(.+) #\d+$/);
  if (!kind) return HUES[Number(text.match(/\d+/)?.[0] ?? 0) % HUES.length];
  let sum = 0;
  for (const letter of kind[1] ?? kind[2]) sum = (sum * 31 + letter.codePointAt(0)) >>> 0;
  return HUES[sum % HUES.length];
}

const widths = new Map(); // asking an element for its width after something was written lays out the whole page
const watching = new ResizeObserver((entries) => {
  const changed = entries.filter(({ target, contentRect }) => widths.get(target) !== Math.round(contentRect.width));
  for (const { target, contentRect } of changed) widths.set(target, Math.round(contentRect.width));
  if (changed.length) dispatchEvent(new Event("resize"));
});

function wideOf(canvas) {
  if (!widths.has(canvas)) { widths.set(canvas, canvas.clientWidth); watching.observe(canvas); }
  return widths.get(canvas);
}

function fit(canvas, height) { // sharp on any screen; returns the context in CSS pixels
  const width = wideOf(canvas), ratio = devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const whole = (value) => grouped.format(value);
const percent = (share) => `${(share * 100).toFixed(1)} %`;

function exact(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return whole(value);
  const size = Math.abs(value);
  return size >= 1000 ? whole(value) : size >= 0.01 ? Number(value.toPrecision(5)).toString() : value.toExponential(2);
}

function clock(seconds, live) {
  if (!Number.isFinite(seconds)) return "–";
  if (live) return new Date(seconds * 1000).toISOString().slice(11, 19);
  const sign = seconds < 0 ? "−" : "", size = Math.abs(seconds), days = Math.floor(size / 86400);
  const part = (value) => String(Math.floor(value)).padStart(2, "0");
  return `${sign}${days ? `${days}d ` : ""}${part((size / 3600) % 24)}:${part((size / 60) % 60)}:${part(size % 60)}`;
}

function lasting(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 120) return `${exact(Number(seconds.toFixed(1)))} s`;
  if (seconds < 7200) return `${(seconds / 60).toFixed(1)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${(seconds / 86400).toFixed(1)} d`;
}

function tell(text, x, y) { // the one tip of the page
  const tip = document.getElementById("tip");
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(6, Math.min(x + 14, innerWidth - box.width - 8))}px`;
  tip.style.top = `${y + 18 + box.height > innerHeight ? Math.max(6, y - box.height - 12) : y + 18}px`;
}
