"use strict";
// Plays a trace: `new Player(box, trace)`; `trace` is one entry of `evaluation.report.traces.played`. Text is only set as text.
class Player {
  static make(tag, values = {}, ...children) {
    const { text, on = {}, attributes = {}, ...rest } = values;
    const element = Object.assign(document.createElement(tag), rest);
    if (text !== undefined) element.textContent = text;
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    for (const [name, handler] of Object.entries(on)) element.addEventListener(name, handler);
    element.append(...children);
    return element;
  }

  constructor(box, trace, { ask = null, at = null } = {}) {
    Object.assign(this, { box, trace, ask, steps: trace.steps, now: 0, chosen: null, timer: null });
    const make = Player.make, button = (text, label, act) => make("button", { type: "button", text, on: { click: act }, attributes: { "aria-label": label, title: label } });
    this.words = make("ul", { className: ask ? "words asks" : "words" });
    this.toggle = button("▶", "Play or pause (space)", () => this.play());
    this.slider = make("input", { type: "range", min: 0, max: this.steps.length - 1, value: 0, on: { input: () => this.go(Number(this.slider.value)) }, attributes: { "aria-label": "Step" } });
    this.state = make("output");
    this.told = make("p", { className: "told", attributes: { "aria-live": "polite" } });
    this.likely = make("div", { className: "likely" });
    this.chart = make("div");
    const controls = make("div", { className: "controls" },
      button("«", "First step (Home)", () => this.go(0)), button("←", "One step back (left arrow)", () => this.go(this.now - 1)), this.toggle,
      button("→", "One step forward (right arrow)", () => this.go(this.now + 1)), button("»", "Last step (End)", () => this.go(this.steps.length)), this.slider, this.state);
    box.classList.add("player");
    box.tabIndex = 0;
    box.setAttribute("role", "group");
    box.setAttribute("aria-label", "How the text was written");
    const kinds = Object.entries({ open: "not written yet: the most probable word", new: "written in this step", old: "replaced in this step", probability: "probability" });
    const legend = make("p", { className: "kinds" }, ...kinds.map(([className, text]) => make("span", { className, text })));
    box.replaceChildren(this.words, legend, controls, this.told, this.likely, this.chart, this.table());
    box.addEventListener("keydown", (event) => this.key(event));
    this.draw();
    this.go(at ?? this.steps.length - 1);
  }

  key(event) {
    const act = { ArrowLeft: () => this.go(this.now - 1), ArrowRight: () => this.go(this.now + 1), Home: () => this.go(0), End: () => this.go(this.steps.length), " ": () => this.play() }[event.key];
    const own = event.target.matches("input, select, textarea, summary") || (event.key === " " && event.target.matches("button"));
    if (!act || own || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  }

  play() {
    if (this.timer) return this.stop();
    if (this.now >= this.steps.length - 1) this.go(0);
    this.toggle.textContent = "⏸";
    this.timer = setInterval(() => (this.now >= this.steps.length - 1 ? this.stop() : this.go(this.now + 1, true)), 650);
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    this.toggle.textContent = "▶";
  }

  go(number, playing = false) {
    if (this.timer && !playing) this.stop();
    this.now = Math.max(0, Math.min(number, this.steps.length - 1));
    this.slider.value = this.now;
    const step = this.steps[this.now], done = step.words.filter((word) => word !== null).length;
    this.words.replaceChildren(...step.words.map((word, place) => Player.make("li", {}, this.chip(step, word, place))));
    this.state.textContent = `step ${this.now} of ${this.steps.length - 1} · ${done} of ${step.words.length} words`;
    this.told.textContent = this.tell(step);
    this.point?.setAttribute("transform", `translate(${this.x(this.now)} 0)`);
    this.show();
  }

  kind(number, place) {
    const step = this.steps[number];
    if (step.words[place] === null) return "open";
    if (number === 0 || step.fixed[place] !== number) return step.fixed[place] === 0 ? "given" : "";
    const before = this.steps[number - 1].words;
    return before.length === step.words.length && before[place] === null ? "new" : "old";
  }

  chip(step, word, place) {
    const best = step.likely[place][0], p = step.probabilities[place] ?? this.last(place);
    const chip = Player.make("button", { type: "button", className: this.kind(this.now, place), text: word ?? best?.[0] ?? "▢", on: { click: () => this.choose(place) } });
    chip.setAttribute("aria-pressed", String(this.chosen === place));
    chip.setAttribute("aria-label", word === null ? `not written yet${best ? `, most probable ${best[0]}` : ""}` : word);
    if (word === null && p !== null) chip.style.opacity = 0.35 + 0.65 * p;
    if (p !== null) {
      const bar = Player.make("b");
      bar.style.width = `${100 * p}%`;
      chip.append(Player.make("i", {}, bar));
      chip.title = `probability ${p.toFixed(3)}`;
    }
    return chip;
  }

  // the probability of a word when it was written; none for a word that a search took from another text
  last(place) {
    const fixed = this.steps[this.now].fixed[place];
    return fixed > 0 ? this.steps[fixed].probabilities[place] ?? null : null;
  }

  choose(place) {
    this.chosen = this.chosen === place ? null : place;
    this.go(this.now);
    this.words.querySelectorAll("button")[place]?.focus();
    if (this.ask && this.chosen !== null) this.ask(place, this.steps[this.now].words);
  }

  show() {
    let found = [], number = this.now;
    if (this.chosen !== null) {
      while (number > 0 && !this.steps[number].likely[this.chosen]?.length) number--;
      found = this.steps[number].likely[this.chosen] ?? [];
    }
    const bar = (p) => { const line = Player.make("span"); line.style.width = `${Math.max(1, 100 * p)}%`; return line; };
    this.likely.replaceChildren(...found.flatMap(([word, p]) => [Player.make("span", { text: word }), bar(p), Player.make("span", { text: p.toFixed(3) })]));
  }

  tell(step) {
    const parts = [];
    if (this.now === 0) parts.push("before the first step");
    if (step.tried.length) {
      const cosines = step.tried.map((value) => value.toFixed(3)).join(", ");
      parts.push(step.accepted === null ? `search: kept the text; tried cosines ${cosines}` : `search: accepted candidate ${step.accepted + 1} of ${step.tried.length} (${cosines})`);
    }
    if (step.cosine !== null) parts.push(`cosine to the target ${step.cosine.toFixed(3)}`);
    const entropy = this.entropy(step);
    if (entropy !== null) parts.push(`mean entropy ${entropy.toFixed(2)} nats`);
    if (this.chosen !== null && step.words[this.chosen] !== undefined) {
      const fixed = step.fixed[this.chosen], word = step.words[this.chosen];
      parts.push(word === null ? "the word is not written yet" : fixed === 0 ? `“${word}” was given` : `“${word}” since step ${fixed}`);
    }
    return parts.join(" · ");
  }

  entropy(step) {
    const known = step.entropies.filter((value) => value !== null);
    return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null;
  }

  x(number) { return this.steps.length > 1 ? (600 * number) / (this.steps.length - 1) : 0; }

  draw() {
    const lines = { cosine: this.steps.map((step) => step.cosine), entropy: this.steps.map((step) => this.entropy(step)) };
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg"), keys = [];
    svg.setAttribute("viewBox", "0 0 600 60");
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("class", "chart");
    svg.setAttribute("aria-hidden", "true");
    for (const [name, values] of Object.entries(lines)) {
      const known = values.map((value, number) => [number, value]).filter(([, value]) => value !== null);
      if (known.length < 2) continue;
      const numbers = known.map(([, value]) => value), low = Math.min(...numbers, name === "cosine" ? 0.9 : 0), high = Math.max(...numbers, name === "cosine" ? 1 : 0.1);
      const path = document.createElementNS(svg.namespaceURI, "path");
      path.setAttribute("class", name);
      path.setAttribute("d", known.map(([number, value], i) => `${i ? "L" : "M"}${this.x(number)} ${57 - (54 * (value - low)) / (high - low || 1)}`).join(""));
      svg.append(path);
      keys.push(Player.make("span", { className: name, text: `${name === "cosine" ? "cosine to the target" : "mean entropy"}: ${Math.min(...numbers).toFixed(2)} to ${Math.max(...numbers).toFixed(2)}` }));
    }
    if (!keys.length) return;
    this.point = document.createElementNS(svg.namespaceURI, "line");
    for (const [name, value] of Object.entries({ x1: 0, x2: 0, y1: 0, y2: 60 })) this.point.setAttribute(name, value);
    svg.append(this.point);
    this.chart.append(svg, Player.make("div", { className: "key" }, ...keys));
  }

  table() {
    const rows = this.steps.map((step, number) => Player.make("tr", {}, Player.make("th", { text: number }),
      ...step.words.map((word, place) => Player.make("td", { className: this.kind(number, place), text: word ?? step.likely[place][0]?.[0] ?? "▢" }))));
    return Player.make("details", { className: "every" }, Player.make("summary", { text: "All steps" }), Player.make("table", {}, Player.make("tbody", {}, ...rows)));
  }
}
