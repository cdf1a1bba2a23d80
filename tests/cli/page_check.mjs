// Opens a page in Chromium, in both languages and both themes, and says what it found.
//   node page_check.mjs PLAYWRIGHT_CORE PAGE.html [SCREENSHOT_PREFIX [WIDTH HEIGHT]] > found.json
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

const [playwright, file, shots, width, height] = process.argv.slice(2);
const { chromium } = await import(pathToFileURL(join(playwright, 'index.mjs')));
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
  args: ['--no-sandbox', '--use-gl=angle', '--use-angle=swiftshader', '--enable-unsafe-swiftshader'],
});
const found = { errors: [], requests: [], states: [], keyboard: false, timeline: false };
try {
  for (const locale of ['en-US', 'ko-KR']) {
    for (const colorScheme of ['light', 'dark']) {
      const context = await browser.newContext({ locale, colorScheme, viewport: { width: Number(width ?? 1366), height: Number(height ?? 900) } });
      const page = await context.newPage();
      page.on('pageerror', error => found.errors.push(String(error)));
      page.on('console', message => {
        if (['error', 'warning'].includes(message.type())) found.errors.push(message.text());
      });
      page.on('request', request => {
        const url = request.url();
        if (url !== pathToFileURL(file).href && !url.startsWith('data:') && !url.startsWith('blob:')) found.requests.push(url);
      });
      await page.goto(pathToFileURL(file).href, { timeout: 120000 });
      await page.waitForFunction(() => document.documentElement.dataset.ready !== undefined, null, { timeout: 60000 });
      await page.waitForTimeout(500);
      found.states.push(await page.evaluate(() => {
        const blank = [];
        for (const canvas of document.querySelectorAll('canvas')) {
          if (canvas.width * canvas.height === 0) { blank.push('size 0'); continue; }
          const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data, seen = new Set();
          for (let i = 0; i < data.length; i += 4) seen.add(data[i] << 16 | data[i + 1] << 8 | data[i + 2]);
          if (seen.size < 3) blank.push(canvas.getAttribute('aria-label') ?? canvas.className);
        }
        return {
          title: document.querySelector('h1').textContent, lang: document.documentElement.lang, theme: document.documentElement.dataset.theme,
          blank, injected: document.querySelectorAll('body img, body script').length,
          overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
        };
      }));
      if (shots) await page.screenshot({ path: `${shots}-${locale.slice(0, 2)}-${colorScheme}.png`, fullPage: true });
      if (!found.keyboard) {  // what an arrow key changes is said in the panel
        const panel = page.locator('.panel[aria-live]').first();
        const before = await panel.textContent();
        const target = await page.locator('#answer').count() ? '#answer .chip' : '.view canvas';
        for (const key of ['ArrowRight', 'ArrowLeft', 'ArrowUp', 'ArrowDown']) {
          await page.locator(target).first().focus();
          await page.keyboard.press(key);
          await page.waitForTimeout(100);
          found.keyboard ||= (await panel.textContent()) !== before;
        }
      }
      const timeline = page.locator('#trace ~ div .view canvas').first();
      if (!found.timeline && await page.locator('#trace').count() && await page.evaluate(() => document.querySelector('#trace').nextElementSibling?.nextElementSibling?.className === 'bar-row')) {
        const said = () => page.evaluate(() => [...document.querySelectorAll('#trace ~ .panel')][0].textContent);
        await timeline.focus();
        const before = await said();
        for (const key of ['ArrowRight', '+', '+', 'ArrowRight']) {
          await page.keyboard.press(key);
          await page.waitForTimeout(150);
        }
        found.timeline = (await said()) !== before;
      }
      await context.close();
    }
  }
} finally {
  await browser.close();
}
process.stdout.write(JSON.stringify(found));
