// Draws, sorts and filters the rows. They are data in the page, so that 100,000 of them stay quick; without this script the page has the
// most urgent ones. All that they say is set as text.
"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const body = $("rows"), find = $("find"), format = $("format"), state = $("state"), reset = $("reset"), open = $("open"), save = $("save"), part = $("part"),
    more = $("more");
  const heads = Array.from(document.querySelectorAll("th[data-sort]"));
  let boxes = Array.from(document.querySelectorAll("#tools input[type=checkbox]"));
  const most = 200; // rows that are opened at once
  const step = 500, paper = 5000; // rows that are drawn at once, and at most for paper
  const kinds = ["failed", "misaligned", "below", "unknown", "aligned", "nothing", "orphan", "original", "removed"];
  const words = {below: "below boundary", nothing: "nothing to judge", unjudged: "not judged"};
  for (const b of boxes) words[b.value] = b.dataset.word;
  let sort = "rank", down = false;

  // The data are those of rowData: what is empty is 0, and a negative number is a place in the list of what rows share.
  const data = JSON.parse($("data").textContent);
  $("data").remove();
  const value = (v) => typeof v === "number" && v < 0 ? value(data.shared[-1 - v]) : v;
  const text = (v) => value(v) || "";
  const list = (v) => value(v) || [];
  const join = (v, at) => list(v).map(text).join(at).trimEnd();
  const stem = (name) => name.replace(/\.[^./]*$/, "");

  // A cost is text as "100 %". What has none comes last.
  const percent = (cost) => cost === "" ? -1 : cost.startsWith("<") ? 0.5 : parseFloat(cost);
  data.rows.pop();
  const rows = data.rows.map((r, rank) => {
    const [folder, name, number, names, format, subformat, size = 0, stored = 0, cost, note] = r, classes = text(names).split(" ");
    return {
      data: r, rank, number: number || "", path: list(folder).map(text).join("") + text(name), classes, verdict: kinds.indexOf(classes[0]), format: text(format),
      subformat: text(subformat), size, stored, cost: text(cost), extra: percent(text(cost)), note: text(note), find: "", name: "", fits: true, tr: null,
    };
  });
  data.rows = null;
  let fitting = rows, at = 0; // the rows of the choice, and how many of them are drawn

  // make returns an element of HTML, and draw one of SVG. Lists of content are taken apart.
  const make = (name, attributes, ...content) => add(document.createElement(name), attributes, content);
  const space = document.querySelector("svg").namespaceURI;
  const draw = (name, attributes, ...content) => add(document.createElementNS(space, name), attributes, content);
  const add = (e, attributes, content) => {
    for (const a in attributes) e.setAttribute(a, attributes[a]);
    e.append(...content.flat(Infinity));
    return e;
  };
  const when = (is, ...content) => is ? content : [];

  // Each choice has the number of its rows; one without rows goes.
  const counts = new Map(), formats = new Map();
  const count = (map, key) => map.set(key, (map.get(key) || 0) + 1);
  for (const r of rows) {
    for (const c of r.classes) count(counts, c);
    if (r.format !== "") count(formats, r.format);
  }
  for (const b of boxes) {
    if (counts.has(b.value)) b.parentNode.append(" " + counts.get(b.value));
    else b.parentNode.remove();
  }
  boxes = boxes.filter((b) => counts.has(b.value));
  for (const f of Array.from(formats.keys()).sort()) format.append(make("option", {value: f}, f + " (" + formats.get(f) + ")"));

  const decimal = new Intl.NumberFormat("en", {maximumFractionDigits: 2, useGrouping: false, roundingMode: "halfEven"});
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const bytes = (n) => {
    let unit = 0;
    for (n = Number(n); n >= 1024 && unit < 4; unit++) n /= 1024;
    return decimal.format(n) + " " + units[unit];
  };
  const sizeCell = (n) => Number(n) === 0 ? make("td") : make("td", {title: n + " bytes"}, bytes(n));
  const word = (name) => words[name] || name;
  const kindOf = (name) => make("span", {class: "kind"}, word(name));

  const rowOf = (r) => {
    const [kind, ...tags] = r.classes;
    return make("tr", {class: r.classes.join(" ")},
      make("td", {}, r.number),
      make("td", {}, make("details", {}, make("summary", {}, r.path, when(r.note, make("small", {}, r.note))))),
      make("td", {}, kindOf(kind), tags.map((t) => [" ", make("i", {}, word(t))])),
      make("td", {}, r.format, when(r.subformat, " ", make("small", {}, r.subformat))),
      sizeCell(r.size), sizeCell(r.stored), make("td", {}, r.cost));
  };

  // fill makes the details of a row when they are first opened.
  const fill = (details, r) => {
    if (details.childElementCount > 1) return;
    const [reason, found, disks, unshown, files, parents] = r.data.slice(11);
    details.append(make("div", {},
      when(reason, make("p", {}, when(r.number, make("b", {}, "Rank " + r.number + "."), " "), text(reason) + "."),
        make("p", {class: "run"}, make("code", {}, commandOf(r)))),
      findings(found), list(disks).map(diskOf), when(unshown, make("p", {}, "And " + unshown + " more disks.")),
      when(files || parents, make("dl", {},
        when(files, make("dt", {}, "Files"), make("dd", {}, join(files, stem(text(r.data[1]))))),
        when(parents, make("dt", {}, "Completes"), make("dd", {}, text(parents)))))));
  };
  const commandOf = (r) => join(r.data[10], stem(r.path));

  const findings = (v) => {
    const [all, more] = list(v);
    return [
      when(all, make("ul", {class: "findings"}, list(all).map(list).map(([severity, subject, says, remedy]) => make("li", {},
        make("em", {class: text(severity)}, text(severity)), " ", when(subject, text(subject) + ": "), make("span", {}, text(says)),
        when(remedy, " ", make("strong", {}, text(remedy))))))),
      when(more, make("p", {}, "And " + more + " more findings.")),
    ];
  };

  const diskOf = (v) => {
    const [member, facts, guest, size, sector, partitions, unshown, lenses, refusals, notes, advice, moves] = list(v);
    const parts = list(partitions).map(list).map(([number, active, kind, lba, on, size, type, content, name, label]) => ({
      number: number || 0, active, kind: text(kind), lba: lba || 0, on: text(on) || "0", size: size || 0, type: text(type), content: text(content), name: text(name),
      label: text(label),
    }));
    return make("section", {}, when(member, make("h3", {}, text(member))), make("p", {}, text(facts)),
      when(guest, make("p", {}, text(guest))), size > 0 ? map(Number(size), sector, parts) : [], list(lenses).map(lens),
      when(parts.length > 0, tableOf(parts)),
      when(unshown, make("p", {}, "Of " + (unshown + parts.length) + " partitions " + parts.length +
        " are shown, those off the boundary first; trueup inspect lists all.")),
      findings(refusals), findings(notes), when(advice, make("p", {}, text(advice))), when(moves, make("p", {}, text(moves))));
  };

  // The table scrolls on a phone, by the keyboard too.
  const tableOf = (parts) => make("table", {tabindex: 0, "aria-label": "Partitions"},
    make("tr", {}, make("th", {}, make("abbr", {title: "* is active"}, "#")), make("th", {}, "Verdict"),
      ["Start LBA", "On", "Size"].map((h) => make("th", {class: "number"}, h)), make("th", {}, "Type"), make("th", {}, "Content")),
    parts.map((p) => make("tr", {class: p.kind}, make("td", p.active ? {title: "active"} : {}, p.number + (p.active ? "*" : "")),
      make("td", {}, kindOf(p.kind)), make("td", {}, p.lba), make("td", {}, p.on), make("td", {title: p.size + " bytes"}, bytes(p.size)),
      make("td", {}, p.type), make("td", {}, p.content, when(p.name, " ", make("q", {}, p.name)),
        when(p.label && p.label !== p.name, " ", make("q", {}, p.label))))));

  // map draws the partitions to scale, extended ones below the others. Those of a broken table end with the disk. A number needs 5 %
  // of the width, for two digits on a phone.
  const length = (share) => parseFloat((100 * share).toFixed(3)) + "%";
  const map = (total, sector, parts) => {
    const drawn = parts.map((p) => {
      const start = Math.min(Math.max(p.lba * sector, 0), total);
      return {...p, at: start / total, share: Math.min(Math.max(Number(p.size), 0), total - start) / total};
    });
    const above = drawn.filter((p) => p.kind !== "unjudged");
    return draw("svg", {class: "map", "aria-hidden": "true"},
      drawn.filter((p) => p.kind === "unjudged").concat(above)
        .map((p) => draw("rect", {class: p.kind, x: length(p.at), width: length(p.share), height: 26})),
      above.filter((p) => p.share >= 0.05).map((p) => draw("text", {x: length(p.at), dx: 6, y: 18}, p.number)),
      draw("text", {class: "half", x: "50%", y: 43}, bytes(total / 2)), draw("text", {class: "whole", x: "100%", y: 43}, bytes(total)));
  };

  // lens magnifies the start of a partition: four blocks of the storage, and blocks of that size in the partition.
  const lens = (v) => {
    const [kind, unit, says, past = 0] = list(v);
    const x = (n) => length((n + past / 100) / 4);
    return make("figure", {}, draw("svg", {class: "lens", "aria-hidden": "true"},
      [0, 1, 2, 3].map((n) => draw("rect", {class: text(kind) + (n > 0 ? " more" : ""), x: x(n), y: 22, width: "25%", height: 18})),
      draw("text", {x: x(1), dx: 6, y: 35}, "partition"), draw("text", {x: 6, y: 13}, "storage")),
    make("figcaption", {}, text(says), " ", make("small", {},
      "Shown: four blocks of " + text(unit) + " of the storage, and those of the partition.")));
  };

  // index notes the words of each row that are found, once: path, format, labels and errors.
  const index = () => {
    if (rows.length === 0 || rows[0].find !== "") return;
    for (const r of rows) {
      const words = [r.path, r.note, r.format + " " + r.subformat];
      const errors = (v) => list(list(v)[0]).map(list).forEach(([severity, , says]) => { if (text(severity) === "error") words.push(text(says)); });
      errors(r.data[12]);
      for (const [member, , , , , parts, , , , notes] of list(r.data[13]).map(list)) {
        words.push(text(member));
        for (const [, , , , , , , , name, label] of list(parts).map(list)) words.push(text(name), text(label));
        errors(notes);
      }
      r.find = words.join("\n").toLowerCase();
    }
  };

  // show draws the first rows of the choice anew.
  const show = () => {
    fitting = rows.filter((r) => r.fits);
    at = 0;
    body.replaceChildren();
    place(step);
  };

  // place draws up to n more rows.
  const place = (n) => {
    const drawn = fitting.slice(at, at + n);
    body.append(...drawn.map((r) => r.tr ??= rowOf(r)));
    at += drawn.length;
    $("rest").hidden = at === fitting.length;
    more.textContent = "Show " + Math.min(step, fitting.length - at) + " more of " + (fitting.length - at) + " rows";
    say();
  };

  const compare = (a, b) => a < b ? -1 : a > b ? 1 : 0;
  const order = {
    rank: (a, b) => a.rank - b.rank, path: (a, b) => compare(a.name, b.name),
    verdict: (a, b) => a.verdict - b.verdict, format: (a, b) => compare(a.format, b.format) || compare(a.subformat, b.subformat),
    size: (a, b) => a.size - b.size, stored: (a, b) => a.stored - b.stored, cost: (a, b) => a.extra - b.extra,
  };

  const arrange = () => {
    // Numbers in names are compared as numbers: with zeros in front. A collator takes ten times as long.
    if (sort === "path" && rows.length > 0 && rows[0].name === "") {
      for (const r of rows) r.name = r.path.toLowerCase().replace(/\d+/g, (d) => d.padStart(20, "0"));
    }
    const by = order[sort], sign = down ? -1 : 1;
    rows.sort((a, b) => sign * by(a, b) || a.rank - b.rank);
    mark();
  };

  const mark = () => {
    for (const th of heads) {
      if (th.dataset.sort === sort) th.setAttribute("aria-sort", down ? "descending" : "ascending");
      else th.removeAttribute("aria-sort");
    }
  };

  const chosen = (name) => boxes.filter((b) => b.name === name && b.checked).map((b) => b.value);

  const filter = () => {
    const asked = find.value.toLowerCase().split(/\s+/).filter((w) => w !== "");
    const kind = chosen("kind"), tag = chosen("tag"), f = format.value;
    if (asked.length > 0) index();
    for (const r of rows) {
      r.fits = (kind.length === 0 || kind.includes(r.classes[0])) && (tag.length === 0 || tag.some((t) => r.classes.includes(t))) &&
        (f === "" || r.format === f) && asked.every((w) => r.find.includes(w));
    }
    show();
  };

  // say tells what is shown, and by which filter.
  const say = () => {
    const total = rows.length, shown = fitting.length;
    const parts = boxes.filter((b) => b.checked).map((b) => b.dataset.word);
    if (format.value !== "") parts.push("format " + format.value);
    if (find.value.trim() !== "") parts.push("with \u201C" + find.value.trim() + "\u201D");
    state.textContent = (parts.length === 0 ? "All " + total : shown + " of " + total) + " rows " +
      (at < shown ? "match, and the first " + at + " are shown" : "are shown") + (parts.length === 0 ? "." : ": " + parts.join(", ") + ".");
    reset.hidden = parts.length === 0;
    part.hidden = shown === total && at === shown;
    part.textContent = "This is a part of the report. " + state.textContent + " The sums above are those of all images.";
    save.disabled = shown === 0;
    $("none").hidden = shown > 0 || total === 0;
    open.disabled = shown === 0 || shown > most;
    open.title = shown > most ? "for up to " + most + " rows: narrow them first" : "";
  };

  // The choice is in the address, so that it can be kept and sent.
  const keep = () => {
    const q = new URLSearchParams();
    if (sort !== "rank" || down) q.set("sort", (down ? "-" : "") + sort);
    if (find.value !== "") q.set("find", find.value);
    if (format.value !== "") q.set("format", format.value);
    const only = boxes.filter((b) => b.checked).map((b) => b.value);
    if (only.length > 0) q.set("only", only.join(","));
    history.replaceState(null, "", "#" + q.toString());
  };

  const recall = () => {
    const q = new URLSearchParams(location.hash.slice(1));
    const s = q.get("sort") || "rank", by = s.replace(/^-/, "");
    find.value = q.get("find") || "";
    format.value = q.get("format") || "";
    if (format.selectedIndex < 0) format.value = "";
    const only = (q.get("only") || "").split(",");
    for (const b of boxes) b.checked = only.includes(b.value);
    const changed = Object.hasOwn(order, by) && (by !== sort || s.startsWith("-") !== down);
    if (changed) { sort = by; down = s.startsWith("-"); arrange(); }
    filter();
  };

  for (const th of heads) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...th.childNodes);
    th.append(button);
    button.addEventListener("click", () => {
      const by = th.dataset.sort, falls = th.classList.contains("number");
      down = by === sort ? !down : falls;
      sort = by;
      arrange();
      show();
      keep();
    });
  }
  let due = 0;
  const typed = () => { due = 0; filter(); keep(); };
  find.addEventListener("input", () => {
    clearTimeout(due);
    due = setTimeout(typed, 120);
  });
  // settle has a filter that was just typed take effect before the rows are printed or saved.
  const settle = () => { if (due) { clearTimeout(due); typed(); } };
  for (const e of [format, ...boxes]) e.addEventListener("change", () => { filter(); keep(); });
  reset.addEventListener("click", () => {
    find.value = format.value = "";
    for (const b of boxes) b.checked = false;
    filter();
    keep();
    find.focus();
  });
  open.addEventListener("click", () => {
    const all = Array.from(body.querySelectorAll("details"));
    const close = all.every((d) => d.open);
    for (const d of all) d.open = !close;
  });

  // csv is what the rows that fit say, a line for each image. A text that a spreadsheet would take for a formula gets an apostrophe, as
  // in what trueup scan -o csv prints.
  const guard = (text) => text.split(";").map((s) => s.replace(/^[ "]*(?=[=+\-@\uFF1D\uFF0B\uFF0D\uFF20])/, "$&'")).join(";");
  const quote = (text) => /[",\r\n]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
  const csv = () => {
    const lines = [["rank", "path", "verdict", "marks", "format", "disk_size_bytes", "stored_bytes", "extra_io", "note", "command"]];
    for (const r of fitting) {
      const [kind, ...tags] = r.classes, number = (n) => Number(n) === 0 ? "" : String(n);
      lines.push([String(r.number), r.path, word(kind), tags.map(word).join("; "), (r.format + " " + r.subformat).trim(),
        number(r.size), number(r.stored), r.cost, r.note, commandOf(r)]);
    }
    return lines.map((l) => l.map((s) => quote(guard(s))).join(",") + "\r\n").join("");
  };
  save.addEventListener("click", () => {
    settle();
    const a = document.createElement("a");
    a.href = URL.createObjectURL(new Blob([csv()], {type: "text/csv"}));
    a.download = "images.csv";
    a.click();
    setTimeout(() => URL.revokeObjectURL(a.href), 60000);
  });

  // A number that has a title lies above the line, and opens it too.
  body.addEventListener("click", (e) => {
    const cell = e.target.closest("td");
    if (!cell || cell.parentNode.parentNode !== body || !cell.title) return;
    const d = cell.parentNode.querySelector("details");
    d.open = !d.open;
  });

  // A command gets its button when it is first seen, where the browser lets a page write to the clipboard.
  document.addEventListener("toggle", (e) => {
    const tr = e.target.closest("#rows > tr");
    if (!tr || !e.target.open) return;
    fill(e.target, fitting[tr.sectionRowIndex]);
    const code = e.target.querySelector(".run code");
    if (!code || code.nextSibling || !navigator.clipboard) return;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", () => {
      navigator.clipboard.writeText(code.textContent).then(() => { button.textContent = "Copied"; }, () => { button.textContent = "Select and copy"; });
    });
    code.after(button);
  }, true);

  more.addEventListener("click", () => {
    const next = at;
    place(step);
    body.rows[next].querySelector("summary").focus();
  });
  addEventListener("beforeprint", () => { settle(); place(Math.max(0, paper - at)); });
  addEventListener("hashchange", recall);
  $("tools").hidden = false;
  mark();
  recall();
  (window.requestIdleCallback || setTimeout)(index); // so that the first word need not wait for it
})();
