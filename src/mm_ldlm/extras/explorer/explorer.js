"use strict";
(() => {
  const runs = JSON.parse(document.getElementById("runs").textContent), make = Player.make;
  const NUMBERS = ["run", "steps", "temperature", "seed", "strength", "k"];

  // what a form asks; empty fields are left out
  const asked = (form) => {
    const body = {};
    for (const field of form.elements) {
      if (!field.name || field.name === "given" || (field.value === "" && field.type !== "checkbox")) continue;
      if (field.name === "text") body.texts = [field.value];
      else if (field.name === "toward") body.toward = [field.value];
      else if (field.type === "checkbox") body[field.name] = field.checked;
      else body[field.name] = NUMBERS.includes(field.name) ? Number(field.value) : field.value;
    }
    return body;
  };

  const get = async (address, options) => {
    const response = await fetch(address, options).catch(() => { throw new Error("expected an answer of mm-ldlm explore, found none. Start the command again."); });
    const answer = await response.json().catch(() => ({ detail: `expected an answer, found an error of the server (${response.status}). Its terminal shows the reason.` }));
    if (response.ok) return answer;
    throw new Error(answer.detail);
  };
  const post = (request, body) => get(`/ask/${request}`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });

  // shows the answer of `work`, and what it puts there before, or why there is none; what comes after a later question is left out
  const asks = new WeakMap();
  const show = async (out, buttons, work) => {
    const number = (asks.get(out) ?? 0) + 1;
    asks.set(out, number);
    out.setAttribute("aria-busy", "true");
    for (const button of buttons) button.disabled = true;
    const put = (children) => {
      for (const button of buttons) button.disabled = false;
      if (asks.get(out) !== number) return;
      const focused = out.contains(document.activeElement);
      out.replaceChildren(...children);
      if (focused) out.querySelector(".player")?.focus();
    };
    try {
      put(await work(put));
    } catch (error) {
      put([make("p", { className: "problem", text: error.message, attributes: { role: "alert" } })]);
    }
    if (asks.get(out) !== number) return;
    out.setAttribute("aria-busy", "false");
    if (out.matches("[aria-live]") || out.querySelector(".problem")) out.scrollIntoView({ block: "nearest" });
  };

  const told = ({ texts: [text], seconds, unknown }, next) => make("p", { className: "fine", text: [text.cosine === null ? "" : `cosine to the embedding ${text.cosine.toFixed(4)}`, `model calls: ${text.calls}`, `${seconds.toFixed(2)} s`, unknown ? "some words are outside the model's vocabulary" : "", next].filter(Boolean).join(" · ") });
  const answer = (text) => make("p", { className: "answer", text, attributes: { "aria-live": "polite" } });
  const player = (text, options) => {
    const box = make("div");
    box.player = new Player(box, text, options);
    return box;
  };

  const vector = (values) => {
    const canvas = make("canvas", { className: "vector", width: values.length, height: 1, attributes: { role: "img", "aria-label": `embedding of ${values.length} numbers` } });
    const context = canvas.getContext("2d"), most = Math.max(...values.map(Math.abs)) || 1;
    values.forEach((value, x) => {
      context.fillStyle = `rgba(${value > 0 ? "76,123,217" : "217,150,43"},${Math.abs(value) / most})`;
      context.fillRect(x, 0, 1, 1);
    });
    return canvas;
  };

  const written = (found, options, next = "") => {
    const [text] = found.texts, children = [answer(text.text), told(found, next), player(text, options)];
    if (found.latents.length) children.unshift(vector(found.latents[0]), make("p", { className: "fine", text: `the embedding: ${found.latents[0].length} numbers, blue above and orange below zero` }));
    return children;
  };
  // shows the text without a search at once, which stays until the search is finished
  const inverted = async (body, put, options) => {
    if (body.search) put(written(await post("invert", { ...body, search: false }), options, "searching for a nearer text …"));
    return post("invert", body);
  };
  const table = (heads, lines) => make("ol", { className: "points" }, make("li", {}, ...heads.map((text) => make("small", { text }))), ...lines);

  // --- what each tab shows ---------------------------------------------------------------------------------------

  const shown = {
    async invert(body, form, put) {
      const found = await inverted(body, put), [text] = found.texts, again = make("div", { attributes: { "aria-live": "polite" } });
      const ask = (place, words) => {
        if (words.includes(null)) return;
        const { search, ...settings } = body;
        const request = { ...settings, texts: [text.text], gap: place, toward: form.elements.given.checked ? body.texts : [] };
        show(again, [], async () => {
          const filled = await post("infill", request), [other] = filled.texts;
          const before = words[place], now = other.steps.at(-1).words[place];
          const change = now === before ? `“${before}” again` : `“${now}” instead of “${before}”`;
          const rest = player(other);
          rest.player.choose(place);
          return [make("h3", { text: `Masked again: ${change}` }), rest];
        });
      };
      return [...written(found, { ask }), again];
    },

    async interpolate(body) {
      const found = await post("interpolate", body), last = found.texts.length - 1;
      const text = answer(""), slider = make("input", { type: "range", className: "slide", min: 0, max: last, value: 0, attributes: { "aria-label": "Place between the sentences" } });
      const lines = found.texts.map((each, place) => make("li", { on: { click: () => { slider.value = place; move(); } } },
        make("small", { text: `${Math.round((100 * place) / last)} %` }), make("span", { text: each.text }), make("small", { text: each.cosine === null ? "" : each.cosine.toFixed(3) })));
      const rest = make("div");
      const move = () => {
        const place = Number(slider.value);
        text.textContent = found.texts[place].text;
        lines.forEach((line, number) => line.setAttribute("aria-current", String(number === place)));
        new Player(rest, found.texts[place]);
      };
      slider.addEventListener("input", move);
      move();
      return [text, slider, table(["point", "text", "cosine to the point"], lines), rest];
    },

    async edit(body) { return written(await post("edit", body)); },
    async infill(body) { return written(await post("infill", body)); },

    async neighbours(body) {
      await draw(body.run);
      const found = await post("neighbours", body);
      await draw(body.run, { ...found, text: body.texts[0] });
      const lines = found.neighbours.map(([text, cosine], place) => make("li", {}, make("small", { text: place + 1 }), make("span", { text }), make("small", { text: cosine.toFixed(3) })));
      return [table(["", "nearest texts of the corpus", "cosine"], lines)];
    },
  };

  // --- the map ---------------------------------------------------------------------------------------------------

  const maps = new Map();
  const script = () => (script.made ??= new Promise((done, fail) => document.head.append(make("script", { src: "/plotly.js", onload: done, onerror: fail }))));
  const short = (text) => (text.length > 110 ? `${text.slice(0, 110)}…` : text).replaceAll("&", "&amp;").replaceAll("<", "&lt;");

  const draw = async (run, found = null) => {
    const box = document.getElementById("corpus");
    if (!maps.has(run)) maps.set(run, await get(`/map/${run}`));
    await script();
    const { points, texts } = maps.get(run), ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    const cloud = (places, words, marker, name) => ({ type: "scattergl", mode: "markers", name, x: places.map(([x]) => x), y: places.map(([, y]) => y), text: words.map(short), hovertemplate: "%{text}<extra></extra>", marker });
    const data = [cloud(points, texts, { size: 5, color: ink("--soft"), opacity: 0.4 }, "corpus")];
    if (found) {
      data.push(cloud(found.places, found.neighbours.map(([text]) => text), { size: 10, color: ink("--accent") }, "neighbours"));
      data.push(cloud([found.place], [found.text], { size: 15, color: ink("--warn"), symbol: "star" }, "sentence"));
    }
    const axis = (title) => ({ title: { text: title, standoff: 6 }, gridcolor: ink("--grid"), zeroline: false, color: ink("--soft") });
    const layout = {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 56, r: 16, t: 16, b: 44 }, xaxis: axis("first component"), yaxis: axis("second component"), hovermode: "closest", uirevision: run,
      font: { color: ink("--soft") }, legend: { orientation: "h", y: 1.02, yanchor: "bottom" }, hoverlabel: { bgcolor: ink("--card"), bordercolor: ink("--line"), font: { color: ink("--ink") } },
    };
    await Plotly.react(box, data, layout, { responsive: true, scrollZoom: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d"] });
    draw.again = () => draw(run, found);
  };
  document.getElementById("theme").addEventListener("click", () => draw.again?.());

  // --- forms -----------------------------------------------------------------------------------------------------

  const fill = (form) => {
    const run = runs[Number(form.elements.run?.value ?? 0)], choice = form.elements.sampler;
    if (choice) {
      const before = choice.value;
      choice.replaceChildren(...run.samplers.map((kind, number) => make("option", { value: number ? kind : "", text: number ? kind : `${kind} (default)` })));
      if (run.samplers.indexOf(before) > 0) choice.value = before;
    }
    const search = form.elements.search;
    if (search) search.checked = !(search.disabled = !run.searches) && search.checked;
    const refused = form.dataset.ask && run.refused[form.dataset.ask];
    form.closest("section").querySelector(".refused")?.remove();
    if (refused) form.before(make("p", { className: "problem refused", text: refused }));
    const examples = run.examples.length ? run.examples : ["The girl drew a horse in the garden.", "The old man sold a boat."];
    for (const field of form.querySelectorAll("[data-example]")) {
      if (field.value !== "") continue;
      const words = examples[0].split(" ");
      field.value = field.dataset.example === "mask" ? words.map((word, place) => (place === words.length - 2 ? "[MASK]" : word)).join(" ") : examples[Number(field.dataset.example) % examples.length];
    }
  };

  for (const form of document.querySelectorAll("form")) {
    fill(form);
    form.elements.run?.addEventListener("change", () => fill(form));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      form.dataset.asked = "yes";
      if (form.id === "both" || form.closest(".side")) return compare();
      const out = form.parentElement.querySelector(".out");
      show(out, form.querySelectorAll("button"), (put) => shown[form.dataset.ask](asked(form), form, put));
    });
  }

  const sides = [...document.querySelectorAll(".side")];
  if (sides[1].querySelector("[name=run]").options.length > 1) sides[1].querySelector("[name=run]").value = "1";
  else sides[1].querySelector("[name=search]").checked = true;
  fill(sides[1].querySelector("form"));
  const compare = () => {
    const both = document.getElementById("both"), texts = [both.elements.text.value];
    for (const side of sides) show(side.querySelector(".out"), both.querySelectorAll("button"), async (put) => written(await inverted({ ...asked(side.querySelector("form")), texts }, put, { at: 0 }), { at: 0 }));
  };

  const strength = document.querySelector("[name=strength]");
  strength.addEventListener("input", () => { strength.closest("label").querySelector("output").textContent = strength.value; });
  strength.addEventListener("change", () => strength.form.requestSubmit());
  // a tab that is opened for the first time answers its example, unless the run cannot
  const open = (name) => {
    const panel = document.getElementById(name), form = panel.querySelector("form");
    if (!form.dataset.asked && !panel.querySelector(".refused")) form.requestSubmit();
  };
  for (const tab of document.querySelectorAll("[data-tab]")) tab.addEventListener("click", () => open(tab.dataset.tab));
  open("write");
  document.querySelector(".tabs").addEventListener("keydown", (event) => {
    const tabs = [...event.currentTarget.querySelectorAll("button")], to = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!to) return;
    const next = tabs.at((tabs.indexOf(event.target) + to) % tabs.length);
    next.focus();
    next.click();
  });
})();
