'use strict';
// The logit lens: a grid of layers × positions, and one cell in full.
const LEFT = 84, TOP = 40, W = 78, H = 22;  // the headers, and one cell
const layerName = layer => layer < 0 ? word('embedding') : `${word('layer')} ${layer}`;

VIEWS.lens = data => {
  const first = data.positions.length ? data.positions[0].position : 0;
  const tokens = data.tokens;
  const rows = [...data.layers].reverse();  // the last layer on top: the text is read upwards into it
  const state = { column: data.positions.length - 1, row: 0, colour: 'top' };
  const grid = surface({
    width: LEFT + data.positions.length * W, height: TOP + rows.length * H, viewHeight: Math.min(760, innerHeight * 0.74),
    label: word('lensHint'), paint: (...place) => paintLens(data, rows, state, ...place),
  });
  const panel = el('div', { class: 'panel', 'aria-live': 'polite' }), table = lensTable(data, state);

  function cellAt(event) {
    const box = grid.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - LEFT + grid.view.scrollLeft) / W);
    const row = Math.floor((event.clientY - box.top - TOP + grid.view.scrollTop) / H);
    const inside = event.clientX - box.left > LEFT && event.clientY - box.top > TOP;
    return inside && column < data.positions.length && row < rows.length ? { column, row } : null;
  }
  function show() {
    panel.replaceChildren(...cellNodes(data, rows, state));
    table.update();
    grid.redraw();
  }
  function move(column, row) {
    state.column = Math.min(data.positions.length - 1, Math.max(0, column));
    state.row = Math.min(rows.length - 1, Math.max(0, row));
    const x = state.column * W, y = state.row * H, view = grid.view;
    if (x < view.scrollLeft) view.scrollLeft = x;
    if (x + W > view.scrollLeft + view.clientWidth - LEFT) view.scrollLeft = x + W - view.clientWidth + LEFT;
    if (y < view.scrollTop) view.scrollTop = y;
    if (y + H > view.scrollTop + view.clientHeight - TOP) view.scrollTop = y + H - view.clientHeight + TOP;
    show();
  }
  grid.canvas.addEventListener('click', event => {
    const at = cellAt(event);
    if (at) move(at.column, at.row);
  });
  grid.canvas.addEventListener('mousemove', event => {
    const at = cellAt(event);
    if (!at) return hideTip();
    const cell = rows[at.row].cells[at.column];
    showTip(event, cell.top.map(token => `${plain(token)}  ${percent(token.prob)}`).join('\n') + `\n${word('entropy')} ${fixed(cell.entropy, 2)}`);
  });
  grid.canvas.addEventListener('mouseleave', hideTip);
  grid.canvas.addEventListener('keydown', event => {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], Home: [-1e9, 0], End: [1e9, 0], PageUp: [0, -1e9], PageDown: [0, 1e9] }[event.key];
    if (!step) return;
    event.preventDefault();
    move(state.column + step[0], state.row + step[1]);
  });
  const colours = el('select', { 'aria-label': word('colourBy'), onchange: event => { state.colour = event.target.value; grid.redraw(); } },
    [['top', 'byTop'], ['last', 'byLast'], ['next', 'byNext']].map(([key, name]) => el('option', { value: key }, word(name))));
  const csv = () => [['layer', 'position', 'token', 'place', 'id', 'piece', 'logit', 'prob', 'entropy', 'kl'],
    ...data.layers.flatMap(layer => layer.cells.flatMap((cell, i) => cell.top.map((token, place) =>
      [layer.layer, first + i, tokens[first + i].piece, place, token.id, token.piece, token.logit, token.prob, cell.entropy, cell.kl])))];
  move(state.column, state.row);
  requestAnimationFrame(() => { grid.view.scrollLeft = 1e9; });
  return [
    el('p', { class: 'hint' }, word('lensHint')),
    el('div', { class: 'bar-row' }, el('label', {}, `${word('colourBy')} `, colours), scale(p => css(certainty(p)), '0 %', '100 %'),
      csvButton('lens.csv', csv), pngButton('lens.png', grid.canvas)),
    el('div', { class: 'columns' }, grid.view, panel),
    table.node,
  ];
};

// What is visible of the grid; the headers stay where they are.
function paintLens(data, rows, state, c, w, h, left, top) {
  const first = data.positions[0].position;
  const share = (cell, kind) => kind === 'top' ? cell.top[0]?.prob ?? 0 : cell[kind]?.prob ?? null;
  const ink = variable('--ink'), muted = variable('--muted'), sheet = variable('--sheet'), cut = variable('--cut'), rule = variable('--rule');
  c.font = '12px "IBM Plex Mono", "Noto Sans Mono CJK KR", ui-monospace, monospace';
  c.textBaseline = 'middle';
  const from = Math.max(0, Math.floor(left / W)), to = Math.min(data.positions.length, Math.ceil((left + w - LEFT) / W));
  const text = (words, x, y, colour, width) => {
    c.save();
    c.beginPath();
    c.rect(x, y - H / 2, width, H);
    c.clip();
    c.fillStyle = colour;
    c.fillText(words, x + 4, y);
    c.restore();
  };
  rows.forEach((layer, r) => {
    const y = TOP + r * H - top;
    if (y + H < TOP || y > h) return;
    for (let i = from; i < to; ++i) {
      const cell = layer.cells[i], x = LEFT + i * W - left, p = share(cell, state.colour);
      const rgb = p === null ? null : certainty(p);
      c.fillStyle = rgb ? css(rgb) : sheet;
      c.fillRect(x, y, W - 1, H - 1);
      text(cell.top.length ? plain(cell.top[0]) : '', x, y + H / 2, rgb ? inkOn(rgb) : muted, W - 1);
    }
  });
  // The headers stay: drawn over what scrolled beneath them.
  c.fillStyle = sheet;
  c.fillRect(0, 0, w, TOP);
  c.fillRect(0, TOP, LEFT, h);
  for (let i = from; i < to; ++i) {
    const x = LEFT + i * W - left;
    text(String(first + i), x, 10, muted, W - 1);
    text(plain(data.tokens[first + i]), x, 28, i === state.column ? cut : ink, W - 1);
  }
  rows.forEach((layer, r) => {
    const y = TOP + r * H - top + H / 2;
    if (y > TOP) text(layerName(layer.layer), 0, y, r === state.row ? cut : ink, LEFT);
  });
  c.fillStyle = sheet;
  c.fillRect(0, 0, LEFT, TOP);
  c.fillStyle = rule;
  c.fillRect(0, TOP - 1, w, 1);
  c.fillRect(LEFT - 1, 0, 1, h);
  const x = LEFT + state.column * W - left, y = TOP + state.row * H - top;
  if (x > LEFT - W && y > TOP - H) {
    c.strokeStyle = cut;
    c.lineWidth = 2;
    c.strokeRect(x, y, W - 1, H - 1);
  }
}

// One cell in full.
function cellNodes(data, rows, state) {
  const at = data.positions[state.column], layer = rows[state.row], cell = layer.cells[state.column];
  const standing = s => s ? `${percent(s.prob)} · ${word('rank')} ${s.rank}` : word('end');
  const next = at.next === null ? word('end') : null;
  return [
    el('h3', {}, `${layerName(layer.layer)} · ${word('position')} ${at.position} `, el('span', { class: 'mono' }, '«', tokenNodes(data.tokens[at.position]), '»')),
    ...cell.top.map(token => candidate(token, token.prob, percent(token.prob), token.id === at.next)),
    el('dl', {},
      el('dt', {}, word('entropy')), el('dd', { class: 'num' }, `${fixed(cell.entropy, 3)} ${word('nats')}`),
      el('dt', {}, word('kl')), el('dd', { class: 'num' }, `${fixed(cell.kl, 3)} ${word('nats')}`),
      el('dt', {}, word('lastSays')), el('dd', {}, el('span', { class: 'mono' }, tokenNodes(at.choice)), ` ${standing(cell.last)}`),
      el('dt', {}, word('next')), el('dd', {}, ...(next ? [next] : [el('span', { class: 'mono' }, tokenNodes(data.tokens[at.position + 1])), ` ${standing(cell.next)}`]))),
    curve(rows, state)];
}
// The probability of the last layer's choice, layer by layer.
function curve(rows, state) {
  const width = 300, height = 70, n = rows.length, line = [...rows].reverse();
  const point = (layer, i) => `${n > 1 ? (i / (n - 1)) * (width - 8) + 4 : width / 2},${height - 4 - (height - 8) * (layer.cells[state.column].last?.prob ?? 0)}`;
  const picture = svg('svg', { width, height, viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': word('byLast') });
  picture.append(svg('polyline', { points: line.map(point).join(' '), fill: 'none', stroke: 'var(--bar)', 'stroke-width': 1.5 }));
  const x = n > 1 ? ((n - 1 - state.row) / (n - 1)) * (width - 8) + 4 : width / 2;
  picture.append(svg('line', { x1: x, x2: x, y1: 0, y2: height, stroke: 'var(--cut)', 'stroke-width': 1.5 }));
  return el('div', {}, el('div', { class: 'hint' }, word('byLast')), picture);
}

// The cells of one position as a table: for reading aloud, and for copying.
function lensTable(data, state) {
  const body = el('div', { class: 'scroll' });
  const fill = () => {
    const head = [word('layer'), word('said'), word('entropy'), 'KL', word('rank')];
    body.replaceChildren(el('table', {}, el('thead', {}, el('tr', {}, head.map(name => el('th', {}, name)))),
      el('tbody', {}, data.layers.map(layer => {
        const cell = layer.cells[state.column];
        return el('tr', {}, el('td', {}, layerName(layer.layer)),
          el('td', { class: 'mono' }, cell.top.map(token => `${plain(token)} ${percent(token.prob)}`).join(', ')),
          el('td', { class: 'n' }, fixed(cell.entropy, 3)), el('td', { class: 'n' }, fixed(cell.kl, 3)), el('td', { class: 'n' }, String(cell.last?.rank ?? '')));
      }))));
  };
  const node = el('details', { ontoggle: () => node.open && fill() }, el('summary', {}, word('table')), body);
  return { node, update: () => node.open && fill() };
}
