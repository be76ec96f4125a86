"use strict";
// A run: the arrays of the file, and what one pass over them gives: key frames, the trend, and who was where when.

const KEY_FRAME_BYTES = 48e6; // all key frames together
const KINDS = ["there", "start", "end", "move"];

async function unpack(head, base64) {
  const text = atob(base64);
  const packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) packed[i] = text.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(stream).arrayBuffer();
  const types = { f4: Float32Array, f8: Float64Array, i4: Int32Array, u1: Uint8Array };
  const arrays = {};
  for (const [name, [kind, at, length]] of Object.entries(head.arrays)) arrays[name] = new types[kind](buffer, at, length);
  return new Run(head, arrays);
}

class Run {
  constructor(head, arrays) {
    Object.assign(this, { head, a: arrays, frames: head.frames });
    this.resources = head.resources;
    this.G = head.resources.length;
    this.P = Math.max(1, arrays.places.reduce((most, count) => Math.max(most, count), 1));
    this.use = new Float32Array(this.P * this.G);
    this.words = head.words;
    // Where things share what a node has, more is worse from some point on; where they own it, a full place is a good one.
    this.hot = { pods: 0.8, functions: 0.9 }[head.live ? "" : head.problem] ?? Infinity;
    this.findEpisodes();
    this.walk();
    this.findLives();
    this.at = -1;
    this.seek(0);
  }

  findEpisodes() {
    const { episode } = this.a;
    this.begins = [];
    for (let f = 0; f < this.frames; f++) if (f === 0 || episode[f] !== episode[f - 1]) this.begins.push(f);
    this.begins.push(this.frames);
  }

  episodeOf(frame) { // the number of the episode, counted from the file's first
    let low = 0, high = this.begins.length - 2;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.begins[middle] <= frame) low = middle; else high = middle - 1;
    }
    return low;
  }

  isFirst(frame) { return frame === 0 || this.a.episode[frame] !== this.a.episode[frame - 1]; }

  apply(frame) { // from the state before to that of this frame
    const { used_at, used_of, used, use0 } = this.a, { use, G } = this;
    if (this.isFirst(frame)) { use.fill(0); use.set(use0.subarray(0, Math.min(use0.length, use.length))); }
    for (let i = used_at[frame]; i < used_at[frame + 1]; i++) {
      const to = used_of[i] * G;
      for (let g = 0; g < G; g++) use[to + g] = used[i * G + g];
    }
  }

  walk() { // once through all frames: key frames, means and the score so far
    const { used_at, used_of, places, reward, event, event_at } = this.a, { use, G, frames } = this;
    this.every = Math.max(256, Math.ceil((frames * use.byteLength) / KEY_FRAME_BYTES));
    this.keys = [];
    this.trend = new Float32Array(frames * G);
    this.score = new Float64Array(frames);
    this.moves = new Int32Array(frames); // before this decision
    const sums = new Float64Array(G);
    for (let f = 0; f < frames; f++) {
      if (this.isFirst(f)) {
        this.apply(f);
        sums.fill(0);
        for (let i = 0; i < use.length; i++) sums[i % G] += use[i];
      } else {
        for (let i = used_at[f]; i < used_at[f + 1]; i++) {
          const to = used_of[i] * G;
          for (let g = 0; g < G; g++) sums[g] -= use[to + g];
        }
        this.apply(f); // a place is named at most once a frame
        for (let i = used_at[f]; i < used_at[f + 1]; i++) {
          const to = used_of[i] * G;
          for (let g = 0; g < G; g++) sums[g] += use[to + g];
        }
      }
      for (let g = 0; g < G; g++) this.trend[f * G + g] = sums[g] / places[f];
      if (!this.isFirst(f)) {
        this.moves[f] = this.moves[f - 1];
        for (let e = event_at[f - 1]; e < event_at[f]; e++) if (KINDS[event[e]] === "move") this.moves[f]++;
      }
      this.score[f] = reward[f] + (this.isFirst(f) ? 0 : this.score[f - 1]);
      if (f % this.every === 0) this.keys.push(use.slice());
    }
  }

  seek(frame) {
    const key = Math.floor(frame / this.every);
    if (frame < this.at || this.at < 0 || key * this.every > this.at) {
      this.use.set(this.keys[key]);
      this.at = key * this.every;
    }
    while (this.at < frame) this.apply(++this.at);
  }

  findLives() { // intervals: who was where, from when to when
    const { a, frames } = this, who = [], place = [], from = [], to = [], fromFrame = [], toFrame = [], moved = [];
    let open = new Map();
    const begin = (f, name, where, start, end, byMove) => {
      open.set(name, who.length);
      who.push(name); place.push(where); from.push(start); to.push(end); fromFrame.push(f); toFrame.push(frames);
      moved.push(byMove ? 1 : 0);
    };
    const finish = (f, name, time) => {
      const life = open.get(name);
      if (life === undefined) return;
      to[life] = time; toFrame[life] = f; open.delete(name);
    };
    const shift = (f, name, where, time, end) => {
      const life = open.get(name);
      if (life !== undefined && place[life] === where) return;
      finish(f, name, time);
      begin(f, name, where, time, end, life !== undefined);
    };
    for (let f = 0; f < frames; f++) {
      let e = a.event_at[f];
      const stop = a.event_at[f + 1];
      for (; e < stop && KINDS[a.event[e]] === "there"; e++) {
        begin(f - 1, a.event_who[e], a.event_to[e], Number.isNaN(a.event_s[e]) ? a.time_s[f] : a.event_s[e], NaN, false);
      }
      if (a.place[f] >= 0 && a.who[f]) shift(f, a.who[f], a.place[f], a.start_s[f], a.end_s[f]);
      for (; e < stop; e++) {
        const kind = KINDS[a.event[e]], time = a.event_s[e];
        if (kind === "end") finish(f, a.event_who[e], time);
        else if (kind === "start") begin(f, a.event_who[e], a.event_to[e], time, NaN, false);
        else shift(f, a.event_who[e], a.event_to[e], time, NaN);
      }
      if (f + 1 === frames || this.isFirst(f + 1)) { // what is still there ends, for us, with the episode
        for (const life of open.values()) {
          if (Number.isNaN(to[life])) to[life] = Math.max(a.time_s[f], from[life]);
          toFrame[life] = f + 1;
        }
        open = new Map();
      }
    }
    this.lives = {
      count: who.length, who: Int32Array.from(who), place: Int32Array.from(place), from: Float64Array.from(from),
      to: Float64Array.from(to), fromFrame: Int32Array.from(fromFrame), toFrame: Int32Array.from(toFrame),
      moved: Uint8Array.from(moved),
    };
    const first = new Int32Array(this.P + 1);
    for (const at of place) if (at >= 0) first[at + 1]++;
    for (let p = 0; p < this.P; p++) first[p + 1] += first[p];
    const next = first.slice(), byPlace = new Int32Array(first[this.P]);
    for (let life = 0; life < who.length; life++) if (place[life] >= 0) byPlace[next[place[life]]++] = life;
    Object.assign(this.lives, { first, byPlace });
  }

  present(place, frame) { // the lives on a place before this decision
    const { first, byPlace, fromFrame, toFrame } = this.lives, found = [];
    for (let i = first[place]; i < first[place + 1]; i++) {
      const life = byPlace[i];
      if (fromFrame[life] < frame && toFrame[life] >= frame) found.push(life);
    }
    return found;
  }

  clock(time) { // since the start of the shown episode; of live decisions, the time of day
    return clock(time - (this.head.live ? 0 : this.a.time_s[this.begins[this.episodeOf(this.at)]]), this.head.live);
  }

  short(place) { // the same where there is little room: server 3 half 1 is 3.1, node-0004-gpu1 is 4 gpu1
    const name = this.name(place), half = name.match(/^server (\d+) half (\d)$/);
    return half ? `${half[1]}.${half[2]}` : name.replace(/^node-?0*(\d+)-?/, "$1 ").trim();
  }

  name(place) { return place < 0 ? "nowhere" : this.head.names[place] ?? `place ${place}`; }

  frameAtTime(time, episode) { // the last decision of the episode at or before a time
    let low = this.begins[episode], high = this.begins[episode + 1] - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.a.time_s[middle] <= time) low = middle; else high = middle - 1;
    }
    return low;
  }
}
