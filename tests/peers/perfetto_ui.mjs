// Opens a trace in Perfetto's own UI, in a real browser, and asks its processor.
//   node perfetto_ui.mjs PLAYWRIGHT_CORE WEB_DIST TRACE [SCREENSHOT.png] < queries.json > rows.json
// queries.json: {name: SQL}; rows.json: {name: [row…]}. Requests to other hosts are refused.
import { existsSync, readFileSync, statSync } from 'node:fs';
import { createServer } from 'node:http';
import { join, normalize } from 'node:path';
import { pathToFileURL } from 'node:url';

const [playwright, dist, trace, screenshot] = process.argv.slice(2);
const { chromium } = await import(pathToFileURL(join(playwright, 'index.mjs')));
const types = { html: 'text/html', js: 'text/javascript', css: 'text/css', wasm: 'application/wasm',
                json: 'application/json' };
const server = createServer((request, response) => {
  const path = decodeURIComponent(new URL(request.url, 'http://localhost').pathname);
  const file = path === '/trace.json' ? trace : normalize(join(dist, path === '/' ? 'index.html' : path));
  if (!existsSync(file) || statSync(file).isDirectory()) {
    response.writeHead(404);
    response.end();
    return;
  }
  response.writeHead(200, { 'content-type': types[file.split('.').pop()] ?? 'application/octet-stream' });
  response.end(readFileSync(file));
});
await new Promise(listening => server.listen(0, '127.0.0.1', listening));
const origin = `http://127.0.0.1:${server.address().port}`;

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
  args: ['--no-sandbox', '--use-gl=angle', '--use-angle=swiftshader', '--enable-unsafe-swiftshader'],
});
try {
  const page = await browser.newPage({ viewport: { width: 1600, height: 900 } });
  await page.route('**/*', route => {
    const url = route.request().url();
    return [origin, 'blob:', 'data:'].some(own => url.startsWith(own)) ? route.continue() : route.abort();
  });
  await page.goto(`${origin}/#!/?url=${origin}/trace.json`);
  await page.waitForFunction(() => self.app?.trace?.engine, null, { timeout: 120000 });
  const answers = {};
  for (const [name, sql] of Object.entries(JSON.parse(readFileSync(0, 'utf8')))) {
    answers[name] = await page.evaluate(async sql => {
      const result = await self.app.trace.engine.query(sql);
      const rows = [];
      for (const it = result.iter({}); it.valid(); it.next()) {
        rows.push(Object.fromEntries(result.columns().map(column => {
          const value = it.get(column);
          return [column, typeof value === 'bigint' ? Number(value) : value];
        })));
      }
      return rows;
    }, sql);
  }
  if (screenshot) {
    await page.waitForTimeout(2000);
    await page.screenshot({ path: screenshot });
  }
  process.stdout.write(JSON.stringify(answers));
} finally {
  await browser.close();
  server.close();
}
