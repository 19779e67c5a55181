"use strict";
// The text: one cell a position, as wide as its final token, so that nothing moves.

const LONG_WORD = 24; // columns: what is longer may be broken between its tokens

class TextView {
  constructor(recording, choose) {
    this.recording = recording;
    this.box = byId("tokens");
    this.cells = [];
    this.shown = [];
    this.selected = -1;
    this.build(choose);
  }

  build(choose) {
    const { recording } = this;
    let word = null, columns = 0;
    for (let position = 0; position < recording.reached; position++) {
      const block = recording.blocks[recording.blockOf[position]];
      if (!block) continue;
      const last = recording.text(recording.ids[block.last * recording.length + position - block.begin]);
      if (!word || /^\s/u.test(last)) {
        word = make("span", "word");
        columns = 0;
        this.box.append(word, "\u200b");
      }
      const cell = make("span", "token");
      cell.id = `token-${position}`;
      cell.setAttribute("role", "option");
      cell.style.width = `${recording.widths[position]}ch`;
      cell.dataset.position = position;
      this.cells[position] = cell;
      word.append(cell);
      columns += recording.widths[position];
      word.classList.toggle("long", columns > LONG_WORD);
      if (last.includes("\n")) {
        this.box.append(make("br"));
        word = null;
      }
    }
    this.box.addEventListener("click", (event) => {
      const cell = event.target.closest(".token");
      if (cell) choose(Number(cell.dataset.position));
    });
  }

  repaint() {
    this.shown = [];
  }

  show(step, position, fill) {
    const { recording } = this;
    recording.blocks.forEach((block, i) => {
      const row = step < block.first ? -1 : Math.min(step, block.last);
      if (this.shown[i] === row) return;
      this.shown[i] = row;
      const end = Math.min(block.begin + recording.length, recording.reached);
      for (let at = block.begin; at < end; at++) this.paint(at, step, fill);
    });
    if (position === this.selected) return;
    this.cells[this.selected]?.removeAttribute("aria-selected");
    this.selected = position;
    const cell = this.cells[position];
    if (!cell) {
      this.box.removeAttribute("aria-activedescendant");
      return;
    }
    cell.setAttribute("aria-selected", "true");
    this.box.setAttribute("aria-activedescendant", cell.id);
    this.reveal(cell);
  }

  // Keeps the block at work in sight; within one, a reader scrolls as they like.
  follow(block) {
    if (block === this.followed) return;
    this.followed = block;
    const cell = this.cells[this.recording.blocks[block].begin];
    if (cell) this.reveal(cell);
  }

  reveal(cell) {
    const { box } = this;
    const top = cell.offsetTop;
    if (top < box.scrollTop || top + 26 > box.scrollTop + box.clientHeight) {
      box.scrollTop = top - box.clientHeight / 2;
    }
  }

  paint(position, step, fill) {
    const { recording } = this;
    const cell = this.cells[position];
    const at = recording.cell(step, position);
    const style = cell.style;
    style.background = style.color = style.filter = "";
    if (at < 0) {
      cell.className = "token masked";
      cell.textContent = "";
      cell.setAttribute("aria-label", "not begun");
      return;
    }
    const state = STATES[recording.state[at]];
    const token = recording.ids[at];
    const text = visible(recording.text(token));
    cell.textContent = state === "masked" ? "" : text;
    cell.setAttribute("aria-label", state === "masked"
      ? "masked" : `${text}, ${STATE_NAMES[recording.state[at]]}`);
    cell.className = `token ${state}`;
    if (recording.stops.has(token) || text === "↵") cell.classList.add("end");
    if (fill !== "state") {
      this.fill(cell, at, fill);
    } else if (state === "draft") {
      const sure = recording.confidence[at];
      style.filter = `blur(${(Number.isNaN(sure) ? 3 : 3 * (1 - Math.min(sure, 1))).toFixed(2)}px)`;
    }
  }

  fill(cell, at, fill) {
    const { recording } = this;
    const scale = recording.scales[fill];
    const place = placeOn(scale, recording[fill][at]);
    if (place === null) {
      cell.classList.add("unknown");
      return;
    }
    const color = shade(scale, place);
    cell.style.background = color;
    cell.style.color = inkOn(color);
  }
}

// Black or white, whichever is easier to read on a colour "#RRGGBB".
function inkOn(color) {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16) / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000000" : "#ffffff";
}
