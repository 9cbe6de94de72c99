#!/usr/bin/env python3
"""Goal: a person with a browser, a mouse or only a keyboard can talk to the model, see the cluster
and follow a request on the router's web page; nothing that an answer or a person types becomes
markup, and the page loads nothing from elsewhere.

    browser_test.py --build DIR [--screenshots DIR]      [unittest arguments]

Drives Chromium through chromedriver. --screenshots keeps pictures of each view, light and dark.
"""
import argparse
import hashlib
import json
import os
import pathlib
import shutil
import sys
import tempfile
import unittest

wanted = os.environ.get("TANDEM_TEST_PYTHON")
if wanted and os.path.exists(wanted) and pathlib.Path(wanted).parent != pathlib.Path(sys.executable).parent:
    os.execv(wanted, [wanted, "-B", *sys.argv])

from cluster import Cluster

BUILD = None
SCREENSHOTS = None
SKIPPED = 77


def skip(why):
    print(f"SKIPPED: {why}")
    sys.exit(1 if os.environ.get("CI") == "true" else SKIPPED)


try:
    from selenium import webdriver
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.wait import WebDriverWait
except ImportError:
    skip("the Python package selenium is not installed")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
if not CHROMIUM or not DRIVER:
    skip("Chromium or chromedriver is not installed (Debian's packages chromium, chromium-driver)")


def start_browser(folder, width=1280, height=800, theme="light"):
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu",
                 "--no-first-run", "--disable-background-networking", "--force-color-profile=srgb",
                 f"--window-size={width},{height}", f"--user-data-dir={folder}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=DRIVER))
    browser.set_page_load_timeout(60)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia",
                            {"features": [{"name": "prefers-color-scheme", "value": theme}]})
    return browser


class OnPage(unittest.TestCase):
    """One cluster and one browser for the tests of a class, a fresh page for each test."""
    FLAGS = ("--prefill=1", "--decode=2", "--kv-blocks=512", "--local-prefill-tokens=0")

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="tandem-browser-")
        cls.addClassCleanup(cls.folder.cleanup)
        cls.cluster = Cluster(BUILD, *cls.flags())
        cls.addClassCleanup(cls.cluster.stop)
        cls.browser = start_browser(pathlib.Path(cls.folder.name, "profile"))
        cls.addClassCleanup(cls.browser.quit)

    @classmethod
    def flags(cls):
        return cls.FLAGS

    def setUp(self):
        # Another document first: to open the same address with another fragment loads nothing.
        self.browser.get("about:blank")
        self.browser.get_log("browser")
        self.open("")
        self.browser.execute_script("localStorage.clear(); sessionStorage.clear();")

    def open(self, view):
        self.browser.get("about:blank")
        self.browser.get(f"{self.cluster.url}/{view}")

    def at(self, selector):
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def wait(self, what, why):
        """The first true value of what(); elements that the page replaced meanwhile are asked for again."""
        from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
        ignored = (NoSuchElementException, StaleElementReferenceException)
        return WebDriverWait(self.browser, 60, 0.05, ignored).until(lambda _: what(), why)

    def ask(self, text):
        prompt = self.at("#prompt")
        prompt.clear()
        prompt.send_keys(text, Keys.ENTER)

    def finished_answers(self, count):
        def there():
            answers = self.all(".message.assistant[aria-busy=false]")
            return answers if len(answers) == count else None
        return self.wait(there, f"{count} answers are not complete")

    def set_value(self, selector, value):
        self.browser.execute_script(
            "const f = document.querySelector(arguments[0]); f.value = arguments[1];"
            "f.dispatchEvent(new Event('input', {bubbles: true}))", selector, value)

    def keep_picture(self, name):
        if SCREENSHOTS:
            self.browser.save_screenshot(str(pathlib.Path(SCREENSHOTS, f"page_{name}.png")))

    def background(self):
        return self.browser.execute_script("return getComputedStyle(document.body).backgroundColor")


class Chat(OnPage):
    def test_an_answer_streams_and_tells_its_figures(self):
        self.wait(lambda: "context of" in self.at("#served").text, "the model is not named")
        self.set_value("#max-tokens", "24")
        self.ask("How do you do?")
        answer, = self.finished_answers(1)
        self.assertTrue(answer.find_element(By.CSS_SELECTOR, ".body").text.strip())
        self.assertRegex(answer.find_element(By.CSS_SELECTOR, ".meta").text, r"\d+ tokens.*prompt tokens cached.*first text after")
        self.assertEqual(self.at("#send").text, "Send")
        self.keep_picture("chat_light")

    def test_equal_seeds_give_equal_answers(self):
        self.set_value("#max-tokens", "16")
        self.set_value("#seed", "7")
        self.set_value("#temperature", "1")
        texts = []
        for _ in range(2):
            self.ask("Say something.")
            answer, = self.finished_answers(1)
            texts.append(answer.find_element(By.CSS_SELECTOR, ".body").text)
            self.at("#clear").click()
            self.assertEqual(self.all(".message"), [])
        self.assertEqual(texts[0], texts[1])

    def test_the_conversation_goes_along(self):
        self.set_value("#max-tokens", "8")
        self.ask("One.")
        self.finished_answers(1)
        self.ask("Two.")
        second = self.finished_answers(2)[1].find_element(By.CSS_SELECTOR, ".meta").text
        prompt = int(second.split(" prompt tokens")[0].split()[-1].replace(",", ""))
        single = self.cluster.fetch("/tokenize", "POST", b'{"messages": [{"role": "user", "content": "Two."}]}',
                                    content_type="application/json")[2]
        self.assertGreater(prompt, len(json.loads(single)["tokens"]))

    def test_escape_stops_an_answer(self):
        self.set_value("#max-tokens", "4000")
        self.ask("Never stop.")
        self.wait(lambda: self.at("#send").text == "Stop", "no answer runs")
        self.at("#prompt").send_keys(Keys.ESCAPE)
        answer, = self.finished_answers(1)
        self.assertIn("Stopped.", answer.text)
        self.ask("Go on.")  # the conversation goes on after an answer that was stopped
        self.wait(lambda: self.at("#send").text == "Stop", "no answer runs")
        self.at("#send").click()
        self.finished_answers(2)

    def test_markup_stays_text(self):
        self.set_value("#max-tokens", "4")
        self.ask("<img src=x onerror=\"document.title='owned'\"><b>bold</b>")
        self.finished_answers(1)
        self.assertIn("<img src=x", self.at(".message.user .body").text)
        self.assertEqual(self.all(".message img, .message b"), [])
        # The Markdown of an answer, through the page's own module.
        made = self.browser.execute_async_script("""
            const done = arguments[0];
            import('/page/markdown.js').then(({render}) => {
              const into = document.createElement('div');
              render('a **b** `<i>c</i>`\\n```html\\n<script>d()</script>\\n```\\n<svg onload=e()>', into);
              done(into.innerHTML);
            });""")
        self.assertIn("<strong>b</strong>", made)
        self.assertIn("<pre", made)
        for forbidden in ("<i>", "<script", "<svg"):
            self.assertNotIn(forbidden, made)
        self.assertEqual(self.browser.title, "Tandem")

    def test_a_refused_request_says_why(self):
        self.set_value("#max-tokens", "999999")
        self.ask("Hello")
        answer, = self.finished_answers(1)
        self.assertIn("token", answer.find_element(By.CSS_SELECTOR, "[role=alert]").text)


class Views(OnPage):
    def test_the_cluster_shows_nodes_and_what_moved(self):
        self.set_value("#max-tokens", "8")
        self.ask("Move this prompt's KV, " * 20)
        self.finished_answers(1)
        self.at("#tab-cluster").click()
        self.wait(lambda: len(self.all("#prefill .node")) == 1 and len(self.all("#decode .node")) == 2, "nodes are missing")
        self.wait(lambda: self.all("#links tr"), "no transfer is listed")
        self.wait(lambda: self.all("#wires path"), "no transfer is drawn")
        self.assertRegex(self.at("#decode .node").text, r"of 512 KV blocks used")
        self.assertEqual(self.at("#decode .blocks").aria_role, "image")
        self.assertRegex(self.at("#decode .blocks").accessible_name, r"KV blocks: \d+ used")
        self.keep_picture("cluster_light")

    def test_a_request_is_followed_from_its_answer(self):
        self.set_value("#max-tokens", "8")
        self.ask("Where does the time go?")
        answer, = self.finished_answers(1)
        answer.find_element(By.CSS_SELECTOR, ".meta button").click()
        self.wait(lambda: self.at("#trace .waterfall"), "no waterfall is shown")
        names = [row.text.split("\n")[0] for row in self.all("#trace .row")]
        self.assertIn("Decode", names)
        self.assertIn("Prefill", names)
        self.at("#trace .why summary").click()
        self.assertIn("chosen", self.at("#trace .why table").text)
        listed = self.wait(lambda: self.all("#recent button"), "the request is not listed")
        self.assertEqual(listed[0].get_attribute("aria-current"), "true")
        self.keep_picture("request_light")

    def test_several_attempts_are_not_shown_as_one(self):
        trace = {"request_id": "twice", "submitted_s": 1, "sequences": [{
            "timing": {"queue_ms": 1, "reserve_ms": 1, "prefill_ms": 5, "first_token_ms": 20, "install_ms": 1, "total_ms": 40},
            "route": {"prefill_node": "p0", "decode_node": "d0", "transport": "shm", "kv_bytes_moved": "4096", "kv_transfer_ms": 3}}]}
        self.open("#trace")
        self.browser.execute_script("""
            const [trace] = arguments, fetched = window.fetch;
            window.fetch = (what, ...rest) => String(what?.url ?? what).includes("traces/twice")
              ? Promise.resolve(new Response(JSON.stringify({...trace, sequences: trace.sequences.map((one) =>
                  ({...one, route: {...one.route, attempts: window.attempts}}))})))
              : fetched(what, ...rest);""", trace)
        for attempts, shown in ((1, True), (2, False)):
            self.browser.execute_script("window.attempts = arguments[0];", attempts)
            self.at("#find-id").clear()
            self.at("#find-id").send_keys("twice", Keys.ENTER)
            self.wait(lambda: str(attempts) in self.at("#trace table").text.split("Attempts")[-1], "no trace is shown")
            names = [row.text.split("\n")[0] for row in self.all("#trace .row")]
            self.assertIn("Prefill", names)
            self.assertEqual("KV transfer" in names, shown)

    def test_an_unknown_request_is_named(self):
        self.open("#trace")
        self.at("#find-id").send_keys("no-such-request", Keys.ENTER)
        self.wait(lambda: "no-such-request" in self.at("#trace .error").text, "the error does not name the request")

    def test_the_keyboard_is_enough(self):
        self.at("#tab-chat").send_keys(Keys.ARROW_RIGHT)
        self.wait(lambda: self.at("#panel-cluster").is_displayed(), "the cluster is not shown")
        self.assertEqual(self.browser.switch_to.active_element.get_attribute("id"), "tab-cluster")
        self.browser.switch_to.active_element.send_keys(Keys.END)
        self.wait(lambda: self.at("#panel-trace").is_displayed(), "the requests are not shown")
        self.browser.switch_to.active_element.send_keys(Keys.HOME)
        self.wait(lambda: self.at("#panel-chat").is_displayed(), "the chat is not shown")
        # Every control is reached with Tab, the tabs as one.
        seen, element = set(), self.browser.switch_to.active_element
        for _ in range(40):
            seen.add(element.get_attribute("id"))
            element.send_keys(Keys.TAB)
            element = self.browser.switch_to.active_element
        self.assertLessEqual({"tab-chat", "key", "theme", "prompt", "send", "clear", "temperature", "seed"}, seen)

    def test_every_control_has_a_name(self):
        for view in ("#chat", "#cluster", "#trace"):
            self.open(view)
            for control in self.all("button, input, textarea, a, [role=region], [role=log], [role=tabpanel], img"):
                if not control.is_displayed() or control.get_attribute("alt") == "":
                    continue
                with self.subTest(view=view, id=control.get_attribute("id")):
                    self.assertTrue(control.accessible_name)

    def test_light_and_dark(self):
        colours = {}
        for _ in range(3):
            colours[self.at("#theme").text.split()[-1]] = self.background()
            self.at("#theme").click()
        self.assertEqual(set(colours), {"system", "light", "dark"})
        self.assertEqual(colours["system"], colours["light"])
        self.assertNotEqual(colours["dark"], colours["light"])
        while "dark" not in self.at("#theme").text:
            self.at("#theme").click()
        self.open("")
        self.assertEqual(self.background(), colours["dark"])  # the browser remembers
        for view in ("chat", "cluster"):
            self.at(f"#tab-{view}").click()
            self.keep_picture(f"{view}_dark")

    def test_a_telephone_needs_no_sideways_scrolling(self):
        size = self.browser.get_window_size()
        self.addCleanup(self.browser.set_window_size, size["width"], size["height"])
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                                     {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True})
        self.addCleanup(self.browser.execute_cdp_cmd, "Emulation.clearDeviceMetricsOverride", {})
        for view in ("#chat", "#cluster", "#trace"):
            self.open(view)
            with self.subTest(view=view):
                self.assertLessEqual(self.browser.execute_script("return document.documentElement.scrollWidth"), 360)
        self.keep_picture("telephone")

    def test_it_loads_nothing_from_elsewhere_and_reports_no_error(self):
        for view in ("#chat", "#cluster", "#trace", "docs"):
            self.open(view)
            self.wait(lambda: self.browser.execute_script("return document.readyState") == "complete", "the page does not load")
            hosts = self.browser.execute_script(
                "return [...new Set(performance.getEntriesByType('resource').map((each) => new URL(each.name).origin))]")
            self.assertEqual(hosts, [self.cluster.url])
        self.assertEqual([entry for entry in self.browser.get_log("browser") if entry["level"] == "SEVERE"], [])

    def test_the_api_is_described_for_people(self):
        self.open("docs")
        self.wait(lambda: "/v1/chat/completions" in self.at("main").text, "the API is not listed")


class WithKeys(OnPage):
    @classmethod
    def flags(cls):
        keys = pathlib.Path(cls.folder.name, "keys")
        keys.write_text(f"alice {hashlib.sha256(b'open sesame').hexdigest()}\n", encoding="utf-8")
        return ("--prefill=0", "--decode=1", "--kv-blocks=512", f"--api-keys={keys}")

    def give_key(self, key):
        text = self.at("#key-text")
        text.clear()
        text.send_keys(key, Keys.ENTER)

    def test_a_key_is_asked_for_and_kept_in_the_tab_only(self):
        self.open("#chat")
        self.wait(lambda: self.at("#key-dialog").get_attribute("open"), "no key is asked for")
        self.give_key("wrong")
        self.wait(lambda: self.at("#key-dialog").get_attribute("open"), "a wrong key is not refused")
        self.give_key("open sesame")
        self.wait(lambda: "context of" in self.at("#served").text, "the right key is refused")
        self.set_value("#max-tokens", "4")
        self.ask("Hello")
        self.finished_answers(1)
        self.assertNotIn("sesame", self.browser.execute_script("return JSON.stringify(localStorage) + document.cookie"))
        self.keep_picture("key")


class Lost(OnPage):
    def test_a_lost_router_is_said_at_once(self):
        self.open("#cluster")
        self.wait(lambda: self.all("#decode .node"), "no node is shown")
        self.assertEqual(self.cluster.stop(), 0)
        self.wait(lambda: "cannot be reached" in self.at("#lost").text, "the page does not say that the router is gone")
        self.assertTrue(self.at("#lost").is_displayed())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--screenshots")
    known, rest = parser.parse_known_args()
    BUILD, SCREENSHOTS = known.build, known.screenshots
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
