"use strict";
// The mean load over the episode, with the present decision as a line; a click goes there.

class Trend {
  constructor(canvas, run, go) {
    Object.assign(this, { canvas, run, go, still: document.createElement("canvas"), drawn: "" });
    canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); this.to(event); });
    canvas.addEventListener("pointermove", (event) => {
      if (event.buttons) this.to(event);
      const frame = this.frameAt(event), lines = [`decision ${whole(frame - this.first() + 1)}`];
      this.run.resources.forEach((name, r) => lines.push(`${name} ${percent(this.run.trend[frame * this.run.G + r])}`));
      tell(lines.join("\n"), event.clientX, event.clientY);
    });
    canvas.addEventListener("pointerleave", () => tell(""));
  }

  first() { return this.run.begins[this.run.episodeOf(this.run.at)]; }
  count() { const e = this.run.episodeOf(this.run.at); return this.run.begins[e + 1] - this.run.begins[e]; }

  frameAt(event) {
    const box = this.canvas.getBoundingClientRect(), share = (event.clientX - box.left) / box.width;
    return this.first() + Math.max(0, Math.min(this.count() - 1, Math.round(share * (this.count() - 1))));
  }

  to(event) { this.go(this.frameAt(event)); }

  draw() {
    const width = wideOf(this.canvas), height = 92, run = this.run, episode = run.episodeOf(run.at);
    const key = [width, episode, theme.version].join();
    if (key !== this.drawn) { this.paint(width, height); this.drawn = key; }
    const context = fit(this.canvas, height), ratio = devicePixelRatio || 1;
    context.clearRect(0, 0, width, height);
    context.drawImage(this.still, 0, 0, this.still.width / ratio, this.still.height / ratio);
    const x = ((run.at - this.first()) / Math.max(1, this.count() - 1)) * (width - 2) + 1;
    context.fillStyle = theme.chosen;
    context.fillRect(x - 1, 0, 2, height);
  }

  paint(width, height) { // every column shows the least and the most of its frames, however many they are
    const run = this.run, { G } = run, first = this.first(), count = this.count(), ratio = devicePixelRatio || 1;
    this.still.width = Math.max(1, Math.round(width * ratio));
    this.still.height = Math.round(height * ratio);
    const context = this.still.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.strokeStyle = theme.line;
    context.fillStyle = theme.soft;
    context.font = "10px system-ui, sans-serif";
    for (const share of [0, 0.5, 1]) {
      const y = (1 - share) * (height - 14) + 7;
      context.beginPath(); context.moveTo(30, y); context.lineTo(width, y); context.stroke();
      context.fillText(`${share * 100}%`, 0, y + 3);
    }
    for (let r = 0; r < G; r++) {
      context.strokeStyle = resourceColour(r);
      context.lineWidth = 1.5;
      context.lineJoin = "round";
      context.beginPath();
      const columns = Math.max(1, Math.min(count, Math.floor(width)));
      for (let column = 0; column < columns; column++) {
        const from = Math.floor((column * count) / columns), to = Math.max(from + 1, Math.floor(((column + 1) * count) / columns));
        let low = Infinity, high = -Infinity;
        for (let f = from; f < to; f++) {
          const value = run.trend[(first + f) * G + r];
          if (value < low) low = value;
          if (value > high) high = value;
        }
        const x = (column / Math.max(1, columns - 1)) * (width - 2) + 1, y = (value) => (1 - Math.min(1.05, value)) * (height - 14) + 7;
        if (column === 0) context.moveTo(x, y(low)); else context.lineTo(x, y(low));
        if (high - low > 0.004) context.lineTo(x, y(high));
      }
      context.stroke();
    }
  }
}
