"use strict";
// Raster and curves on one step axis, each on two layers: the plot, and the lines of the selection.

const LEFT = 56, RIGHT = 12, RASTER_HEIGHT = 240, CURVE_HEIGHT = 76, CURVE_GAP = 22;

class StepPlot {
  constructor(id, height, recording, choose) {
    this.recording = recording;
    this.height = height;
    [this.plot, this.over] = byId(id).querySelectorAll("canvas");
    const pick = (event) => {
      if (event.buttons !== 1) return;
      const box = this.plot.getBoundingClientRect();
      choose(this.stepAt(event.clientX - box.left), this.positionAt(event.clientY - box.top));
    };
    this.plot.addEventListener("pointerdown", (event) => {
      this.plot.setPointerCapture(event.pointerId);
      pick(event);
    });
    this.plot.addEventListener("pointermove", pick);
  }

  layer(canvas) {
    const ratio = window.devicePixelRatio || 1;
    this.width = this.plot.parentElement.clientWidth;
    canvas.style.height = `${this.height}px`;
    canvas.width = Math.round(this.width * ratio);
    canvas.height = Math.round(this.height * ratio);
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.font = "11px system-ui, sans-serif";
    pen.lineWidth = 1;
    return pen;
  }

  get plotWidth() {
    return Math.max(1, this.width - LEFT - RIGHT);
  }

  x(step) {
    return LEFT + ((step + 0.5) / this.recording.steps) * this.plotWidth;
  }

  stepAt(x) {
    const share = (x - LEFT) / this.plotWidth;
    const step = Math.floor(share * this.recording.steps);
    return Math.min(Math.max(step, 0), this.recording.steps - 1);
  }

  positionAt() {
    return null;
  }

  mark(step, position) {
    const pen = this.layer(this.over);
    pen.strokeStyle = color("accent");
    this.line(pen, this.x(step), 0, this.x(step), this.height);
    return pen;
  }

  line(pen, x1, y1, x2, y2) {
    pen.beginPath();
    pen.moveTo(x1, y1);
    pen.lineTo(x2, y2);
    pen.stroke();
  }
}

function color(role) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${role}`).trim();
}

function channels(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

class RasterView extends StepPlot {
  constructor(recording, choose) {
    super("raster", RASTER_HEIGHT, recording, choose);
  }

  get plotHeight() {
    return this.height - 20;
  }

  y(position) {
    return ((position + 0.5) / this.recording.positions) * this.plotHeight;
  }

  positionAt(y) {
    const position = Math.floor((y / this.plotHeight) * this.recording.positions);
    return Math.min(Math.max(position, 0), this.recording.positions - 1);
  }

  // fill: "state" shows confidence, too: a raster is of numbers.
  draw(fill) {
    const { recording } = this;
    const pen = this.layer(this.plot);
    const name = fill === "state" ? "confidence" : fill;
    this.points(pen, recording.scales[name], recording[name]);
    pen.strokeStyle = color("line");
    pen.fillStyle = color("muted");
    pen.textAlign = "right";
    recording.blocks.forEach((block) => {
      const x = LEFT + (block.first / recording.steps) * this.plotWidth;
      if (block.first) this.line(pen, x, 0, x, this.plotHeight);
    });
    for (const share of [0, 0.25, 0.5, 0.75]) {
      const position = Math.floor(share * recording.positions);
      pen.fillText(String(recording.origin + position), LEFT - 6, this.y(position) + 8);
    }
    pen.fillText(`${recording.steps} steps`, this.width - RIGHT, this.height - 4);
    pen.textAlign = "left";
    pen.fillText("step 1", LEFT, this.height - 4);
  }

  points(pen, scale, values) {
    const { recording } = this;
    const ratio = window.devicePixelRatio || 1;
    const width = Math.round(this.plotWidth * ratio), height = Math.round(this.plotHeight * ratio);
    const image = pen.createImageData(width, height);
    const shades = scale.colors.map(channels);
    const unknown = channels(color("surface")), hatch = channels(color("muted"));
    const later = channels(color("window"));
    for (let y = 0, at = 0; y < height; y++) {
      const position = Math.floor((y / height) * recording.positions);
      for (let x = 0; x < width; x++, at += 4) {
        const cell = recording.cell(Math.floor((x / width) * recording.steps), position);
        let point = later;
        if (cell >= 0) {
          const place = placeOn(scale, values[cell]);
          if (place !== null) point = shades[Math.round(place * (shades.length - 1))];
          else point = (x + y) % 6 === 0 ? hatch : unknown;
        }
        image.data.set(point, at);
        image.data[at + 3] = 255;
      }
    }
    pen.putImageData(image, Math.round(LEFT * ratio), 0);
  }

  mark(step, position) {
    const pen = super.mark(step, position);
    this.line(pen, LEFT, this.y(position), this.width - RIGHT, this.y(position));
  }
}

class CurvesView extends StepPlot {
  constructor(recording, choose) {
    super("curves", recording.curves.length * (CURVE_HEIGHT + CURVE_GAP), recording, choose);
  }

  draw() {
    const pen = this.layer(this.plot);
    this.recording.curves.forEach((curve, i) =>
      this.curve(pen, curve, i * (CURVE_HEIGHT + CURVE_GAP) + CURVE_GAP));
  }

  curve(pen, curve, top) {
    const known = curve.lines.flatMap((line) => line.values.filter((v) => v !== null));
    const most = known.reduce((a, b) => Math.max(a, b), 0) || 1;
    const bottom = top + CURVE_HEIGHT;
    pen.fillStyle = color("muted");
    pen.textAlign = "left";
    pen.fillText(known.length ? curve.name : `${curve.name}: not captured`, LEFT, top - 7);
    this.legend(pen, curve.lines, top - 7);
    pen.strokeStyle = color("line");
    this.line(pen, LEFT, bottom + 0.5, this.width - RIGHT, bottom + 0.5);
    if (!known.length) return;
    pen.textAlign = "right";
    pen.fillText(most.toPrecision(3), LEFT - 6, top + 8);
    pen.fillText("0", LEFT - 6, bottom);
    for (const line of curve.lines) {
      pen.strokeStyle = color(line.color);
      pen.lineWidth = 1.5;
      pen.beginPath();
      let down = false;
      line.values.forEach((value, step) => {
        if (value === null) {
          down = false;
          return;
        }
        const y = bottom - (value / most) * (CURVE_HEIGHT - 2);
        if (down) pen.lineTo(this.x(step), y);
        else pen.moveTo(this.x(step) - (line.values.length === 1 ? 2 : 0), y);
        if (line.values.length === 1 || line.values[step + 1] == null && !down) pen.lineTo(this.x(step) + 2, y);
        down = true;
      });
      pen.stroke();
      pen.lineWidth = 1;
    }
  }

  // The lines' names in their colours, from the right; a single line is named by its curve.
  legend(pen, lines, y) {
    if (lines.length < 2) return;
    pen.textAlign = "right";
    let x = this.width - RIGHT;
    for (const line of lines) {
      pen.fillStyle = color(line.color);
      pen.fillText(line.name, x, y);
      x -= pen.measureText(line.name).width + 12;
    }
    pen.fillStyle = color("muted");
  }

  mark(step, position) {
    super.mark(step, position);
    const parts = this.recording.curves.flatMap((curve) => curve.lines.map((line) => {
      const value = line.values[step];
      return `${line.name} ${value === null ? "not captured" : `${value.toFixed(line.digits)}${line.unit}`}`;
    }));
    byId("curve-values").textContent = parts.join(" · ");
  }
}
