"use strict";
// The position card, the numbers, the reply's texts and the scale's legend.

const HISTORY = 41; // steps of a position's history that are listed at once

function entry(list, name, value, className) {
  list.append(make("dt", "", name), make("dd", className || "", value));
}

function showCard(recording, step, position) {
  const card = byId("card");
  const cell = recording.cell(step, position);
  byId("card-head").textContent = `Position ${recording.origin + position}, step ${step + 1}`;
  if (cell < 0) {
    card.replaceChildren(make("p", "muted", "Its block has not begun."));
    return;
  }
  const block = recording.blocks[recording.blockOf[position]];
  const facts = make("dl");
  const token = recording.ids[cell];
  entry(facts, "Token", `“${visible(recording.text(token))}”`, "text");
  entry(facts, "Id", String(token));
  entry(facts, "State", STATE_NAMES[recording.state[cell]]);
  entry(facts, "Confidence", number(recording.confidence[cell], 4));
  entry(facts, "Entropy", Number.isNaN(recording.entropy[cell])
    ? "not captured" : `${recording.entropy[cell].toFixed(3)} nat`);
  if (step > block.last) entry(facts, "As of", `step ${block.last + 1}, its block's last`);
  card.replaceChildren(facts, make("h3", "", "Candidates"), candidateTable(recording, cell),
    ...editList(recording, step, position), make("h3", "", "History"),
    historyTable(recording, step, position));
}

function candidateTable(recording, cell) {
  const found = recording.candidates(cell);
  if (!found.length) {
    return make("p", "muted", recording.depth
      ? "None was captured at this position." : "Candidates were not captured in this recording.");
  }
  const body = make("tbody");
  found.forEach(({ token, p }) => {
    const bar = make("i");
    bar.style.width = `${(100 * Math.min(p, 1)).toFixed(1)}%`;
    body.append(make("tr", "", make("td", "text", visible(recording.text(token))),
      make("td", "share", bar), make("td", "number", p > 0 && p < 0.00005 ? "< 0.0001" : p.toFixed(4))));
  });
  return make("table", "", body);
}

function* rowsOf(recording, position) {
  const block = recording.blocks[recording.blockOf[position]];
  for (let row = block.first; row <= block.last; row++) {
    yield [row, row * recording.length + position - block.begin];
  }
}

function editList(recording, step, position) {
  const lines = [];
  for (const [row, cell] of rowsOf(recording, position)) {
    const before = recording.edited[cell];
    if (before < 0 || row > step) continue;
    lines.push(make("div", "", `step ${row + 1}: “${visible(recording.text(before))}” → ` +
      `“${visible(recording.text(recording.ids[cell]))}”`));
  }
  return lines.length ? [make("h3", "", "Edits so far"), make("div", "scroll", ...lines)] : [];
}

function historyTable(recording, step, position) {
  const rows = [...rowsOf(recording, position)];
  const now = Math.min(Math.max(step - rows[0][0], 0), rows.length - 1);
  const begin = Math.max(0, Math.min(now - (HISTORY >> 1), rows.length - HISTORY));
  const body = make("tbody");
  rows.slice(begin, begin + HISTORY).forEach(([row, cell], i) => {
    body.append(make("tr", begin + i === now ? "now" : "",
      make("td", "number", String(row + 1)),
      make("td", "text", visible(recording.text(recording.ids[cell]))),
      make("td", "", STATE_NAMES[recording.state[cell]]),
      make("td", "number", Number.isNaN(recording.confidence[cell])
        ? "–" : recording.confidence[cell].toFixed(3))));
  });
  const head = make("tr", "", make("th", "number", "step"), make("th", "", "token"),
    make("th", "", "state"), make("th", "number", "p"));
  const box = make("div", "", make("table", "", make("thead", "", head), body));
  if (rows.length > HISTORY) {
    box.append(make("p", "muted", `${HISTORY} of the block's ${rows.length} steps, around this one.`));
  }
  return box;
}

function showNumbers(recording) {
  const list = make("dl");
  const meanings = make("dl", "meanings");
  recording.numbers.forEach((figure) => {
    entry(list, figure.name, figure.text);
    entry(meanings, figure.name, figure.missing || figure.definition);
  });
  byId("numbers").append(list, make("details", "", make("summary", "", "What they mean"), meanings));
}

function showReply(recording) {
  const reply = byId("reply");
  recording.messages.forEach((message) =>
    reply.append(make("h3", "", message.role), make("pre", "", message.content)));
  reply.append(make("h3", "", "answer"), make("pre", "", recording.answer || "(no text)"));
  if (recording.settings.length) {
    const list = make("dl");
    recording.settings.forEach(([name, value]) => entry(list, name, value));
    reply.append(make("details", "", make("summary", "", "Settings"), list));
  }
}

function showScale(recording, fill) {
  const scale = recording.scales[fill === "state" ? "confidence" : fill];
  const ramp = make("div", "ramp");
  ramp.style.background = `linear-gradient(to right, ${scale.colors.join(", ")})`;
  scale.ticks.forEach((tick) => {
    const label = make("span", "", String(Number(tick.toPrecision(3))));
    label.style.left = `${placeOn(scale, tick) * 100}%`;
    ramp.append(label);
  });
  const unit = scale.unit ? `, ${scale.unit}` : "";
  byId("scale").replaceChildren(ramp, make("span", "muted", scale.name + unit),
    make("span", "muted", make("span", "hatch"), " not captured"));
}
