// Replaces the SVG charts of a page by uPlot charts, and updates them while the page is visible. It also updates the
// legends and tables, which the page contains, and formats values as web/features/history/pages/charts.py does.
"use strict";

(() => {
  const SLOWEST_MS = 60000;
  const GIVE_UP_MS = 5000;
  const HEIGHT = 176;
  const MIN_SPAN = 600; // shortest time axis in seconds; the history of a new server fills the width from then on
  const NONE = "–";
  const DECADES = [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1].flatMap((ten) => [ten, 2 * ten, 5 * ten]);
  const LONGER = [10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200];
  const STEPS = [...DECADES, ...LONGER, ...[1, 2, 5, 10, 20, 50, 100, 500, 1000, 10000].map((days) => days * 86400)]; // ticks of a scale in seconds

  const panel = document.getElementById("charts");
  const when = document.getElementById("charts-when");
  const seconds = Number(panel.dataset.seconds);
  const step = Number(panel.dataset.step);
  const beforeLabel = panel.dataset.before; // the time to compare with; empty if there is none
  const interval = step < 60 ? 5000 : step < 3600 ? 20000 : 60000; // milliseconds between two requests

  // Formats of values and times

  const whole = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 0 });
  const tenths = new Intl.NumberFormat("en-GB", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
  const hundredths = new Intl.NumberFormat("en-GB", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
  const short = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 2 });
  const utc = { hour: "2-digit", minute: "2-digit", timeZone: times.timeZone }; // the zone of static/times.js, as for all times of the dashboard
  const day = { day: "2-digit", month: "short" };
  const isLong = seconds > 86400; // the axis has days
  const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", timeZone: times.timeZone });
  const date = new Intl.DateTimeFormat("en-GB", { ...day, timeZone: times.timeZone });
  const toTheMinute = new Intl.DateTimeFormat("en-GB", { ...(seconds >= 86400 ? day : {}), ...utc });
  const toTheSecond = new Intl.DateTimeFormat("en-GB", { ...(seconds >= 86400 ? day : {}), ...utc, second: "2-digit" });
  const full = new Intl.DateTimeFormat("sv-SE", {
    year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit", timeZone: times.timeZone,
  }); // as static/times.js writes times
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

  function duration(value) {
    const at = units.findIndex(([, size]) => value >= size);
    const [unit, size] = units[at];
    const text = `${whole.format(Math.floor(value / size))}\u00a0${unit}`;
    if (unit === "s") {
      return text;
    }
    const [smaller, smallerSize] = units[at + 1];
    const rest = Math.floor((value % size) / smallerSize);
    return rest ? `${text} ${rest}\u00a0${smaller}` : text;
  }

  // Returns the text, cut so that it is at most *room* wide.
  function fitted(ctx, text, room) {
    let shown = text;
    for (let length = text.length - 1; length > 0 && ctx.measureText(shown).width > room; length -= 1) {
      shown = `${text.slice(0, length)}…`;
    }
    return shown;
  }

  const formats = {
    count: (value) => whole.format(value),
    rate: (value) => (value === 0 ? "0" : (value < 1 ? hundredths : value < 100 ? tenths : whole).format(value)),
    seconds(value) {
      if (value < 0.9995) {
        return `${(value > 0 && value < 0.01 ? tenths : whole).format(value * 1000)}\u00a0ms`;
      }
      return value < 59.95 ? `${tenths.format(value)}\u00a0s` : duration(Math.round(value));
    },
  };

  function shown(value, unit) {
    return value === null || value === undefined ? NONE : formats[unit](value);
  }

  function time(at) {
    return `${toTheSecond.format(at * 1000)} ${times.name(at * 1000)}`;
  }

  // Returns the label of a time below a chart: the date at midnight of a long span, and the time of day otherwise.
  function onAxis(at) {
    const label = clock.format(at * 1000);
    return isLong && label === "00:00" ? date.format(at * 1000) : label;
  }

  // Colours come from the stylesheet: those of the legend's entries, and of a plot's text and border.

  let colors = new WeakMap();

  function colorsOf(element) {
    if (!colors.has(element)) {
      const { color, borderTopColor } = getComputedStyle(element);
      colors.set(element, { color, borderTopColor });
    }
    return colors.get(element);
  }

  // Returns the indexes of values between two unknown ones, which are drawn as dots, since no line connects them.
  function isolated(plot, index) {
    const values = plot.data[index];
    const isKnown = (at) => values[at] !== null && values[at] !== undefined;
    return [...values.keys()].filter((at) => isKnown(at) && !isKnown(at - 1) && !isKnown(at + 1));
  }

  // Returns the values of a series that the server omits: unknown for durations, otherwise 0 wherever others are known.
  function blank(series, unit, times) {
    const [some] = Object.entries(series).filter(([key]) => !/_p[0-9]+$/.test(key));
    return times.map((_, at) => (unit === "seconds" || (some && some[1][at] === null) ? null : 0));
  }

  // Returns the start of the time axes: the time of the first known value, within limits. Without any series, as for an
  // idle queue, the axes show the whole span.
  function begin(series, times) {
    const all = Object.values(series);
    const first = times.findIndex((_, at) => all.some((values) => values[at] !== null));
    return Math.max(times.at(-1) - seconds, Math.min(times[Math.max(first, 0)], times.at(-1) - MIN_SPAN));
  }

  // A chart

  class Chart {
    constructor(section) {
      this.unit = section.dataset.unit;
      this.box = section.querySelector(".plot");
      this.lines = [...section.querySelectorAll("[data-line]")];
      this.rows = [...section.querySelectorAll("tbody tr")];
      this.plot = null;
    }

    update(history, times) {
      const { series } = history;
      const before = history.before ?? {};
      const columns = this.lines.map((line) => series[line.dataset.line] ?? blank(series, this.unit, times));
      const drawn = this.lines.map((line, at) => (line.dataset.line in series ? columns[at] : times.map(() => null)));
      const faint = beforeLabel ? this.lines.map((line) => before[line.dataset.line] ?? times.map(() => null)) : [];
      this.before = beforeLabel ? this.lines.map((line) => before[line.dataset.line] ?? blank(before, this.unit, times)) : null;
      this.marks = history.marks ?? [];
      this.columns = columns;
      this.times = times;
      this.begin = begin(series, times);
      if (this.plot === null) {
        this.box.replaceChildren();
        this.plot = new uPlot(this.options(), [times, ...drawn, ...faint], this.box);
        new ResizeObserver(() => this.resize()).observe(this.box);
      } else {
        this.plot.setData([times, ...drawn, ...faint]);
      }
      this.label();
      this.legend(this.plot.cursor.idx);
      this.table();
    }

    options() {
      const small = `${parseFloat(getComputedStyle(this.box).fontSize)}px ${getComputedStyle(this.box).fontFamily}`;
      const axis = { stroke: () => colorsOf(this.box).color, font: small, ticks: { show: false } };
      const grid = { stroke: () => colorsOf(this.box).borderTopColor, width: 1 };
      return {
        width: this.box.clientWidth,
        height: HEIGHT,
        padding: [8, 32, 0, 0], // half the width of the last time label
        legend: { show: false },
        tzDate: (at) => uPlot.tzDate(new Date(at * 1000), times.timeZone),
        cursor: { sync: { key: "charts" }, y: false, drag: { x: false, y: false }, points: { size: 6 } },
        scales: {
          x: { time: true, range: () => [this.begin, this.times.at(-1)] },
          y: { range: (plot, least, most) => [0, most > 0 ? most * 1.08 : 1] },
        },
        axes: [
          { ...axis, grid: { show: false }, size: 30, space: 72, values: (plot, splits) => splits.map(onAxis) },
          {
            ...axis,
            grid,
            size: (plot, texts) => 16 + 7 * Math.max(3, ...(texts ?? []).map((text) => text.length)),
            space: 32,
            incrs: this.unit === "seconds" ? STEPS : undefined,
            values: (plot, splits) => splits.map((value) => this.tick(value)),
          },
        ],
        series: [{}, ...this.lines.map((line) => this.series(line)), ...(beforeLabel ? this.lines.map((line) => this.faint(line)) : [])],
        hooks: { setCursor: [(plot) => this.legend(plot.cursor.idx)], draw: [(plot) => this.drawMarks(plot)] },
      };
    }

    series(line) {
      return {
        label: line.dataset.line,
        stroke: () => colorsOf(line).color,
        width: 1.5,
        dash: line.dataset.line.endsWith("p95") ? [4, 3] : line.dataset.line.endsWith("p99") ? [1, 3] : undefined,
        points: { show: true, size: 4, fill: () => colorsOf(line).color, filter: isolated },
      };
    }

    // The same line at the time to compare with.
    faint(line) {
      return { ...this.series(line), label: `${line.dataset.line}, ${beforeLabel}`, alpha: 0.4, width: 1, points: { show: false } };
    }

    // Draws the marks as dashed vertical lines, each with its text, cut to the room beside its line. A text that would
    // cover the one before it is left out.
    drawMarks(plot) {
      const { ctx, bbox } = plot;
      const ratio = devicePixelRatio;
      let free = -Infinity;
      ctx.save();
      ctx.strokeStyle = ctx.fillStyle = colorsOf(this.box).color;
      ctx.font = `${11 * ratio}px ${getComputedStyle(this.box).fontFamily}`;
      ctx.textAlign = "left";
      ctx.textBaseline = "top";
      ctx.setLineDash([2 * ratio, 3 * ratio]);
      for (const mark of this.marks) {
        const x = Math.round(plot.valToPos(mark.at, "x", true));
        if (x < bbox.left || x > bbox.left + bbox.width) {
          continue;
        }
        ctx.beginPath();
        ctx.moveTo(x, bbox.top);
        ctx.lineTo(x, bbox.top + bbox.height);
        ctx.stroke();
        const gap = 3 * ratio;
        const [before, after] = [x - gap - bbox.left, bbox.left + bbox.width - x - gap];
        const label = mark.text.length > 24 ? `${mark.text.slice(0, 23)}…` : mark.text;
        const isRight = ctx.measureText(label).width <= after || after >= before;
        const text = fitted(ctx, label, isRight ? after : before);
        const width = ctx.measureText(text).width;
        const start = isRight ? x + gap : x - gap - width;
        if (start > free) {
          ctx.fillText(text, start, bbox.top);
          free = start + width;
        }
      }
      ctx.restore();
    }

    // Returns the text of a value and, in brackets, of the one to compare with.
    text(number, at) {
      const now = shown(this.columns[number][at], this.unit);
      return this.before ? `${now} (${shown(this.before[number][at], this.unit)})` : now;
    }

    tick(value) {
      if (this.unit === "seconds") {
        const isLong = value >= 60;
        return isLong ? duration(value) : value < 1 ? `${short.format(value * 1000)}\u00a0ms` : `${short.format(value)}\u00a0s`;
      }
      return this.unit === "count" && !Number.isInteger(value) ? "" : short.format(value); // no fractions of jobs
    }

    resize() {
      const width = this.box.clientWidth;
      if (width > 0 && width !== this.plot.width) {
        this.plot.setSize({ width, height: HEIGHT });
      }
    }

    // Shows the values under the cursor, or the last ones.
    legend(index) {
      const isPointed = index !== null && index !== undefined;
      const at = isPointed ? index : this.times.length - 1;
      this.lines.forEach((line, number) => {
        line.querySelector(".legend-value").textContent = this.text(number, at);
      });
      const ends = [this.begin, this.times.at(-1)].map((end) => toTheMinute.format(end * 1000));
      when.textContent = isPointed ? time(this.times[at]) : `${ends.join(" to ")} ${times.name(this.times.at(-1) * 1000)}`;
    }

    label() {
      const last = this.lines.map((line, at) => {
        const name = line.querySelector(".legend-label").textContent;
        return `${name} ${shown(this.columns[at].at(-1), this.unit)}`;
      });
      this.box.setAttribute("aria-label", `${this.box.dataset.title} Last: ${last.join(", ")}.`);
    }

    table() {
      this.rows.forEach((row, back) => {
        const at = this.times.length - 1 - back;
        const label = row.querySelector("time");
        label.dateTime = new Date(this.times[at] * 1000).toISOString();
        label.textContent = `${full.format(this.times[at] * 1000)} ${times.name(this.times[at] * 1000)}`;
        this.columns.forEach((_, number) => {
          row.cells[number + 1].textContent = this.text(number, at);
        });
      });
    }
  }

  // All charts

  const charts = [...panel.querySelectorAll(".chart")].map((section) => new Chart(section));
  let timer = 0;
  let asking = null; // the AbortController of the current request
  let failures = 0;

  function show(history) {
    const count = seconds / history.step;
    const times = Array.from({ length: count }, (_, at) => history.end - (count - 1 - at) * history.step);
    for (const chart of charts) {
      chart.update(history, times);
    }
  }

  // live.js reports that the server does not respond. A request from this script would only add errors to the console.
  function isServerAway() {
    return document.getElementById("live")?.dataset.state === "lost";
  }

  // The URL is built from location.origin, which has no credentials: fetch rejects http://user:password@host/.
  async function ask() {
    clearTimeout(timer);
    asking?.abort();
    asking = null;
    if (document.hidden) {
      return;
    }
    if (isServerAway()) {
      timer = setTimeout(ask, interval);
      return;
    }
    const mine = new AbortController();
    asking = mine;
    const late = setTimeout(() => mine.abort(), GIVE_UP_MS);
    try {
      const response = await fetch(new URL(panel.dataset.source, location.origin), { cache: "no-store", signal: mine.signal });
      if (response.status === 404) {
        return; // the tube and its history are gone
      }
      if (!response.ok) {
        throw new Error(`status ${response.status}`);
      }
      const history = await response.json();
      if (asking !== mine) {
        return; // a newer request has started
      }
      show(history);
      failures = 0;
    } catch {
      if (asking !== mine) {
        return;
      }
      failures += 1; // keep the charts, and retry later
    } finally {
      clearTimeout(late);
    }
    timer = setTimeout(ask, Math.min(interval * 2 ** failures, SLOWEST_MS));
  }

  function recolor() {
    colors = new WeakMap();
    for (const { plot } of charts) {
      plot?.redraw(true);
    }
  }

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolor);
  new MutationObserver(recolor).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  document.addEventListener("visibilitychange", ask);
  document.addEventListener("refresh", ask);
  ask();
})();
