"use strict";
// One selection (step, position) that every view shows, playback, and the keyboard.

class Replay {
  constructor(recording) {
    this.recording = recording;
    this.step = 0;
    this.position = this.firstOpen(0);
    this.fill = "state";
    this.speed = 10;
    this.playing = false;
    const choose = (step, position) => {
      this.pause();
      this.select(step, position ?? this.position);
    };
    this.text = new TextView(recording, (position) => this.select(this.step, position));
    this.raster = new RasterView(recording, choose);
    this.curves = new CurvesView(recording, choose);
    byId("time").max = recording.steps - 1;
    this.listen();
    showNumbers(recording);
    showReply(recording);
    this.redraw();
    this.show();
  }

  firstOpen(step) {
    const { recording } = this;
    const block = recording.blocks[recording.blockAt[step]];
    const row = recording.state.subarray(step * recording.length, (step + 1) * recording.length);
    const open = row.findIndex((state) => state <= 1);
    const own = row.findIndex((state) => state !== 4);
    return block.begin + Math.max(0, open >= 0 ? open : own);
  }

  select(step, position) {
    this.step = Math.min(Math.max(step, 0), this.recording.steps - 1);
    this.position = Math.min(Math.max(position, 0), this.recording.positions - 1);
    this.show();
  }

  redraw() {
    this.raster.draw(this.fill);
    this.curves.draw();
    showScale(this.recording, this.fill);
    this.text.repaint();
  }

  show() {
    this.text.show(this.step, this.position, this.fill);
    this.text.follow(this.recording.blockAt[this.step]);
    this.raster.mark(this.step, this.position);
    this.curves.mark(this.step, this.position);
    showCard(this.recording, this.step, this.position);
    const { recording, step } = this;
    const time = byId("time");
    time.value = step;
    const block = recording.blockNumber[recording.blockAt[step]];
    const words = `step ${step + 1} of ${recording.steps}, block ${block + 1}, ` +
      `${recording.seconds[step].toFixed(2)} s`;
    time.setAttribute("aria-valuetext", words);
    byId("status").textContent = words;
  }

  toggle() {
    if (this.playing) {
      this.pause();
      return;
    }
    if (this.step === this.recording.steps - 1) this.select(0, this.position);
    this.playing = true;
    byId("play").textContent = "Pause";
    byId("status").setAttribute("aria-live", "off"); // a reader would never catch up
    this.restart();
    requestAnimationFrame(() => this.frame());
  }

  pause() {
    this.playing = false;
    byId("play").textContent = "Play";
    byId("status").setAttribute("aria-live", "polite");
  }

  restart() {
    this.begun = performance.now();
    this.begunStep = this.step;
  }

  frame() {
    if (!this.playing) return;
    const elapsed = (performance.now() - this.begun) / 1000;
    const step = this.due(elapsed);
    if (step !== this.step) this.select(step, this.position);
    if (this.step === this.recording.steps - 1) this.pause();
    else requestAnimationFrame(() => this.frame());
  }

  due(elapsed) {
    if (this.speed) return this.begunStep + Math.floor(elapsed * this.speed);
    const { seconds } = this.recording;
    const now = seconds[this.begunStep] + elapsed;
    let step = this.begunStep;
    while (step + 1 < seconds.length && seconds[step + 1] <= now) step++;
    return step;
  }

  toBlock(by) {
    const { blocks, blockAt } = this.recording;
    const here = blockAt[this.step];
    const inside = by < 0 && this.step > blocks[here].first;
    const next = blocks[inside ? here : here + by];
    if (next) this.select(next.first, this.position);
  }

  listen() {
    byId("play").addEventListener("click", () => this.toggle());
    byId("time").addEventListener("input", (event) => {
      this.pause();
      this.select(Number(event.target.value), this.position);
    });
    byId("speed").addEventListener("change", (event) => {
      this.speed = Number(event.target.value);
      this.restart();
    });
    byId("fill").addEventListener("change", (event) => {
      this.fill = event.target.value;
      this.redraw();
      this.show();
    });
    byId("theme").addEventListener("change", (event) => {
      document.documentElement.dataset.theme = event.target.value;
      this.redraw();
      this.show();
    });
    const again = () => {
      this.redraw();
      this.show();
    };
    window.addEventListener("resize", again);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
    document.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("select, summary")) return;
    if (event.key === " " && event.target.closest("button")) return;
    const moves = {
      " ": () => this.toggle(),
      ArrowRight: () => (event.shiftKey ? this.toBlock(1) : this.select(this.step + 1, this.position)),
      ArrowLeft: () => (event.shiftKey ? this.toBlock(-1) : this.select(this.step - 1, this.position)),
      Home: () => this.select(0, this.position),
      End: () => this.select(this.recording.steps - 1, this.position),
      ArrowDown: () => this.select(this.step, this.position + 1),
      ArrowUp: () => this.select(this.step, this.position - 1),
    };
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    if (event.key !== " ") this.pause();
    move();
  }
}

Recording.read().then((recording) => {
  byId("title").textContent = visible(recording.title);
  byId("facts").textContent = visible(recording.facts.join(" · "));
  byId("fault").replaceChildren();
  new Replay(recording);
  document.documentElement.dataset.ready = "yes";
}).catch((error) => {
  byId("fault").textContent = error.message;
  document.documentElement.dataset.ready = "failed";
});
