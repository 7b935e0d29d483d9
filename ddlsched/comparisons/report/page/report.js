"use strict";
(() => {
  const root = document.documentElement;
  const charts = new Map(JSON.parse(document.getElementById("chart-data").textContent).map((chart) => [chart.id, chart]));
  const hidden = new Set();
  const drawn = new Set();
  const LEGEND_ROW = 21;
  const MODEBAR = 30;

  const variable = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const policyColour = (policy) => variable(`--policy-${policy}`);

  function faded(colour) {
    const parts = [1, 3, 5].map((place) => parseInt(colour.slice(place, place + 2), 16));
    return `rgba(${parts.join(",")},0.2)`;
  }

  // The rectangles of a placement map, which come as whole numbers, as one trace of bars.
  function unfolded(map) {
    const { times_s: times, stays, boxes, servers, colours } = map;
    const serverOf = servers.flatMap((gpus, server) => Array(gpus).fill(server));
    const trace = { type: "bar", orientation: "h", base: [], x: [], y: [], width: [], hovertext: [], hoverinfo: "text", showlegend: false };
    const fill = [];
    for (const [stay, from, to, gpu, gpus, place, jobs] of boxes) {
      const [job, first, last, colour] = stays[stay];
      const height = gpus > 1 ? gpus : 1 / jobs;
      trace.base.push(times[from]);
      trace.x.push(times[to] - times[from]);
      trace.y.push(gpu + (gpus > 1 ? 0 : place / jobs) + height / 2);
      trace.width.push(height);
      const where = gpus > 1 ? `GPUs ${gpu} to ${gpu + gpus - 1}` : `GPU ${gpu}`;
      const company = jobs > 1 ? `, one of ${jobs} jobs there` : "";
      trace.hovertext.push(`job ${job}<br>${where} (server ${serverOf[gpu]})<br>${times[first]} to ${times[last]} s${company}`);
      fill.push(colours[colour]);
    }
    const edges = trace.width.map((height) => (height > 0.3 ? 0.5 : 0)); // around less they would be all there is
    trace.marker = { color: fill, line: { width: edges, color: "#ffffff" } };
    return trace;
  }

  function mapLayout(map) {
    const starts = map.servers.reduce((sums, gpus) => [...sums, sums[sums.length - 1] + gpus], [0]);
    const every = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].find((step) => map.servers.length / step <= 20) || 5000;
    const ticks = [...map.servers.keys()].filter((server) => server % every === 0);
    const lines = map.servers.length > 260 ? [] : starts.slice(1, -1);
    return {
      barmode: "overlay",
      xaxis: { title: { text: "Time (s)" }, range: [0, map.times_s[map.times_s.length - 1]], showgrid: false },
      yaxis: {
        title: { text: "Server" },
        range: [starts[starts.length - 1], 0],
        tickvals: ticks.map((server) => (starts[server] + starts[server + 1]) / 2),
        ticktext: ticks.map(String),
        showgrid: false,
        zeroline: false,
      },
      shapes: lines.map((y) => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0: y, y1: y, meta: "server" })),
    };
  }

  function withRows(trace, isShown) {
    const rows = [...trace.y.keys()].filter(isShown);
    return { ...trace, y: rows.map((row) => trace.y[row]), z: rows.map((row) => trace.z[row]) };
  }

  function painted(trace) {
    const policy = trace.meta && trace.meta.policy;
    if (trace.type === "heatmap") return withRows(trace, (row) => !hidden.has(trace.meta.rows[row]));
    if (policy === undefined) return trace;
    const colour = policyColour(policy);
    const copy = { ...trace };
    if (trace.type === "bar") copy.marker = { ...trace.marker, color: colour };
    else if (trace.mode === "markers") copy.marker = { ...trace.marker, color: colour };
    else copy.line = { ...trace.line, color: trace.fill ? "transparent" : colour };
    if (trace.fill) copy.fillcolor = faded(colour);
    for (const error of ["error_x", "error_y"]) {
      if (trace[error]) copy[error] = { ...trace[error], color: trace.type === "bar" ? variable("--ink") : colour };
    }
    return copy;
  }

  const isHidden = (trace) => Boolean(trace.meta) && hidden.has(trace.meta.policy);
  const hasRows = (chart) => chart.traces.some((trace) => trace.type === "heatmap");

  function traces(chart) {
    const all = chart.placement ? [unfolded(chart.placement)] : chart.traces;
    return all.map((trace) => ({ ...painted(trace), visible: !isHidden(trace) }));
  }

  function legendRows(chart, width) {
    const names = chart.traces.filter((trace) => trace.showlegend).map((trace) => trace.name.split("<br>"));
    if (names.length < 1) return 0;
    const widest = 60 + 7.2 * Math.max(...names.flat().map((line) => line.length));
    const columns = Math.max(1, Math.floor(width / widest));
    if (columns === 1) return names.flat().length;
    return Math.ceil(names.length / columns) * Math.max(...names.map((name) => name.length));
  }

  // A logarithmic axis has ticks at 1, 2 and 5 where they have room, else at powers of ten, as many as fit.
  function fitLogarithmic(base, chart, width) {
    if (!base.xaxis || base.xaxis.type !== "log") return;
    const values = chart.traces.flatMap((trace) => Array.from(trace.x)).filter((value) => value > 0);
    const decades = Math.max(...values.map(Math.log10)) - Math.min(...values.map(Math.log10));
    const room = Math.max(1, (width - 90) / TICK_PIXELS);
    if (3 * decades <= room) return;
    base.xaxis = { ...base.xaxis, dtick: Math.ceil(decades / room), tickformat: "", exponentformat: "power" };
  }

  // Panels beside each other leave room for the numbers of the axis between them, however narrow the chart is.
  function fitPanels(base, width) {
    const panels = Object.keys(base).filter((name) => /^xaxis/.test(name) && base[name].domain);
    const gap = Math.min(0.2, Math.max(0.09, 52 / width));
    panels.forEach((name, place) => {
      const left = place / panels.length + (place ? gap : 0);
      base[name] = { ...base[name], domain: [left, (place + 1) / panels.length] };
    });
  }

  function layout(chart, width) {
    const axis = { gridcolor: variable("--grid"), linecolor: variable("--line"), zerolinecolor: variable("--muted"), automargin: true };
    const base = chart.placement ? mapLayout(chart.placement) : structuredClone(chart.layout);
    for (const name of Object.keys(base)) {
      if (/^[xy]axis/.test(name)) base[name] = { ...axis, ...base[name] };
    }
    fitLogarithmic(base, chart, width);
    fitPanels(base, width);
    const rows = legendRows(chart, width);
    for (const line of base.shapes || []) line.line = { width: 1, color: variable("--ink") };
    return {
      ...base,
      height: chart.height + MODEBAR + LEGEND_ROW * rows,
      autosize: true,
      margin: { l: 10, r: 14, t: MODEBAR, b: rows ? 50 + LEGEND_ROW * rows : 10 },
      font: { family: getComputedStyle(document.body).fontFamily, size: 12.5, color: variable("--ink") },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: chart.placement ? variable("--idle") : "rgba(0,0,0,0)",
      hoverlabel: { namelength: -1, bgcolor: variable("--card"), bordercolor: variable("--muted"), font: { color: variable("--ink") } },
      hovermode: "closest",
      dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
      legend: { orientation: "h", x: 0, xref: "container", xanchor: "left", y: 0, yref: "container", yanchor: "bottom" },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: variable("--muted"), activecolor: variable("--ink") },
    };
  }

  const TICK_PIXELS = 44;

  const CONFIG = {
    responsive: true,
    displaylogo: false,
    modeBarButtons: [["toImage"], ["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]], // none that sends data
    toImageButtonOptions: { format: "svg" },
  };

  function draw(chart) {
    const element = document.getElementById(chart.id);
    drawn.add(chart);
    const width = element.clientWidth;
    return Plotly.react(element, traces(chart), layout(chart, width), CONFIG).then(() => {
      element.style.minHeight = "";
      element.dataset.drawn = "yes";
    });
  }

  // A chart is drawn when it is about to be seen: many workloads and clusters make many charts.
  const watcher = new IntersectionObserver(
    (entries) => {
      for (const entry of entries.filter((each) => each.isIntersecting)) {
        watcher.unobserve(entry.target);
        draw(charts.get(entry.target.id));
      }
    },
    { rootMargin: "800px" },
  );
  for (const id of charts.keys()) watcher.observe(document.getElementById(id));

  function toggle(policy, shown) {
    if (shown) hidden.delete(policy);
    else hidden.add(policy);
    for (const map of document.querySelectorAll(`.map[data-policy="${policy}"]`)) map.hidden = !shown;
    for (const chart of drawn) {
      if (hasRows(chart)) draw(chart);
      const own = chart.traces.flatMap((trace, place) => (trace.meta && trace.meta.policy === policy ? [place] : []));
      if (own.length) Plotly.restyle(chart.id, { visible: shown }, own);
    }
  }

  const toggles = document.getElementById("toggles");
  toggles.hidden = false;
  toggles.addEventListener("submit", (event) => event.preventDefault());
  toggles.addEventListener("change", (event) => toggle(Number(event.target.dataset.policy), event.target.checked));

  const themeButton = document.getElementById("theme");
  function setTheme(theme) {
    root.dataset.theme = theme;
    themeButton.textContent = theme === "dark" ? "Light" : "Dark";
    themeButton.setAttribute("aria-label", `Change to the ${theme === "dark" ? "light" : "dark"} form`);
    return Promise.all([...drawn].map(draw));
  }
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  setTheme(prefersDark.matches ? "dark" : "light");
  prefersDark.addEventListener("change", () => setTheme(prefersDark.matches ? "dark" : "light"));
  themeButton.hidden = false;
  themeButton.addEventListener("click", () => setTheme(root.dataset.theme === "dark" ? "light" : "dark"));

  // Paper is white and as wide as it is.
  let before = "light";
  window.addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    root.dataset.theme = "light";
    for (const chart of charts.values()) {
      const element = document.getElementById(chart.id);
      if (!element.offsetParent) continue;
      draw(chart);
      Plotly.relayout(element, { width: 640 });
    }
  });
  window.addEventListener("afterprint", () => setTheme(before));

  const copy = document.getElementById("copy");
  if (navigator.clipboard) {
    copy.hidden = false;
    copy.addEventListener("click", () => {
      navigator.clipboard.writeText(document.getElementById("command").textContent).then(
        () => (copy.textContent = "Copied"),
        () => (copy.textContent = "Select it by hand"),
      );
    });
  }
})();
