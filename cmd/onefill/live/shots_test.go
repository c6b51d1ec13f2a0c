//go:build unix

package live_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// TestScreenshots writes pictures of the page to look at, in both themes and three widths, to the
// directory that ONEFILL_LIVE_SHOTS names.
func TestScreenshots(t *testing.T) {
	dir := os.Getenv("ONEFILL_LIVE_SHOTS")
	if dir == "" {
		t.Skip("ONEFILL_LIVE_SHOTS names no directory for pictures")
	}
	c := startChromium(t)
	_, url := serve(t, options{})
	for _, theme := range []string{"light", "dark"} {
		for _, size := range [][2]int{{1440, 1500}, {820, 2100}, {390, 3400}} {
			t.Run(fmt.Sprint(theme, size[0]), func(t *testing.T) {
				p := c.open(t, url, size[0], size[1], map[string]string{"prefers-color-scheme": theme})
				p.until(herdOver)
				p.until(`document.querySelector("#counters [data-mode=naive] [data-counter=calls]")?.textContent > 100`)
				p.click("#herd")
				p.until(`document.querySelector(".score").dataset.state === "runs"`)
				p.until(herdOver)
				p.eval("scrollTo(0, 0)", nil)
				p.picture(filepath.Join(dir, fmt.Sprintf("live-%s-%d.png", theme, size[0])), true)
				p.clean()
			})
		}
	}
	for _, scene := range []string{"slow", "down", "failing"} {
		t.Run(scene, func(t *testing.T) {
			p := c.open(t, url, 1440, 1300, map[string]string{"prefers-color-scheme": "light"})
			p.until(herdOver)
			p.click("#scene-" + scene)
			p.until(`document.querySelector(".score").dataset.state === "runs"`)
			p.until(herdOver)
			p.eval("new Promise((done) => setTimeout(done, 2500))", nil) // the traffic after it
			p.eval("scrollTo(0, 0)", nil)
			p.picture(filepath.Join(dir, "scene-"+scene+".png"), true)
			p.clean()
		})
	}
	for _, theme := range []string{"light", "dark"} {
		t.Run("readme "+theme, func(t *testing.T) {
			p := c.open(t, url, 1280, 1220, map[string]string{"prefers-color-scheme": theme})
			p.until(herdOver)
			p.click("#scene-slow")
			p.until(`document.querySelector(".score").dataset.state === "runs"`)
			p.until(herdOver)
			p.eval("scrollTo(0, 0)", nil)
			p.eval("document.activeElement.blur()", nil)
			p.do("Input.dispatchMouseEvent", map[string]any{"type": "mouseMoved", "x": 640, "y": 90})
			p.picture(filepath.Join(dir, "readme-"+theme+".png"), false)
		})
	}
}
