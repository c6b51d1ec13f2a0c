//go:build unix

package live_test

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// The page is played in a real browser: with the mouse, and with the keyboard alone.

func TestBrowser(t *testing.T) {
	t.Parallel()
	c := startChromium(t)
	h, url := serve(t, options{})
	wide := func(t *testing.T) *tab {
		p := c.open(t, url, 1366, 900, map[string]string{"prefers-color-scheme": "light"})
		p.until(herdOver) // the page sends a first herd by itself
		return p
	}
	t.Run("first visit", func(t *testing.T) { firstVisit(t, wide(t)) })
	t.Run("scenes", func(t *testing.T) { scenes(t, wide(t)) })
	t.Run("controls", func(t *testing.T) { controlsByMouse(t, wide(t)) })
	t.Run("keyboard", func(t *testing.T) { keyboardOnly(t, wide(t)) })
	t.Run("names", func(t *testing.T) { names(t, wide(t)) })
	for _, theme := range []string{"light", "dark"} {
		t.Run("contrast "+theme, func(t *testing.T) {
			p := c.open(t, url, 1366, 900, map[string]string{"prefers-color-scheme": theme})
			p.until(herdOver)
			contrast(t, p)
		})
	}
	t.Run("narrow", func(t *testing.T) {
		p := c.open(t, serveBelow(t, "/tools/onefill/"), 360, 740, nil)
		p.until(herdOver)
		narrow(t, p)
	})
	t.Run("low", func(t *testing.T) {
		p := c.open(t, url, 1366, 500, nil)
		p.until(herdOver)
		low(t, p)
	})
	t.Run("less motion", func(t *testing.T) {
		p := c.open(t, url, 1366, 900, map[string]string{"prefers-reduced-motion": "reduce"})
		p.until(herdOver)
		lessMotion(t, p)
	})
	t.Run("theme", func(t *testing.T) { themes(t, wide(t)) })
	t.Run("a page that leaves ends its session", func(t *testing.T) {
		poll(t, "the tabs of the other tests have gone", func() bool { return h.Sessions() == 0 })
		p := wide(t)
		p.do("Page.navigate", map[string]any{"url": "about:blank"})
		poll(t, "its session has ended", func() bool { return h.Sessions() == 0 })
		p.eval(`history.back()`, nil)
		p.until(`document.getElementById("link")?.dataset.state === "live"`)
		poll(t, "on the way back it has another one", func() bool { return h.Sessions() == 1 })
		p.clean()
	})
	t.Run("the server stops", func(t *testing.T) { // the last one: it does
		p := wide(t)
		must(t, h.Close())
		p.until(`document.getElementById("link").dataset.state === "lost" && document.getElementById("herd").disabled`)
		p.until(`document.getElementById("problem").textContent.includes("being stopped")`)
	})
}

// herdOver is true in a page where a herd has run in every mode that plays.
const herdOver = `[...document.querySelectorAll(".score:not([hidden])")].every((c) => c.dataset.state === "done")`

// scores are the loads of the latest herd, as the cards show them.
func (p *tab) scores() string {
	var got []string
	p.eval(`[...document.querySelectorAll(".score:not([hidden])")].map((c) => c.dataset.mode + " " + c.querySelector("output").textContent)`, &got)
	return strings.Join(got, ", ")
}

// herd waits for a herd that something has sent: the cards must run before they are done.
func (p *tab) herd() string {
	p.t.Helper()
	p.until(`[...document.querySelectorAll(".score:not([hidden])")].some((c) => c.dataset.state === "runs")`)
	p.until(herdOver)
	return p.scores()
}

// sends has a herd sent, by send, and says what has to come of it. It is sent again if another figure than onefill's
// differs: on a busy machine a caller may come when the load, of 400 ms, has ended already, and find its value, or too
// late to join the load that it should. A herd of onefill's is one load all the same, so its figure must be right at once.
func (p *tab) sends(what, want string, send func()) {
	p.t.Helper()
	send()
	got := p.herd()
	for deadline := time.Now().Add(30 * time.Second); got != want && ofOnefill(got) == ofOnefill(want) && time.Now().Before(deadline); got = p.herd() {
		send()
	}
	expect(p.t, what, got, want)
}

// ofOnefill is onefill's part of the scores.
func ofOnefill(scores string) string {
	_, onefill, _ := strings.Cut(scores, "onefill ")
	return onefill
}

func expect(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %q, expected %q", what, got, want)
	}
}

const headline = "naive 12, local 3, lock 1, onefill 1"

// firstVisit: nobody has touched anything, and the page has said what it is for.
func firstVisit(t *testing.T, p *tab) {
	if got := p.scores(); got != headline {
		expect(t, "onefill in the first herd, "+got, ofOnefill(got), ofOnefill(headline))
		p.sends("a herd like the first one", headline, func() { p.click("#herd") })
	}
	p.until(`document.getElementById("verdict").textContent === "For 12 callers, naive asked the database 12 times, local 3 times, lock once and onefill once."`)
	p.until(`document.getElementById("spoken").textContent === document.getElementById("verdict").textContent`)
	p.until(`document.querySelectorAll("#counters tbody tr").length === 4 && document.querySelector("#counters [data-mode=onefill] [data-counter=loads]").textContent >= 1`)
	p.until(`document.getElementById("about-processes").textContent.startsWith("simulated")`)
	// Every canvas has something on it, and says in words what.
	p.until(`[...document.querySelectorAll("canvas")].every((c) => new Uint32Array(c.getContext("2d").getImageData(0, 0, c.width, c.height).data.buffer).some((x) => x !== 0))`)
	p.until(`[...document.querySelectorAll("canvas")].every((c) => c.getAttribute("role") === "img" && c.getAttribute("aria-label").length > 20)`)
	// Steady traffic, with a herd at each end of the TTL, is nothing to be read out.
	p.eval(`window.said = 0; new MutationObserver((l) => { said += l.length; }).observe(document.getElementById("spoken"), {childList: true, characterData: true, subtree: true})`, nil)
	p.until(`document.querySelector("#counters [data-mode=naive] [data-counter=loads]").textContent >= 24`)
	p.until(`said === 0`)
	p.clean()
}

func scenes(t *testing.T, p *tab) {
	for _, s := range []struct{ id, want, errors string }{
		{"plain", headline, ""},
		{"slow", "naive 12, local 3, lock 12, onefill 1", ""},
		{"down", "naive 12, local 3, lock 0, onefill 3", "lock"},
		{"failing", "naive 12, local 3, lock 12, onefill 1", "naive local lock onefill"},
		{"plain", headline, ""}, // a scene mends what the one before has broken
	} {
		send := func() { p.click("#scene-" + s.id) }
		if s.id == "plain" { // a process may take a moment to notice that the store is back
			deadline := time.Now().Add(30 * time.Second)
			for send(); ofOnefill(p.herd()) != ofOnefill(s.want) && time.Now().Before(deadline); {
				send()
			}
		}
		p.sends(s.id, s.want, send)
		var failed []string
		p.eval(`[...document.querySelectorAll(".score")].filter((c) => c.querySelector(".errors").textContent).map((c) => c.dataset.mode)`, &failed)
		expect(t, s.id+", without an answer", strings.Join(failed, " "), s.errors)
	}
	p.clean()
}

func controlsByMouse(t *testing.T, p *tab) {
	p.click("#mode-onefill + label, label[for=mode-onefill]")
	p.until(`document.querySelectorAll(".lane:not([hidden])").length === 1`)
	p.sends("one mode", "onefill 1", func() { p.click("#herd") })
	p.click("label[for=mode-all]")
	p.until(`document.querySelectorAll(".score:not([hidden])").length === 4`)

	// While the loads are paused everybody can arrive, however long that takes; the lock must last for it, too.
	p.eval(`document.getElementById("lease_ms").value = 10000; document.getElementById("lease_ms").dispatchEvent(new Event("input"))`, nil)
	p.until(`document.querySelector("output[for=lease_ms]").textContent === "10 s"`)
	p.click("#pause")
	p.until(`document.getElementById("pause").textContent === "Resume the loads"`)
	p.click("#herd")
	p.until(`document.querySelector(".lane[data-mode=naive] .status").textContent === "12 waiting · 12 flights · 12 in the database"`)
	p.until(`/^12 waiting · 3 flights · lease with P[123] · 1 in the database$/.test(document.querySelector(".lane[data-mode=onefill] .status").textContent)`)
	p.click("#pause")
	p.until(herdOver)
	expect(t, "after a pause", p.scores(), headline)

	p.click("#kill")
	p.until(`document.getElementById("kill").textContent === "Restart the store"`)
	p.eval(`scrollTo(0, 0)`, nil) // the controls, whose message it is, begin below
	p.eval(`document.getElementById("processes").value = 5; document.getElementById("processes").dispatchEvent(new Event("input"))`, nil)
	p.until(`document.getElementById("problem").textContent.includes("restart it first")`)
	if !p.inSight("problem") {
		t.Error("what the server refuses is said where nobody sees it")
	}
	p.click("#kill")
	p.until(`document.getElementById("kill").textContent === "Kill the store"`)
	p.click("#fail")
	p.until(`document.getElementById("fail").textContent === "Heal the database"`)
	p.click("#expire")
	p.until(`document.querySelector("#counters [data-mode=naive] [data-counter=errors]").textContent > 0`)
	p.click("#fail")
	p.click("#reset")
	p.until(`document.querySelector("#processes").value === "3" && document.getElementById("problem").textContent === ""`)
	// The browser says of the one request that was refused, and of nothing else.
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.errors {
		if !strings.Contains(e, "409") {
			t.Errorf("in the console: %s", e)
		}
	}
	p.errors = nil
}

// inSight says whether all of an element lies within the window.
func (p *tab) inSight(id string) (yes bool) {
	p.t.Helper()
	p.eval(`(() => { const r = document.getElementById("`+id+`").getBoundingClientRect(); return r.height > 0 && r.left >= -1 && r.top >= -1 && r.right <= innerWidth + 1 && r.bottom <= innerHeight + 1; })()`, &yes)
	return yes
}

// low: in a window that is lower than the controls are high, all of them can be scrolled to.
func low(t *testing.T, p *tab) {
	for _, id := range []string{"mode-all", "kill", "callers", "reset"} {
		p.eval(`document.getElementById("`+id+`").scrollIntoView({block: "nearest", behavior: "instant"})`, nil)
		if !p.inSight(id) {
			t.Errorf("%s cannot be scrolled to", id)
		}
	}
	p.clean()
}

// focused tells where the keyboard is, and whether that is seen.
func (p *tab) focused() (id string, seen bool) {
	var at struct {
		ID   string
		Seen bool
	}
	p.eval(`(() => { const e = document.activeElement, mark = e.type === "radio" ? e.nextElementSibling : e, s = getComputedStyle(mark);
		return {id: e.id || e.className, seen: s.outlineStyle !== "none" && parseFloat(s.outlineWidth) >= 2 || e.className === "skip" && e.getBoundingClientRect().top >= 0}; })()`, &at)
	return at.ID, at.Seen
}

// tabTo goes on with the tabulator until it is there.
func (p *tab) tabTo(id string) {
	p.t.Helper()
	for range 40 {
		p.press("Tab")
		at, seen := p.focused()
		if at != "" && !seen {
			p.t.Errorf("the focus on %s is not seen", at)
		}
		if at == id {
			return
		}
	}
	p.t.Fatalf("the tabulator does not lead to %s", id)
}

// keyboardOnly plays the page without a mouse.
func keyboardOnly(t *testing.T, p *tab) {
	p.tabTo("skip")
	p.press("Enter")
	if at, _ := p.focused(); at != "controls" {
		t.Errorf("the skip link leads to %q", at)
	}
	p.tabTo("mode-all")
	p.tabTo("pause")
	p.tabTo("callers")
	for range 8 {
		p.press("ArrowRight")
	}
	p.until(`document.querySelector("output[for=callers]").textContent === "20" && document.getElementById("herd-callers").textContent === "20 callers"`)
	p.press("Tab")
	p.press("ArrowRight") // a fourth process
	p.press("Tab")
	p.press("Home")
	p.until(`document.getElementById("load_ms").getAttribute("aria-valuetext") === "50 ms"`)
	for range 5 {
		p.press("ArrowRight")
	}
	p.tabTo("traffic")
	p.press(" ")
	p.until(`!document.getElementById("traffic").checked`)
	p.eval(`document.activeElement.blur()`, nil)
	p.tabTo("herd")
	p.sends("a herd by keyboard", "naive 20, local 4, lock 1, onefill 1", func() { p.press("Enter") })
	p.tabTo("scene-plain")
	p.sends("a scene by keyboard", headline, func() { p.press(" ") })
	p.tabTo("mode-all")
	p.press("ArrowRight")
	p.until(`document.querySelector(".scores").dataset.count === "1" && document.getElementById("mode-naive").checked`)
	p.press("ArrowLeft")
	p.until(`document.querySelector(".scores").dataset.count === "4"`)
	p.clean()
}

// names: everything that can be worked has a name, every id is there once, headings do not jump.
func names(t *testing.T, p *tab) {
	var wrong []string
	p.eval(`(() => {
		const wrong = [], shown = (e) => e.getClientRects().length > 0;
		for (const e of document.querySelectorAll("input, select, textarea")) {
			const name = [...(e.labels || [])].map((l) => l.textContent.trim()).join(" ");
			if (!name) wrong.push("no label: " + e.outerHTML);
			if (e.type === "range" && !e.getAttribute("aria-valuetext")) wrong.push("a value without unit: " + e.id);
		}
		for (const e of document.querySelectorAll("button, a[href]")) if (!e.textContent.trim()) wrong.push("no text: " + e.outerHTML);
		for (const e of document.querySelectorAll("fieldset")) if (!e.querySelector("legend")?.textContent) wrong.push("no legend");
		for (const e of document.querySelectorAll("section, [role=region]")) if (!document.getElementById(e.getAttribute("aria-labelledby"))?.textContent) wrong.push("no name: " + e.className);
		for (const e of document.querySelectorAll("output")) if (e.getAttribute("aria-live") !== "off") wrong.push("read out at every change: " + e.outerHTML);
		for (const e of document.querySelectorAll("th")) if (!e.scope) wrong.push("no scope: " + e.textContent);
		const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
		for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) wrong.push("twice: " + id);
		let level = 0;
		for (const e of document.querySelectorAll("h1, h2, h3")) {
			const n = Number(e.tagName[1]);
			if (n > level + 1) wrong.push("a heading jumps: " + e.textContent);
			level = n;
		}
		if (document.querySelectorAll("h1").length !== 1 || document.querySelectorAll("main").length !== 1 || !document.documentElement.lang) wrong.push("landmarks");
		for (const e of document.querySelectorAll("button, .segments label, input[type=range]")) {
			const r = e.getBoundingClientRect();
			if (shown(e) && (r.height < 22 || r.width < 22)) wrong.push("too small to hit: " + e.outerHTML);
		}
		return wrong;
	})()`, &wrong)
	for _, w := range wrong {
		t.Error(w)
	}
}

// contrast: WCAG's AA for every text, on what lies behind it.
func contrast(t *testing.T, p *tab) {
	p.until(`document.getElementById("herd").disabled === false`)
	var found struct {
		Seen int
		Low  []string
	}
	p.eval(`(() => {
		const parse = (c) => { const m = c.match(/[\d.]+/g).map(Number); return {rgb: m.slice(0, 3), a: m.length > 3 ? m[3] : 1}; };
		const light = (rgb) => { const [r, g, b] = rgb.map((x) => { x /= 255; return x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
		const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
		const behind = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c.a === 1) return c.rgb; } return [255, 255, 255]; };
		const low = []; let seen = 0;
		const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
		while (walk.nextNode()) {
			const e = walk.currentNode.parentElement, s = getComputedStyle(e);
			if (!walk.currentNode.textContent.trim() || !e.getClientRects().length || e.closest(".unseen, script, noscript, button:disabled")) continue;
			seen++;
			const size = parseFloat(s.fontSize), large = size >= 24 || size >= 18.66 && s.fontWeight >= 700;
			const r = ratio(parse(s.color).rgb, behind(e));
			if (r < (large ? 3 : 4.5)) low.push(r.toFixed(2) + " " + e.outerHTML.slice(0, 90));
		}
		const root = getComputedStyle(document.documentElement), hex = (name) => { const v = root.getPropertyValue(name).trim(); return [1, 3, 5].map((i) => parseInt(v.slice(i, i + 2), 16)); };
		for (const ink of ["--ink", "--soft"]) if (ratio(hex(ink), hex("--lane")) < 4.5 || ratio(hex(ink), hex("--card")) < 4.5) low.push("on a canvas: " + ink);
		for (const m of ["naive", "local", "lock", "onefill"]) {
			for (const v of ["--" + m, "--" + m + "-mid"]) if (ratio(hex(v), hex("--lane")) < 3) low.push("a bar: " + v + " " + ratio(hex(v), hex("--lane")).toFixed(2));
			if (ratio(hex("--ink"), hex("--" + m + "-pale")) < 4.5) low.push("text on " + m + "-pale");
			if (ratio(hex("--on"), hex("--" + m)) < 4.5) low.push("text on " + m);
		}
		for (const v of ["--edge", "--focus"]) if (ratio(hex(v), hex("--card")) < 3 || ratio(hex(v), hex("--ground")) < 3) low.push("an edge: " + v + " " + ratio(hex(v), hex("--card")).toFixed(2) + " " + ratio(hex(v), hex("--ground")).toFixed(2));
		return {seen, low};
	})()`, &found)
	if found.Seen < 80 {
		t.Errorf("only %d texts were seen", found.Seen)
	}
	for _, w := range found.Low {
		t.Errorf("contrast: %s", w)
	}
}

// narrow: nothing is wider than a small telephone, but for the table, which scrolls by itself.
func narrow(t *testing.T, p *tab) {
	var wide []string
	p.eval(`document.documentElement.scrollWidth <= 360 ? [] : [...document.querySelectorAll("main *")].filter((e) => e.getBoundingClientRect().right > 360 && !e.closest(".scroll")).map((e) => e.outerHTML.slice(0, 80))`, &wide)
	for _, w := range wide {
		t.Errorf("too wide: %s", w)
	}
	p.sends("narrow", headline, func() { p.click("#herd") })
	p.clean()
}

// lessMotion: nothing is animated, and pictures change once a second at most.
func lessMotion(t *testing.T, p *tab) {
	p.click("#herd")
	p.until(`document.querySelector(".score").dataset.state === "runs"`)
	var n int
	p.eval(`document.getAnimations().length`, &n)
	if n > 0 {
		t.Errorf("%d animations", n)
	}
	p.eval(`new Promise((done) => { const g = document.querySelector(".lane canvas").getContext("2d"), clear = g.clearRect; let n = 0;
		g.clearRect = (...a) => { n++; clear.apply(g, a); }; setTimeout(() => done(n), 2600); })`, &n)
	if n < 1 || n > 3 {
		t.Errorf("%d pictures in 2.6 s, expected one a second", n)
	}
	p.clean()
}

func themes(t *testing.T, p *tab) {
	ground := func() (color string) {
		p.eval(`getComputedStyle(document.body).backgroundColor`, &color)
		return color
	}
	light := ground()
	system := func(scheme string) {
		p.do("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}})
		p.until(`document.documentElement.dataset.theme === "` + scheme + `"`)
	}
	system("dark") // nothing was chosen: the system's is followed, also later
	system("light")
	p.click("#theme")
	p.until(`document.documentElement.dataset.theme === "dark" && document.getElementById("theme").textContent === "Light theme"`)
	dark := ground()
	if light == dark {
		t.Errorf("both themes have the ground %s", light)
	}
	p.do("Page.reload", nil)
	p.until(`document.readyState === "complete" && document.documentElement.dataset.theme === "dark"`)
	expect(t, "the theme after a reload", ground(), dark)
	p.click("#theme")
	expect(t, "back again", fmt.Sprint(ground()), light)
	p.clean()
}
