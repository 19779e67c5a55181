"use strict";
// What the page carries, unpacked: facts as JSON, arrays as deflated base64. Every text in it comes
// from a model or a person and reaches the page as text only, never as markup.

const STATES = ["masked", "draft", "committed", "edited", "prompt"];
const STATE_NAMES = ["masked", "open", "accepted", "edited", "prompt"];
const UNSEEN = /[\p{Cc}\u200e\u200f\u202a-\u202e\u2066-\u2069]/gu;

const byId = (id) => document.getElementById(id);

function visible(text) {
  return text.replace(/\r?\n|\r/g, "↵").replace(/\t/g, "→").replace(UNSEEN, "·");
}

async function unpack(name, Kind) {
  const holder = byId(`data-${name}`);
  if (!holder) return null;
  const pieces = holder.textContent.trim().split("\n").map((line) => {
    const raw = atob(line);
    const bytes = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
    return bytes;
  });
  holder.remove();
  const stream = new Blob(pieces).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Kind(await new Response(stream).arrayBuffer());
}

class Recording {
  static async read() {
    if (typeof DecompressionStream === "undefined") {
      throw new Error("This browser is too old to unpack the recording. Open the page in Chrome or " +
        "Edge 80, Firefox 113, Safari 16.4, or newer.");
    }
    const found = new Recording();
    Object.assign(found, JSON.parse(byId("facts-json").textContent));
    found.ids = await unpack("ids", Int32Array);
    found.state = await unpack("state", Uint8Array);
    found.edited = await unpack("edited_from", Int32Array);
    found.confidence = await unpack("confidence", Float32Array);
    found.entropy = await unpack("entropy", Float32Array);
    found.topIds = await unpack("top_ids", Int32Array);
    found.topP = await unpack("top_p", Float32Array);
    if (found.ids.length !== found.steps * found.length) {
      throw new Error("This page was cut short: the recording in it is not whole. Copy it again.");
    }
    found.index();
    return found;
  }

  index() {
    this.positions = this.blocks[this.blocks.length - 1].begin + this.length;
    this.blockOf = new Int32Array(this.positions).fill(-1);
    this.blocks.forEach((block, i) =>
      this.blockOf.fill(i, block.begin, block.begin + this.length));
    this.blockAt = new Int32Array(this.steps);
    this.blocks.forEach((block, i) => this.blockAt.fill(i, block.first, block.last + 1));
    this.stops = new Set(this.stopIds);
  }

  // Index into the arrays of a position after a step, -1 where its block has not begun.
  cell(step, position) {
    const block = this.blocks[this.blockOf[position]];
    if (!block || step < block.first) return -1;
    return Math.min(step, block.last) * this.length + position - block.begin;
  }

  text(token) {
    return Object.hasOwn(this.pieces, token) ? this.pieces[token] : `#${token}`;
  }

  candidates(cell) {
    const found = [];
    for (let rank = 0; rank < this.depth; rank++) {
      const token = this.topIds[cell * this.depth + rank];
      const p = this.topP[cell * this.depth + rank];
      if (token >= 0 && !Number.isNaN(p)) found.push({ token, p });
    }
    return found;
  }
}

// Where a value lies on a fixed scale, 0..1; null for one that was not captured.
function placeOn(scale, value) {
  if (Number.isNaN(value)) return null;
  const share = Math.min(Math.max(value / scale.maximum, 0), 1);
  return scale.root ? Math.sqrt(share) : share;
}

function shade(scale, place) {
  return scale.colors[Math.round(place * (scale.colors.length - 1))];
}

function number(value, digits) {
  return Number.isNaN(value) || value === null ? "not captured" : value.toFixed(digits);
}

// An element with text or children; nothing here parses markup.
function make(name, className, ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children);
  return made;
}
